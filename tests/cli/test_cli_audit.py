"""`autoresearch audit` as people run it: what it measures, where that is written, and how it goes on."""

import json
import subprocess
import sys

import pytest
from filelock import FileLock

TEXT = "\n\n".join(
    f"{n}. The minister rose and spoke at length of tariffs, of treaties and of rye." for n in range(400)
)

# Starts the command line with a journal that kills its own process after the n-th line of the audits.
DRIVER = """
import os, signal, sys
from autoresearch.core import journal

n, *args = sys.argv[1:]
append, lines = journal.Journal.append, 0

def counting(self, event, **data):
    global lines
    entry = append(self, event, **data)
    lines += self.path.name == "audits.jsonl"
    if lines == int(n):
        os.kill(os.getpid(), signal.SIGKILL)
    return entry

journal.Journal.append = counting
from autoresearch.cli import main
main(args)
"""


@pytest.fixture
def searched(workspace, ideas, autoresearch):
    """A run with one keep."""
    found = autoresearch("run", "--agent", f"script:{ideas(good=2.0)}", cwd=workspace)
    assert found.returncode == 0, found.stderr
    return workspace


@pytest.fixture
def audit(autoresearch):
    def run(workspace, *args) -> dict:
        done = autoresearch("audit", "--json", *args, cwd=workspace)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def events(workspace, name: str = "audits") -> list[dict]:
    (path,) = (workspace / ".autoresearch").glob(f"*/{name}.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def measured(workspace) -> list[dict]:
    return [event for event in events(workspace) if event["event"] == "measured"]


def test_baseline_and_incumbent_with_fresh_seeds_on_every_text(searched, audit, autoresearch, tmp_path):
    (path,) = (searched / ".autoresearch").glob("*/journal.jsonl")
    journal = path.read_bytes()
    other = tmp_path / "treaties.txt"
    other.write_text(TEXT)
    found = audit(searched, "--repeats", "2", "--text", other)
    assert found["incumbent"] == 1
    assert found["same_machine"]
    assert found["texts"].keys() == {"val", "test", "text"}
    assert found["texts"]["val"]["gain"]["low"] > 0, "the candidate is better by far"
    assert found["conclusion"].startswith(f"the search's gain of {found['claimed_gain']:.4f} bpb on val is real")
    assert {arm["n"] for text in found["texts"].values() for arm in (text["baseline"], text["incumbent"])} == {2}
    assert [row["experiment"] for row in found["measurements"]] == [0, 1, 1, 0]

    made = measured(searched)
    facts = events(searched)[0]["rows"]
    assert {event["scores"]["test_tokens"] for event in made} == {64 * facts["test"]}, "the whole test split"
    routine = {event["test_tokens"] for event in events(searched, "audit")}
    assert max(routine) < 64 * facts["test"]
    assert {event["scores"]["text_tokens"] for event in made} == {64 * facts["text"]}
    before = {event["seed"] for event in events(searched, "journal") if event["event"] == "started"}
    seeds = [event["result"]["seed"] for event in made]
    assert len(set(seeds)) == len(seeds) == 4
    assert not before & set(seeds)

    assert path.read_bytes() == journal, "an audit leaves the run as it was"
    assert autoresearch("run", "--agent", "random", "--max-experiments", "2", cwd=searched).returncode == 0
    for event in made:
        for number in (event["result"]["val_bpb"], event["scores"]["test_bpb"], event["scores"]["text_bpb"]):
            assert str(number) not in path.read_text()


def test_what_was_measured_is_not_measured_again(searched, audit, autoresearch):
    first = audit(searched, "--repeats", "2")
    assert audit(searched, "--repeats", "2") == first
    assert len(measured(searched)) == 4
    more = autoresearch("audit", "--repeats", "3", cwd=searched)
    assert more.returncode == 0
    assert len(measured(searched)) == 6
    assert "measurements             3          3" in more.stdout
    assert "fewer than 6 measurements of each" in more.stdout
    assert "along the run" in more.stdout
    assert more.stdout.count("the baseline: val ") == 1


@pytest.mark.parametrize("lines", [1, 2, 3, 6])
def test_an_audit_that_was_killed_goes_on(lines, searched, audit, environment, tmp_path, find_processes):
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    command = [sys.executable, str(driver), str(lines), "audit", "--repeats", "2"]
    killed = subprocess.run(command, cwd=searched, env=environment, capture_output=True, check=False, timeout=120)
    assert killed.returncode == -9, killed.stderr
    done = len(measured(searched))
    assert done == (lines - 1) // 2
    found = audit(searched, "--repeats", "2")
    assert found["texts"]["val"]["baseline"]["n"] == found["texts"]["val"]["incumbent"]["n"] == 2
    made = measured(searched)
    assert [event["k"] for event in made] == [0, 1, 2, 3], "nothing is lost or repeated"
    assert len({event["result"]["seed"] for event in made}) == 4
    marks = {event["mark"] for event in events(searched) if event["event"] == "started"}
    assert not find_processes(lambda process: process.environ().get("AUTORESEARCH_CHILD") in marks)


def test_a_run_that_kept_nothing_has_no_gain_to_audit(workspace, ideas, autoresearch, audit):
    assert autoresearch("run", "--agent", f"script:{ideas(bad=0.001)}", cwd=workspace).returncode == 0
    found = audit(workspace)
    assert found["incumbent"] == 0
    assert found["conclusion"].startswith("nothing was kept")
    assert not list((workspace / ".autoresearch").glob("*/audits.jsonl"))


def test_another_machine_measures_both_and_says_so(searched, audit, autoresearch):
    (path,) = (searched / ".autoresearch").glob("*/journal.jsonl")
    key = events(searched, "journal")[0]["comparability_key"]
    path.write_text(path.read_text().replace(key, "elsewhere"))
    done = autoresearch("audit", "--repeats", "2", cwd=searched)
    assert done.returncode == 0, done.stderr
    assert "this machine or its framework isn't that of the run: both are measured here" in done.stdout
    assert "measured on another machine, or with another framework, than the run's" in done.stdout
    found = audit(searched, "--repeats", "2")
    assert (found["same_machine"], found["comparability_key"], found["claimed_gain"]) == (False, key, None)
    assert found["texts"]["val"]["gain"]["low"] > 0
    assert found["conclusion"].startswith("the search's gain is real")


def test_what_is_wrong_is_said_with_its_exit_code(searched, autoresearch, tmp_path):
    def refused(*args: str, code: int) -> str:
        done = autoresearch("audit", *args, cwd=searched)
        assert done.returncode == code, done.stderr
        assert done.stderr.startswith("error: ")
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "--repeats" in refused("--repeats", "1", code=2)
    assert "does not exist" in refused("--text", "nowhere.txt", code=2)
    assert "no run 'other'" in refused("--tag", "other", code=2)
    short = tmp_path / "short.txt"
    short.write_text("Too short.")
    assert "too little text" in refused("--text", str(short), code=5)
    with FileLock(searched / ".autoresearch" / "lock"):
        assert "a search runs" in refused("--repeats", "2", code=6)
    assert not list((searched / ".autoresearch").glob("*/audits.jsonl"))


def test_without_a_run_there_is_nothing_to_audit(workspace, autoresearch, tmp_path):
    none = autoresearch("audit", cwd=workspace)
    assert none.stderr == f"error: {workspace} has no run yet\nhint: start one: autoresearch\n"
    empty = tmp_path / "empty"
    empty.mkdir()
    done = autoresearch("audit", cwd=empty)
    assert (done.returncode, list(empty.iterdir())) == (2, [])
