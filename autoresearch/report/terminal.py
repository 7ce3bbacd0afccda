"""What a person sees while a search runs: a live line on a terminal, plain and rate-limited lines elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import monotonic as _now
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from autoresearch.core.amounts import dollars
from autoresearch.core.view import Outcome, View

PLAIN_SECONDS = 15.0
"""What takes less than this is not told of on its way, where lines can't be taken back."""
BAR_WIDTH = 12
BESIDES_TITLE = 70
"""Columns of a live line that its title leaves to the spinner, the bar, the phase and the time."""

_STYLES = {"keep": "bold green", "discard": "dim", "baseline": "bold"}


def outcome_line(outcome: Outcome, width: int | None = None) -> str:
    """Number, verdict, score, change against the incumbent, seconds, dollars where it cost any, what was tried; after
    a failure, why; whether the machine may have made the score.

    Args:
        width: columns that are there; a long hypothesis is cut to fit, the reason of a failure is not.
    """
    score = "     -" if outcome.val_bpb is None else f"{outcome.val_bpb:.4f}"
    change = "       " if outcome.change is None else f"{outcome.change:+.4f}"
    verdict = outcome.verdict.replace("_", " ")
    head = f"#{outcome.number:<3d} {verdict:<13s} {score} bpb {change} {outcome.seconds:6.1f} s  "
    if outcome.cost_usd:
        head += f"{dollars(outcome.cost_usd)}  "
    failure = f": {outcome.failure}" if outcome.failure else " (suspect)" if outcome.suspect else ""
    room = None if width is None else max(20, width - len(head) - len(failure))
    return head + _short(outcome.hypothesis, room) + failure


def _short(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else text[: width - 1] + "…"


def _phase(message: Mapping[str, Any]) -> str | None:
    """The measurement's state in words; None where the message changes nothing."""
    match message.get("event"):
        case "started":
            return "set-up"
        case "clock_start":
            return "training"
        case "progress":
            return f"step {message['step']}, loss {message['loss']:.3f}, {message['tokens_per_second']:,.0f} tokens/s"
        case "clock_stop":
            return "scoring"
        case "halved":
            return f"out of memory: again with {message['max_rows']} rows in a micro-batch, the same total batch"
    return None


class PlainView:
    """Lines for a log or a pipe; never a carriage return.

    Args:
        stream: takes the lines.
        verbose: tell details, and every step on its way.
    """

    def __init__(self, stream: TextIO, verbose: bool = False) -> None:
        self._stream = stream
        self._verbose = verbose
        self._last = _now()
        self._title = ""

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def detail(self, text: str) -> None:
        if self._verbose:
            self.note(f"  {text}")

    def _on_its_way(self, text: str) -> None:
        if self._verbose or _now() - self._last >= PLAIN_SECONDS:
            self._last = _now()
            if self._title:
                self.note(f"  {self._title}")
                self._title = ""
            self.note(f"  {text}")

    def stage(self, name: str, share: float) -> None:
        self._on_its_way(f"{name} {share:.0%}" if share else name)

    def begin(self, title: str) -> None:
        self._last, self._title = _now(), title

    def event(self, message: Mapping[str, Any]) -> None:
        if (phase := _phase(message)) is None:
            return
        if message["event"] == "halved":
            self.note(f"  {phase}")
        elif message["event"] == "progress":
            self._on_its_way(f"training {message['progress']:.0%}, {phase}")
        else:
            self._on_its_way(phase)

    def decided(self, outcome: Outcome) -> None:
        self._title = ""
        self.note(outcome_line(outcome))

    def close(self) -> None:
        """Nothing to restore."""


class LiveView:
    """A rich progress line under the lines that stay.

    Args:
        console: a terminal.
        verbose: tell details.
    """

    def __init__(self, console: Console, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=BAR_WIDTH),
            TextColumn("{task.fields[phase]}", style="dim", markup=False),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
        )
        self._progress.start()
        self._task = self._progress.add_task("", total=1.0, phase="", visible=False)
        self._drawn: str | None = None

    def note(self, text: str) -> None:
        self._print(Text(text))

    def _print(self, text: Text) -> None:
        # The terminal wraps, so that a command copied from a long line stays one.
        self._progress.console.print(text, highlight=False, soft_wrap=True)

    def detail(self, text: str) -> None:
        if self._verbose:
            self._print(Text(f"  {text}", style="dim"))

    def stage(self, name: str, share: float) -> None:
        self._progress.update(self._task, description=name, completed=share, phase="", visible=share < 1)

    def begin(self, title: str) -> None:
        short = _short(title, max(12, self._console.width - BESIDES_TITLE))
        self._progress.reset(self._task, description=short, phase="set-up", visible=True)

    def event(self, message: Mapping[str, Any]) -> None:
        if (phase := _phase(message)) is None:
            return
        if message["event"] == "halved":
            self.note(f"  {phase}")
        share = message.get("progress", 1.0 if message["event"] == "clock_stop" else 0.0)
        # Each phase is drawn at once: a short one may be over before the next of rich's ten frames a second.
        new, self._drawn = message["event"] != self._drawn, message["event"]
        self._progress.update(self._task, completed=share, phase=phase, refresh=new)

    def decided(self, outcome: Outcome) -> None:
        self._progress.update(self._task, visible=False, refresh=True)
        self._print(Text(outcome_line(outcome, self._console.width), style=_STYLES.get(outcome.verdict, "red")))

    def close(self) -> None:
        self._progress.stop()


def make_view(stream: TextIO, verbose: bool = False) -> View:
    """The live view where `stream` is a terminal that can move its cursor, else the plain one."""
    console = Console(file=stream)
    # Continuous integration often offers a terminal, and keeps every frame that is drawn on it.
    live = console.is_terminal and not console.is_dumb_terminal and not os.environ.get("CI")
    return LiveView(console, verbose) if live else PlainView(stream, verbose)
