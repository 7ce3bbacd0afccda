"""A search in lines that stay: one for each experiment, rare ones on its way. For logs, pipes and simple terminals."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic as _now
from typing import Any, TextIO

from autoresearch.core.amounts import dollars
from autoresearch.core.standing import Standing
from autoresearch.core.view import Outcome

PLAIN_SECONDS = 15.0
"""What takes less than this is not told of on its way, where lines can't be taken back."""


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


def phase_text(message: Mapping[str, Any]) -> str | None:
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
        if (phase := phase_text(message)) is None:
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

    def standing(self, standing: Standing) -> None:
        """Nothing: the lines of the experiments say it."""

    def close(self) -> None:
        """Nothing to restore."""
