"""What a search does at this moment, as another process reads it."""

import json
import os
import subprocess
import sys
import time

import pytest

from autoresearch.core import progress
from autoresearch.core.progress import FILE, read_progress, recorded
from autoresearch.core.view import Outcome, Relay

STEP = {"event": "progress", "progress": 0.25, "step": 7, "loss": 2.5, "tokens_per_second": 1e4, "seconds": 3.0}


class Silent:
    def __getattr__(self, name):
        return lambda *given: None


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress, "_now", lambda: now[0])
    return now


def test_the_file_follows_the_search_and_goes_with_it(tmp_path, clock):
    assert read_progress(tmp_path) is None
    with recorded(Silent(), tmp_path) as view:
        first = read_progress(tmp_path)
        assert first.alive
        assert (first.pid, first.title, first.message) == (os.getpid(), "", {})
        view.begin("#1 an idea")
        view.event({"event": "clock_start", "seconds": 0.0})
        assert read_progress(tmp_path).message == {"event": "clock_start", "seconds": 0.0}
        clock[0] += 1
        view.event(STEP)
        view.event({**STEP, "step": 8})
        found = read_progress(tmp_path)
        assert (found.title, found.count, found.message["step"]) == ("#1 an idea", 1, 7), "not each step is written"
        clock[0] += 1
        view.event({**STEP, "step": 9})
        assert read_progress(tmp_path).message["step"] == 9
        view.decided(Outcome(1, "keep", 1.0, -0.1, 1.0, "an idea"))
        assert (read_progress(tmp_path).title, read_progress(tmp_path).message) == ("", {})
    assert not (tmp_path / FILE).exists()


def test_everything_is_passed_on():
    told = []

    class Listener:
        def __getattr__(self, name):
            return lambda *given: told.append((name, *given))

    view = Relay(Listener())
    calls = {"note": ("a",), "detail": ("b",), "stage": ("c", 0.5), "begin": ("d",), "event": ({},), "close": ()}
    calls |= {"decided": ("outcome",), "standing": ("standing",)}
    for name, given in calls.items():
        getattr(view, name)(*given)
    assert told == [(name, *given) for name, given in calls.items()]


def test_a_search_that_is_gone_is_recognised(tmp_path):
    with recorded(Silent(), tmp_path):
        written = json.loads((tmp_path / FILE).read_text())

    def found(**changes):
        (tmp_path / FILE).write_text(json.dumps({**written, **changes}))
        return read_progress(tmp_path)

    assert found().alive
    child = subprocess.Popen([sys.executable, "-c", ""])
    assert child.wait() == 0
    assert not found(pid=child.pid).alive
    assert not found(born=written["born"] - 60).alive, "its number is another process's by now"
    assert found(host="another", pid=child.pid).alive, "it can't be seen from here"
    assert not found(host="another", written=time.time() - 2 * progress.SILENT_SECONDS).alive


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": "7"},
        {"message": []},
        {"title": None},
        {"message": {**STEP, "loss": None}},
        {"message": {"event": "progress"}},
    ],
)
def test_a_damaged_file_is_none(tmp_path, changes):
    with recorded(Silent(), tmp_path):
        written = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps({**written, "of a later version": 1}))
    assert read_progress(tmp_path) is not None
    (tmp_path / FILE).write_text(json.dumps({**written, **changes}))
    assert read_progress(tmp_path) is None
    (tmp_path / FILE).write_text(json.dumps(written)[:-5])
    assert read_progress(tmp_path) is None


def test_a_search_does_not_need_it(tmp_path):
    with recorded(Silent(), tmp_path / "not there") as view:
        view.begin("#1 an idea")
