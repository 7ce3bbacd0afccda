"""The live view of a search: lines that stay, and below them a panel that moves."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from time import monotonic as _now
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from autoresearch.core.standing import Standing
from autoresearch.core.view import Outcome
from autoresearch.report import panel
from autoresearch.report.plain import outcome_line, phase_text

FRAME_SECONDS = 0.125
KEPT_LINES = 200
"""That can be shown again after the terminal became narrower."""

_STYLES = {"keep": "bold green", "discard": "dim", "baseline": "bold"}


class LiveView:
    """Lines that stay above a panel: what runs, what was reached, what is left until each limit.

    Args:
        console: a terminal.
        verbose: tell details.
    """

    def __init__(self, console: Console, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._signs = panel.ASCII if console.options.ascii_only else panel.UNICODE
        self._lines: deque[Text] = deque(maxlen=KEPT_LINES)
        self._standing: Standing | None = None
        self._doing: panel.Doing | None = None
        self._since = _now()
        self._title = ""
        self._frame = 0
        self._width = console.width
        self._drawn: list[int] = []
        """Columns of the panel's rows."""
        self._lock = threading.RLock()
        self._live = Live(self, console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._live.start()
        self._closed = threading.Event()
        threading.Thread(target=self._tick, daemon=True).start()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The panel, for the size that the terminal has now."""
        size = console.size
        rows = panel.rows(self._shown(), self._standing, size.width, size.height, self._signs, self._frame)
        self._drawn = [row.cell_len for row in rows]
        yield from rows

    def _shown(self) -> panel.Doing | None:
        doing = self._doing
        return None if doing is None else replace(doing, seconds=_now() - self._since)

    def note(self, text: str) -> None:
        self._print(Text(text))

    def detail(self, text: str) -> None:
        if self._verbose:
            self._print(Text(f"  {text}", style="dim"))

    def stage(self, name: str, share: float) -> None:
        # Not drawn at once: it may be called many times a second.
        self._doing = panel.Doing(name, share=share or None) if share < 1 else None

    def begin(self, title: str) -> None:
        self._since, self._title = _now(), title
        self._doing = panel.measuring({}, title)
        self._refresh()

    def event(self, message: Mapping[str, Any]) -> None:
        if message.get("event") == "halved":
            self.note(f"  {phase_text(message)}")
        # Drawn at once: a phase may be over before the next frame.
        self._doing = panel.measuring(message, self._title)
        self._refresh()

    def decided(self, outcome: Outcome) -> None:
        self._wait()
        self._decided(outcome)

    def _wait(self) -> None:
        self._since, self._doing = _now(), panel.Doing("waiting for the next proposal")

    def _decided(self, outcome: Outcome) -> None:
        style = _STYLES.get(outcome.verdict, "red")
        self._print(Text(outcome_line(outcome, self._console.width), style=style))

    def standing(self, standing: Standing) -> None:
        first, self._standing = self._standing is None, standing
        if first:
            for outcome in standing.last:
                self._decided(outcome)
            self._wait()
        if standing.stop_reason:
            self._doing = None
        self._refresh()

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            self._doing = self._standing = None
            self._live.stop()

    def _print(self, text: Text) -> None:
        with self._lock:
            self._lines.append(text)
            # The terminal wraps, so that a command copied from a long line stays one.
            self._console.print(text, highlight=False, soft_wrap=True)

    def _refresh(self) -> None:
        with self._lock:
            if self._closed.is_set():
                return
            width = self._console.width
            narrower, self._width = width < self._width, width
            if narrower:
                self._again()
            else:
                self._live.refresh()

    def _again(self) -> None:
        """The whole screen once more: of a panel that a narrower terminal wrapped, or cut, it can't be told how many
        rows it takes by now, so that it can't be taken back alone."""
        size = self._console.size
        # As many lines as a terminal that wraps has left on its screen: those above went to its history.
        room = size.height - 1 - sum(_rows_of(columns, size.width) for columns in self._drawn)
        last: deque[Text] = deque()
        for line in reversed(self._lines):
            room -= _rows_of(line.cell_len, size.width)
            if room < 0:
                break
            last.appendleft(line)
        # Row by row: what is erased as a whole would go to the history of some terminals.
        erase = [(ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_DOWN, 1)] * size.height
        clear = Control(ControlType.HOME, *erase, ControlType.HOME)
        self._console.print(clear, *last, sep="\n", highlight=False, soft_wrap=True)

    def _tick(self) -> None:
        while not self._closed.wait(FRAME_SECONDS):
            self._frame += 1
            try:
                self._refresh()
            except OSError:  # the terminal is gone; the main thread will hear of it
                return


def _rows_of(columns: int, width: int) -> int:
    return max(1, -(-columns // width))
