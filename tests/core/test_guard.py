"""The audit hook: what it stops, that a blind one stops nothing, and what honest code may do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).parents[1] / "candidates" / "guard_driver.py"
# The attacks read /proc and write to /dev/shm.
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
TOLD: dict[tuple[str, bool], dict] = {}


def told(group: str, seeing: bool, factory) -> dict:
    """{attack: (gained, violation)}, of a process of its own: an audit hook can't be removed."""
    if (group, seeing) not in TOLD:
        folder = factory.mktemp("guard")
        done = subprocess.run(
            [sys.executable, "-P", DRIVER, group, "seeing" if seeing else "blind", folder],
            env={**os.environ, "TMPDIR": str(folder / "scratch")},
            capture_output=True,
            text=True,
            check=True,
        )
        TOLD[group, seeing] = json.loads(done.stdout.splitlines()[-1])
    return TOLD[group, seeing]


STOPPED = {
    "Files": "is not allowed",
    "Processes": "is not allowed in a candidate",
    "Network": "is not allowed",
    "Interpreter": "is not allowed in a candidate",
    "NotEvenByFramework": "is not allowed",
    "Patches": "was replaced",
    "Threads": "goes on after train has returned",
}
"""What is said of each group of attacks."""


@pytest.mark.parametrize("group", STOPPED)
def test_attacks_are_seen(group, tmp_path_factory):
    results = told(group, True, tmp_path_factory)
    assert len(results) >= 3
    for attack, (gained, violation) in results.items():
        assert violation.startswith("guard: "), (attack, gained)
        assert STOPPED[group] in violation, (attack, violation)
    if group not in ("Patches", "Interpreter", "Threads"):
        assert {gained for gained, _ in results.values()} <= {"", "'caught'"}, "nothing was gained"


@pytest.mark.parametrize("group", STOPPED)
def test_a_blind_guard_lets_every_one_of_them_pass(group, tmp_path_factory):
    for attack, (gained, violation) in told(group, False, tmp_path_factory).items():
        assert violation == ""
        assert gained not in ("", "None", "False"), attack
        assert not gained.startswith("failed"), (attack, gained)


@pytest.mark.parametrize("group", ["Honest", "ByFramework"])
def test_what_is_allowed(group, tmp_path_factory):
    seeing = told(group, True, tmp_path_factory)
    assert seeing.keys() == told(group, False, tmp_path_factory).keys()
    assert len(seeing) >= 6
    for name, (gained, violation) in seeing.items():
        assert violation == "", name
        assert gained not in ("", "False"), name
        assert not gained.startswith("failed"), (name, gained)


@pytest.mark.parametrize(
    ("attack", "violation"),
    [
        ("read_the_rows_of_the_data_set", "val.rows.npy is not allowed"),
        ("read_the_users_through_numpy", "guard: reading /etc/passwd is not allowed"),
        ("remove_a_file", "victim.txt is not allowed"),
        ("leave_something_in_the_compile_cache", "weights.npy is not allowed"),
    ],
)
def test_the_reason_names_the_file(attack, violation, tmp_path_factory):
    assert told("Files", True, tmp_path_factory)[attack][1].endswith(violation)
