"""A search watched from another process, whatever becomes of it."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext, suppress
from itertools import pairwise

import pyte
import pytest

from autoresearch.core.progress import read_progress


@pytest.fixture
def slow(workspace):
    """Measurements of a second, so that there is something to watch."""
    settings = workspace / "autoresearch.toml"
    settings.write_text(settings.read_text().replace("train_steps = 8\ntrain_seconds = 30", "train_seconds = 1"))
    return workspace


@pytest.fixture
def start(environment):
    """Start a command and leave it running; it is ended with the test."""

    @contextmanager
    def run(*args, cwd):
        process = subprocess.Popen(
            [sys.executable, "-m", "autoresearch", *map(str, args)],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)

    return run


def wait_for(met, seconds=60.0):
    until = time.monotonic() + seconds
    while not (found := met()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


def decided(workspace) -> int:
    """Experiments with a verdict by now."""
    journals = [path.read_text() for path in (workspace / ".autoresearch").glob("*/journal.jsonl")]
    return sum(text.count('"event":"decided"') for text in journals)


def training(workspace) -> bool:
    folders = [path.parent for path in (workspace / ".autoresearch").glob("*/progress.json")]
    return any((found := read_progress(folder)) and found.message.get("event") == "progress" for folder in folders)


def test_two_watchers_see_a_search_to_its_end(slow, start):
    with start("--max-experiments", 4, "--max-hours", 1, cwd=slow) as search:
        wait_for(lambda: decided(slow))
        with (
            start("status", "--watch", "--interval", "0.05", cwd=slow) as lines,
            start("status", "--watch", "--json", "--interval", "0.05", cwd=slow) as documents,
        ):
            told, problems = lines.communicate(timeout=100)
            assert (lines.returncode, problems) == (0, "")
            found = [json.loads(line) for line in documents.communicate(timeout=100)[0].splitlines()]
            assert documents.returncode == 0
        output, _ = search.communicate(timeout=60)
        assert search.returncode == 0
    assert "\r" not in told
    assert "\x1b" not in told
    assert f"searched by process {search.pid}" in told
    theirs = [line for line in output.splitlines() if line.startswith("#4")]
    assert theirs == [line for line in told.splitlines() if line.startswith("#4")], "as the search tells it"
    assert told.endswith("stopped: experiments done: 4 (--max-experiments)\n")
    assert found[-1]["stop_reason"] == "experiments done: 4 (--max-experiments)"
    assert found[-1]["progress"] is None
    steps = [line["progress"] for line in found if line["progress"] and line["progress"].get("event") == "progress"]
    assert steps, "the measurement is seen on its way"
    assert all(0 < step["progress"] <= 1 and step["loss"] > 0 and step["pid"] == search.pid for step in steps)
    assert all(one != other for one, other in pairwise(found)), "a line for each change"
    assert len({line["experiments"] for line in found}) > 1
    assert not list((slow / ".autoresearch").glob("*/progress.json"))


def test_a_search_that_is_killed_is_gone(slow, start, autoresearch, left_over):
    with start(cwd=slow) as search:
        wait_for(lambda: training(slow))
        with start("status", "--watch", "--interval", "0.05", cwd=slow) as watcher:
            assert "searched by process" in watcher.stdout.readline()
            os.kill(search.pid, signal.SIGKILL)
            _, problem = watcher.communicate(timeout=60)
            assert watcher.returncode == 1
        assert re.fullmatch(
            r"error: the search of run '\w+' is gone: .*\nhint: what was measured is kept; go on with it: .*\n", problem
        )
    again = autoresearch("status", "--watch", cwd=slow)
    assert (again.returncode, again.stderr) == (1, problem), "a file that it left behind deceives nobody"
    done = autoresearch("--max-experiments", "1", cwd=slow)
    assert done.returncode == 0, done.stderr
    assert not left_over(slow)


def test_ctrl_c_leaves_the_search_alone(slow, start):
    with start(cwd=slow) as search:
        wait_for(lambda: training(slow))
        with start("status", "--watch", cwd=slow) as watcher:
            watcher.stdout.readline()
            watcher.send_signal(signal.SIGINT)
            watcher.communicate(timeout=60)
            assert watcher.returncode == 130
        before = decided(slow)
        wait_for(lambda: decided(slow) > before)
        assert search.poll() is None


@pytest.mark.parametrize("what", ["search", "watch"])
def test_ctrl_c_on_a_terminal_leaves_it_as_it_was(what, slow, start, environment):
    """The cursor is back, colours are off, and the panel is gone."""
    with start("--tag", "t", cwd=slow) if what == "watch" else nullcontext() as search:
        if search:
            wait_for(lambda: training(slow))
        leader, follower = pty.openpty()
        command = [sys.executable, "-m", "autoresearch", *(["status", "--watch"] if search else ["--tag", "t"])]
        environment = {**environment, "TERM": "xterm-256color", "COLUMNS": "70"}
        process = subprocess.Popen(
            command, cwd=slow, env=environment, stdin=follower, stdout=follower, stderr=follower, start_new_session=True
        )
        os.close(follower)
        shown, asked = "", False
        with suppress(OSError):  # the other end is closed
            while chunk := os.read(leader, 4096):
                shown += chunk.decode(errors="replace")
                if not asked and "tokens/s" in shown:
                    asked = True
                    process.send_signal(signal.SIGINT)
        os.close(leader)
        assert process.wait(timeout=60) == 130
        assert not search or search.poll() is None, "the search goes on"
    screen = pyte.Screen(70, 60)
    pyte.Stream(screen).feed(shown)
    assert "tokens/s" in shown
    assert not screen.cursor.hidden
    assert screen.cursor.attrs == pyte.Screen(1, 1).cursor.attrs
    assert not any("tokens/s" in line for line in screen.display)


def test_a_run_that_is_over(workspace, autoresearch, ideas):
    done = autoresearch("--agent", f"script:{ideas(good=1.0)}", cwd=workspace)
    assert done.returncode == 0
    watched = autoresearch("status", "--watch", cwd=workspace)
    assert (watched.returncode, watched.stdout) == (0, autoresearch("status", cwd=workspace).stdout)
    lines = autoresearch("status", "--watch", "--json", cwd=workspace).stdout.splitlines()
    assert [json.loads(line)["stop_reason"] for line in lines] == ["no proposals are left (script)"]


def test_nothing_to_watch(workspace, autoresearch):
    none = autoresearch("status", "--watch", cwd=workspace)
    assert none.returncode == 2
    assert "has no run yet" in none.stderr
    (workspace / ".autoresearch" / "t").mkdir(parents=True)
    (workspace / ".autoresearch" / "t" / "journal.jsonl").write_text("damaged\n")
    damaged = autoresearch("status", "--watch", cwd=workspace)
    assert damaged.returncode == 5
    assert "line 1 is not an event" in damaged.stderr
    assert autoresearch("status", "--watch", "--tag", "other", cwd=workspace).returncode == 2
    assert autoresearch("status", "--watch", "--interval", "0", cwd=workspace).returncode == 2


def test_the_page_follows_the_search(slow, environment, ideas):
    """A search that is long enough for a page, here at once."""
    script = f"script:{ideas(a_good=1.0, b_bad=0.01)}"
    code = "from autoresearch.report import rewriting; rewriting.FIRST_SECONDS = 0; rewriting.PAUSE = 0\n"
    code += f"from autoresearch.cli import main; main(['--agent', {script!r}])"
    done = subprocess.run([sys.executable, "-c", code], cwd=slow, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (page,) = (slow / ".autoresearch").glob("*/report.html")
    lines = done.stdout.splitlines()
    told = [n for n, line in enumerate(lines) if str(page) in line]
    assert len(told) == 1, "where it lies is said once"
    assert lines[told[0] - 1].startswith("#0"), "after the first verdict"
    assert "get it: git -C " in lines[-1], "the last line is what it always was"
    assert "b_bad" in page.read_text()
