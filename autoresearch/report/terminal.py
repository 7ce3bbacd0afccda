"""What a person sees while a search runs: a live line on a terminal, plain and rate-limited lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic as _now
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from autoresearch.core.view import Outcome, View

PLAIN_SECONDS = 15.0

_STYLES = {"keep": "bold green", "discard": "dim", "baseline": "bold"}


def outcome_line(outcome: Outcome) -> str:
    """Number, verdict, score, change against the incumbent, seconds, and what was tried."""
    score = "     -" if outcome.val_bpb is None else f"{outcome.val_bpb:.4f}"
    change = "       " if outcome.change is None else f"{outcome.change:+.4f}"
    verdict = outcome.verdict.replace("_", " ")
    return f"#{outcome.number:<3d} {verdict:<13s} {score} bpb {change}  {outcome.seconds:4.0f} s  {outcome.what}"


def _phase(message: Mapping[str, Any]) -> str | None:
    """The measurement's state in words; None where the message changes nothing."""
    match message.get("event"):
        case "started":
            return "set-up"
        case "clock_start":
            return "training"
        case "progress":
            return (
                f"training {message['progress']:.0%}, step {message['step']}, loss {message['loss']:.3f}, "
                f"{message['tokens_per_second']:,.0f} tokens/s"
            )
        case "clock_stop":
            return "scoring"
        case "halved":
            return f"out of memory: again with {message['max_rows']} rows in a micro-batch, the same total batch"
    return None


class PlainView:
    """Lines for a log or a pipe; never a carriage return."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = 0.0

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def note(self, text: str) -> None:
        self._print(text)

    def _limited(self, text: str) -> None:
        if _now() - self._last >= PLAIN_SECONDS:
            self._last = _now()
            self._print(text)

    def stage(self, name: str, share: float) -> None:
        self._limited(f"  {name} {share:.0%}")

    def begin(self, title: str) -> None:
        self._last = _now()
        self._print(f"  {title}")

    def event(self, message: Mapping[str, Any]) -> None:
        if (phase := _phase(message)) is None:
            return
        if message["event"] == "halved":
            self._print(f"  {phase}")
        else:
            self._limited(f"  {phase}")

    def decided(self, outcome: Outcome) -> None:
        self._print(outcome_line(outcome))

    def close(self) -> None:
        """Nothing to restore."""


class LiveView:
    """A rich progress line under the lines that stay."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[phase]}", style="dim"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
        )
        self._progress.start()
        self._task = self._progress.add_task("", total=1.0, phase="", visible=False)

    def note(self, text: str) -> None:
        self._progress.console.print(escape(text), highlight=False)

    def stage(self, name: str, share: float) -> None:
        self._progress.update(self._task, description=escape(name), completed=share, phase="", visible=share < 1)

    def begin(self, title: str) -> None:
        short = title if len(title) <= 60 else title[:59] + "…"
        self._progress.reset(self._task, description=escape(short), phase="set-up", visible=True)

    def event(self, message: Mapping[str, Any]) -> None:
        if (phase := _phase(message)) is None:
            return
        if message["event"] == "halved":
            self.note(phase)
        share = message.get("progress", 1.0 if message["event"] == "clock_stop" else 0.0)
        self._progress.update(self._task, completed=share, phase=phase)

    def decided(self, outcome: Outcome) -> None:
        self._progress.update(self._task, visible=False)
        style = _STYLES.get(outcome.verdict, "red")
        self._progress.console.print(escape(outcome_line(outcome)), style=style, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()


def make_view(stream: TextIO) -> View:
    """The live view where `stream` is a terminal that can move its cursor, else the plain one."""
    console = Console(file=stream)
    return LiveView(console) if console.is_terminal and not console.is_dumb_terminal else PlainView(stream)
