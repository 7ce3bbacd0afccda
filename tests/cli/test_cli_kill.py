"""A search ended from outside, at every point of an experiment's life, goes on where it was by the same command."""

import collections
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

# Starts the command line with a journal that kills its own process at its n-th line, or that forgets results.
DRIVER = """
import os, signal, sys
from autoresearch.core import journal

fault, n, *args = sys.argv[1:]
append, read, lines = journal.Journal.append, journal.Journal.read, 0

def counting(self, event, **data):
    global lines
    lines += self.path.name == "journal.jsonl"
    if fault == "before" and lines == int(n):
        os.kill(os.getpid(), signal.SIGKILL)
    entry = append(self, event, **data)
    if fault == "after" and lines == int(n):
        os.kill(os.getpid(), signal.SIGKILL)
    return entry

journal.Journal.append = counting
if fault == "forget":
    journal.Journal.read = lambda self: [e for e in read(self) if e["event"] != "measured" or e["n"] == 0]

from autoresearch.cli import main
main(args)
"""
# The gain of the candidate is a clear one, and unclear by these rules: a retest is made.
RULES = "\n[rules]\nspread = 0.5\nkeep_z = 2.5\n"
LIFE = (
    "run proposed committed started measured decided "
    "proposed committed started measured started measured decided stopped"
).split()


@pytest.fixture
def driver(tmp_path) -> Path:
    path = tmp_path / "driver.py"
    path.write_text(DRIVER)
    return path


@pytest.fixture
def drive(driver, environment):
    def run(workspace: Path, fault: str, n: int, *args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(driver), fault, str(n), *args]
        return subprocess.run(command, cwd=workspace, env=environment, capture_output=True, text=True, timeout=120)

    return run


@pytest.fixture
def check(git, journal, left_over):
    """What holds of a finished run of one experiment, whatever happened on its way."""

    def finished(workspace: Path) -> None:
        events = journal(workspace)
        tag = events[0]["tag"]
        of = collections.defaultdict(list)
        for event in events:
            of[event["event"]].append(event)
        assert [event["n"] for event in of["decided"]] == [0, 1], "the asked number of experiments"
        assert [event["n"] for event in of["proposed"]] == [0, 1], "no proposal is repeated"
        assert [event["n"] for event in of["committed"]] == [0, 1]
        measured = [(event["n"], event["k"]) for event in of["measured"]]
        assert measured == [(0, 0), (1, 0), (1, 1)], "no measurement is lost or repeated"
        seeds = [event["result"]["seed"] for event in of["measured"]]
        assert len(set(seeds)) == len(seeds)
        assert [event["verdict"] for event in of["decided"]] == ["keep", "keep"]
        for event in of["committed"]:
            assert git(workspace, "rev-parse", f"refs/autoresearch/{tag}/{event['n']}") == event["commit"]
        assert git(workspace, "rev-parse", f"autoresearch/{tag}") == of["committed"][1]["commit"]
        assert len((workspace / "results.tsv").read_text().splitlines()) == 3
        assert events[-1]["event"] == "stopped"
        assert git(workspace, "status", "--porcelain") == ""
        assert left_over(workspace) == []

    return finished


@pytest.fixture
def command(workspace, ideas) -> tuple[str, ...]:
    with (workspace / "autoresearch.toml").open("a") as toml:
        toml.write(RULES)
    return ("--agent", f"script:{ideas(good=1.0, later=2.0)}", "--max-experiments", "1")


def committed(workspace: Path, git) -> None:
    git(workspace, "commit", "--quiet", "--all", "-m", "rules")


def test_life_of_one_experiment(workspace, command, autoresearch, journal, check, git):
    """The lines at which the tests below kill are those of a whole life, its retest included."""
    committed(workspace, git)
    assert autoresearch(*command, cwd=workspace).returncode == 0
    assert [event["event"] for event in journal(workspace)] == LIFE
    check(workspace)


def test_killed_at_every_line_of_the_journal(workspace, command, drive, autoresearch, journal, check, tmp_path, git):
    committed(workspace, git)

    def kill_and_resume(point: tuple[str, int]) -> None:
        fault, n = point
        place = Path(shutil.copytree(workspace, tmp_path / f"{fault}-{n}", symlinks=True))
        killed = drive(place, fault, n, *command)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        written = journal(place) if n > 1 or fault == "after" else []
        assert [event["event"] for event in written] == LIFE[: n if fault == "after" else n - 1]
        resumed = autoresearch(*command, cwd=place)
        assert resumed.returncode == 0, f"{point}: {resumed.stderr}"
        try:
            check(place)
        except AssertionError as error:
            raise AssertionError(f"killed {fault} line {n}, {LIFE[n - 1]}: {error}") from error

    # Before a line differs from after the one above where something was done in between: training, a commit, a ref.
    acts = [n for n, event in enumerate(LIFE, 1) if event in ("run", "measured", "stopped") or n in (2, 7, 8)]
    points = [("after", n + 1) for n in range(len(LIFE))] + [("before", n) for n in acts]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(kill_and_resume, points))


