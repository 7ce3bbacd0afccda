"""The live view on a terminal that a program keeps: what a person would see on it."""

import io

import pyte
import pytest
from rich.console import Console

from autoresearch.core.interval import Interval
from autoresearch.core.records import Counts
from autoresearch.core.standing import Standing
from autoresearch.core.view import Outcome
from autoresearch.report.live import LiveView
from autoresearch.report.plain import outcome_line

STEP = {"event": "progress", "progress": 0.25, "step": 7, "loss": 2.5, "tokens_per_second": 12345.6, "seconds": 30.0}
KEEP = Outcome(12, "keep", 1.23456, -0.01, 45.04, "halve the batch: more steps")
EARLIER = Outcome(11, "discard", 1.3, 0.05, 45.0, "a wider model")
STANDING = Standing(Counts(12, 14, 4, 7, 1), 1.2733, 1.1924, 8, Interval(0.0809, 0.0509, 0.1109, 4), (1.27, 1.19))


class Terminal:
    """A screen that a view draws on, of a size that changes."""

    def __init__(self, width: int, height: int) -> None:
        self.screen = pyte.HistoryScreen(width, height)
        self._stream = pyte.Stream(self.screen)
        self.written = ""
        self.console = Console(file=self, force_terminal=True, color_system=None, _environ={})
        self._size(width, height)

    def _size(self, width: int, height: int) -> None:
        self.console._width, self.console._height = width, height

    def resize(self, view: LiveView, width: int, height: int, wraps: bool) -> None:
        """As xterm does it, which cuts long rows, or as most others, which wrap them."""
        with view._lock:  # no frame in between
            if wraps:
                text = "\r\n".join(line.rstrip() for line in self.screen.display[: self.screen.cursor.y + 1])
                self.screen = pyte.HistoryScreen(width, height)
                self._stream = pyte.Stream(self.screen)
                self._stream.feed("\x1b[?25l" + text)
            else:
                self.screen.resize(height, width)
            self._size(width, height)

    def write(self, text: str) -> None:
        self.written += text
        self._stream.feed(text.replace("\n", "\r\n"))

    def flush(self) -> None: ...

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display if line.strip()]


@pytest.fixture(params=[(40, 10), (40, 24), (80, 10), (80, 24), (300, 50)], ids=str)
def terminal(request):
    return Terminal(*request.param)


def test_the_panel_stands_below_the_lines(terminal):
    view = LiveView(terminal.console)
    view.standing(STANDING)
    view.decided(KEEP)
    view.begin("#13 [red]an idea[/red]")
    view.event(STEP)
    shown = terminal.lines
    assert shown[0].startswith("#12  keep"), "nothing else is above the first line"
    assert sum("25%" in line for line in shown) == 1
    assert sum("best 1.1924 bpb" in line for line in shown) == 1
    assert any("gain 0.0809 ± 0.0300 (95 %)" in line for line in shown)
    if terminal.screen.lines >= 24:
        assert any("#13 [red]an idea[/red]" in line for line in shown)
    view.event({"event": "clock_stop"})
    view.note("a note")
    assert sum("best 1.1924 bpb" in line for line in terminal.lines) == 1, "it is drawn over, never twice"
    assert any("scoring" in line for line in terminal.lines)
    view.close()
    left = " ".join(terminal.lines)
    assert "best" not in left, "it is gone at the end"
    assert "a note" in left
    assert not terminal.screen.cursor.hidden


def test_the_last_experiments_are_told_to_who_joins_later():
    terminal = Terminal(80, 24)
    view = LiveView(terminal.console)
    view.standing(Standing(Counts(12, 14, 4, 7, 1), last=(EARLIER, KEEP)))
    view.standing(Standing(Counts(12, 14, 4, 7, 1), last=(EARLIER, KEEP)))
    assert [line[:3] for line in terminal.lines[:2]] == ["#11", "#12"]
    assert sum(line.startswith("#") for line in terminal.lines) == 2, "once"
    assert any("waiting for the next proposal" in line for line in terminal.lines)
    view.close()


@pytest.mark.parametrize("wraps", [True, False])
def test_a_narrower_terminal_leaves_nothing_behind(wraps):
    terminal = Terminal(120, 24)
    view = LiveView(terminal.console)
    view.standing(STANDING)
    view.decided(EARLIER)
    view.begin("#13 an idea " + "of many words " * 9)
    view.event(STEP)
    for width, height in ((60, 24), (44, 14), (44, 30), (110, 30), (60, 12)):
        terminal.resize(view, width, height, wraps)
        view.event(STEP)
        view.note("after it")
        shown = terminal.lines
        assert sum("best 1.1924 bpb" in line for line in shown) == 1, (width, height, shown)
        assert sum("25%" in line for line in shown) == 1, (width, height, shown)
        assert sum("gain 0.0809" in line for line in shown) == 1, (width, height, shown)
        if height == 24:
            assert any(line.startswith("#11  discard") for line in shown), "the lines are still there"
        assert shown[-1].startswith(("12 experiments", "1 failed")), "the panel is the last on the screen"
    view.close()
    assert "best" not in " ".join(terminal.lines)
    assert terminal.lines[-1] == "after it", "the lines are still there"


def test_lines_stay_as_they_are():
    terminal = Terminal(90, 24)
    view = LiveView(terminal.console)
    view.note("a note of [brackets] " + "x" * 90)
    view.detail("not asked for")
    view.event({"event": "halved", "max_rows": 8, "reason": ""})
    view.stage("encoding", 0.5)
    view.stage("encoding", 1.0)
    view.decided(KEEP)
    view.close()
    assert outcome_line(KEEP) in terminal.lines
    assert "a note of [brackets] " + "x" * 90 in terminal.written, "a command to copy is not broken up"
    assert "not asked for" not in terminal.written
    assert "again with 8 rows" in terminal.written


def test_a_terminal_without_unicode():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="replace", write_through=True)
    view = LiveView(Console(file=stream, force_terminal=True, width=90, color_system=None))
    view.standing(STANDING)
    view.begin("#13 an idea")
    view.event(STEP)
    view.close()
    shown = raw.getvalue().decode()
    assert "gain 0.0809 +- 0.0300" in shown
    assert "?" not in shown.replace("\x1b[?25", "")
