"""The page during a search: rewritten between experiments, rarely where it is slow, and never in the way."""

import pytest

from autoresearch.core.errors import AutoresearchError
from autoresearch.core.view import Outcome
from autoresearch.report import rewriting
from autoresearch.report.rewriting import FIRST_SECONDS, PAUSE, Rewriting

KEEP = Outcome(1, "keep", 1.0, -0.1, 1.0, "an idea")


class Listener:
    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        return lambda *given: self.told.append((name, *given))

    @property
    def notes(self):
        return [given[1] for given in self.told if given[0] == "note"]


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(rewriting, "_now", lambda: now[0])
    return now


class Writer:
    def __init__(self, clock, seconds=0.0, error=None):
        self.clock, self.seconds, self.error, self.count = clock, seconds, error, 0

    def __call__(self):
        self.count += 1
        self.clock[0] += self.seconds
        if self.error:
            raise self.error
        return "report.html"


def test_after_each_experiment_and_between_them(clock):
    listener, write = Listener(), Writer(clock)
    view = Rewriting(listener, write)
    clock[0] += FIRST_SECONDS
    for _ in range(3):
        view.begin("#1 an idea")
        view.event({"event": "clock_stop"})
        before = write.count
        view.decided(KEEP)
        assert write.count == before + 1, "after the verdict, not before it"
        clock[0] += 1
    assert listener.notes == ["  the report page, rewritten as the search goes on: report.html"], "said once"
    assert [name for name, *_ in listener.told][:3] == ["begin", "event", "decided"]
    view.close()
    assert write.count == 3, "nothing is new on it"
    assert listener.told[-1] == ("close",)


def test_a_slow_page_is_written_rarely_and_once_more_at_the_end(clock):
    write = Writer(clock, seconds=2.0)
    view = Rewriting(Listener(), write)
    clock[0] += FIRST_SECONDS
    view.decided(KEEP)
    began = clock[0]
    while clock[0] < began + 2 * PAUSE - 1:
        view.decided(KEEP)
        clock[0] += 1
    assert write.count == 1
    clock[0] += 2
    view.decided(KEEP)
    assert write.count == 2
    view.decided(KEEP)
    view.close()
    assert write.count == 3


def test_a_short_search_has_none(clock):
    write = Writer(clock)
    view = Rewriting(Listener(), write)
    clock[0] += FIRST_SECONDS - 1
    view.decided(KEEP)
    view.close()
    assert write.count == 0


@pytest.mark.parametrize("error", [AutoresearchError("the disk is full"), ZeroDivisionError("by zero"), MemoryError()])
def test_an_error_is_said_once_and_ends_nothing(clock, error):
    listener, write = Listener(), Writer(clock, error=error)
    view = Rewriting(listener, write)
    clock[0] += FIRST_SECONDS
    for _ in range(3):
        view.decided(KEEP)
    assert write.count == 3
    assert len(listener.notes) == 1
    assert (getattr(error, "message", "") or type(error).__name__) in listener.notes[0]
    view.close()
    assert listener.told[-1] == ("close",)


def test_ctrl_c_leaves_the_terminal_as_it_was(clock):
    listener = Listener()
    view = Rewriting(listener, Writer(clock, error=KeyboardInterrupt()))
    clock[0] += FIRST_SECONDS
    with pytest.raises(KeyboardInterrupt):
        view.decided(KEEP)
    with pytest.raises(KeyboardInterrupt):
        view.close()
    assert listener.told[-1] == ("close",)