def test_killed_again_and_again(workspace, command, drive, check, git):
    """Each start dies at its third line, of which the first is `resumed` and the second may be `started` again."""
    committed(workspace, git)
    starts = 0
    while (done := drive(workspace, "after", 3, *command)).returncode == -signal.SIGKILL:
        starts += 1
        assert starts <= len(LIFE)
    assert done.returncode == 0, done.stderr
    check(workspace)


def test_the_checks_see_a_resume_that_forgets_what_was_measured(workspace, command, drive, check, git):
    committed(workspace, git)
    point = LIFE.index("measured", 6) + 1
    assert drive(workspace, "after", point, *command).returncode == -signal.SIGKILL
    assert drive(workspace, "forget", 0, *command).returncode == 0
    with pytest.raises(AssertionError, match="no measurement is lost or repeated"):
        check(workspace)


# --- while a candidate trains --------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path) -> Path:
    """Where the searches of this test have their scratch folders."""
    path = tmp_path / "temporary"
    path.mkdir()
    return path


@pytest.fixture
def training(workspace, environment, ideas, git, journal, temporary):
    """Start a search whose candidate trains for seconds; the process, once the candidate trains."""
    text = (workspace / "autoresearch.toml").read_text()
    (workspace / "autoresearch.toml").write_text(text.replace("train_steps = 8", "train_steps = 0"))
    git(workspace, "commit", "--quiet", "--all", "-m", "half a minute")
    started: list[subprocess.Popen[str]] = []

    def start(*args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "autoresearch", "-v", *args],
            cwd=workspace,
            env={**environment, "TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            if "step" in line:
                return process
        raise AssertionError(process.communicate()[1])

    yield start
    for process in started:
        process.kill()
        process.communicate()


def gone(find) -> bool:
    """Whether `find` finds nothing within ten seconds: a child sees its parent's end, and takes a moment to end."""
    for _ in range(100):
        if not find():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_training(number, training, workspace, autoresearch, journal, left_over):
    process = training("--max-experiments", "1")
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr.strip() == "interrupted; run the same command again to go on"
    assert left_over(workspace) == []
    assert [event["event"] for event in journal(workspace)][-2:] == ["started", "stopped"]
    assert journal(workspace)[-1]["reason"] == "interrupted"
    # The budget is part of the run; here the same task ends after eight steps, as another run.
    status = autoresearch("status", cwd=workspace)
    assert "stopped: interrupted" in status.stdout


def test_killed_while_training(training, workspace, journal, left_over, temporary):
    process = training("--max-experiments", "1")
    process.kill()
    process.communicate()
    assert gone(lambda: left_over(workspace)), left_over(workspace)
    dead = [*temporary.iterdir()]
    assert dead, "nobody could remove the scratch folder"
    again = training("--max-experiments", "1")
    started = [event for event in journal(workspace) if event["event"] == "started"]
    assert [(event["n"], event["k"]) for event in started] == [(0, 0), (0, 0)], "the same measurement, once more"
    assert [*temporary.iterdir()] not in ([], dead), "it works in one of its own"
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=30)
    assert left_over(workspace) == []
    assert [*temporary.iterdir()] == []


def test_what_a_killed_search_left_running_is_ended(drive, workspace, command, autoresearch, journal, check, git):
    committed(workspace, git)
    drive(workspace, "after", LIFE.index("started", 6) + 1, *command)
    mark = journal(workspace)[-1]["mark"]
    survivor = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(300)"], env={**os.environ, "AUTORESEARCH_CHILD": mark}
    )
    try:
        assert autoresearch(*command, cwd=workspace).returncode == 0
        assert survivor.wait(timeout=10) == -signal.SIGKILL
    finally:
        survivor.kill()
        survivor.wait()
    check(workspace)


def test_a_second_search_is_refused(training, workspace, autoresearch):
    process = training("--max-experiments", "1")
    for arguments in (["--max-experiments", "1"], ["experiment"], ["experiment", "--record", "-m", "mine"]):
        refused = autoresearch(*arguments, cwd=workspace)
        assert refused.returncode == 6
        error, hint = refused.stderr.splitlines()
        assert f"(process {process.pid}, since " in error
        assert f"kill -INT {process.pid}" in hint
    running = autoresearch("status", "--json", cwd=workspace)
    assert running.returncode == 0, "reading is allowed"
    assert '"stop_reason": null' in running.stdout
    assert psutil.pid_exists(process.pid)
    process.kill()
    process.communicate()
    assert autoresearch("experiment", "--budget", "0.2", cwd=workspace).returncode == 0, (
        "the lock went with its process"
    )
