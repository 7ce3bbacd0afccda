"""The setting `sandbox` from the command line, with a program `bwrap` that the test puts first on the path."""

import json
import os
import sys

import pytest

from autoresearch.core import registry
from autoresearch.report import doctor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is of Linux")

PASSES_ON = """#!/bin/sh
while [ "$1" != "--" ]; do shift; done
shift
exec "$@"
"""
REFUSES = """#!/bin/sh
echo "bwrap: No permissions to create new namespace" >&2
exit 1
"""
# Starts commands, but hides from Python what it needs.
BREAKS = """#!/bin/sh
for last; do :; done
[ "$last" = true ]
"""


@pytest.fixture
def path_with(tmp_path):
    """The environment in which `bwrap` is a script."""

    def build(script: str) -> dict[str, str]:
        program = tmp_path / "bin" / "bwrap"
        program.parent.mkdir()
        program.write_text(script)
        program.chmod(0o755)
        return {"PATH": f"{program.parent}:{os.environ['PATH']}"}

    return build


@pytest.mark.parametrize(("options", "used"), [((), True), (("--sandbox", "on"), True), (("--sandbox", "off"), False)])
def test_where_it_works_it_is_used_and_recorded(workspace, autoresearch, path_with, options, used):
    done = autoresearch("experiment", "--json", "-v", *options, cwd=workspace, env=path_with(PASSES_ON))
    assert done.returncode == 0, done.stderr
    assert ("sandbox" in json.loads(done.stdout)["guards"]) is used
    assert ("sandbox: bubblewrap; a command was started in it" if used else "no sandbox: switched off") in done.stderr


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (REFUSES, "bubblewrap can't start anything here: bwrap: No permissions to create new namespace"),
        (BREAKS, "in bubblewrap backend null doesn't start"),
    ],
    ids=["refused", "the backend doesn't start in it"],
)
def test_where_it_does_not_auto_goes_without_and_on_fails(workspace, autoresearch, path_with, script, reason):
    env = path_with(script)
    done = autoresearch("experiment", "--json", cwd=workspace, env=env)
    assert done.returncode == 0, done.stderr
    assert "sandbox" not in json.loads(done.stdout)["guards"]
    (said,) = (line for line in done.stderr.splitlines() if line.startswith("no sandbox: "))
    assert reason in said, "also without -v"
    assert "guarded in their process alone" in said
    done = autoresearch("experiment", "--sandbox", "on", cwd=workspace, env=env)
    assert done.returncode == 4
    assert "error: sandbox = on, but" in done.stderr
    assert reason in done.stderr
    assert "hint: " in done.stderr


def test_the_file_of_the_workspace_sets_it_and_a_misspelt_one_is_an_error(workspace, autoresearch, path_with):
    env, toml = path_with(REFUSES), workspace / "autoresearch.toml"
    text = toml.read_text()
    toml.write_text('sandbox = "on"\n' + text)
    assert autoresearch("experiment", cwd=workspace, env=env).returncode == 4
    assert autoresearch("experiment", "--sandbox", "off", cwd=workspace, env=env).returncode == 0
    toml.write_text('sandbox = "onn"\n' + text)
    done = autoresearch("experiment", cwd=workspace, env=env)
    assert done.returncode == 2
    assert "sandbox must be auto, on or off, received 'onn'" in done.stderr
    assert "did you mean 'on'?" in done.stderr


def test_doctor_states_it(path_with, monkeypatch):
    monkeypatch.setenv("PATH", path_with(REFUSES)["PATH"])
    monkeypatch.setattr(registry, "names", lambda: ["null"])  # the others take seconds to describe
    found = doctor.examine("cpu")["sandbox"]
    assert found["usable"] is False
    assert "No permissions to create new namespace" in found["problem"]
    assert "user namespaces" in found["hint"]


def test_a_run_that_goes_on_with_another_isolation_says_so(workspace, autoresearch, path_with, journal):
    env = path_with(PASSES_ON)
    options = ("run", "--agent", "random", "--max-experiments")
    assert autoresearch(*options, 1, "--sandbox", "on", cwd=workspace, env=env).returncode == 0
    done = autoresearch(*options, 2, "--sandbox", "off", cwd=workspace, env=env)
    assert "measurements before this one ran in a sandbox, those from now on without one" in done.stdout
    measured = [event["result"] for event in journal(workspace) if event["event"] == "measured"]
    assert len({result["comparability_key"] for result in measured}) == 1
    assert {"sandbox" in result["guards"] for result in measured} == {True, False}
