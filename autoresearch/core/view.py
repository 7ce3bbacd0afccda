"""Where a search tells what it does. `report.terminal` implements it for terminals and for pipes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from autoresearch.core import noise
from autoresearch.core.history import History
from autoresearch.core.records import Record

if TYPE_CHECKING:
    from autoresearch.core.standing import Standing


@dataclass(frozen=True)
class Outcome:
    """A decided experiment, in what fits on one line."""

    number: int
    verdict: str
    """A contract.Verdict, or "baseline"."""
    val_bpb: float | None
    """None after a failure."""
    change: float | None
    """Score minus incumbent in bits per byte, negative is better; None where there is no score."""
    seconds: float
    """Of all its measurements, everything included."""
    hypothesis: str
    failure: str = ""
    """The reason of a failure."""
    suspect: bool = False
    """Whether it was judged by a measurement that the machine may have disturbed."""
    cost_usd: float = 0.0
    """Of the calls that proposed it."""


def outcome_of(record: Record, change: float | None, cost_usd: float = 0.0) -> Outcome:
    """What to show of a decided experiment.

    Args:
        change: against the incumbent that it was judged by.
        cost_usd: of its calls.
    """
    return Outcome(
        number=record.number,
        verdict="baseline" if record.number == 0 and record.kept else str(record.verdict),
        val_bpb=record.val_bpb,
        change=change,
        seconds=sum(result.total_seconds for result in record.results),
        hypothesis=record.hypothesis,
        failure=record.reason if record.failed else "",
        suspect=bool(record.results) and bool(record.results[-1].suspect),
        cost_usd=cost_usd,
    )


def gain_text(history: History) -> str:
    """From the baseline to the incumbent, in words, with the 95 % interval; "" where there is none."""
    baseline, best = history.baseline, history.incumbent
    if baseline is None or best is None or baseline.value is None or best.value is None:
        return ""
    if best.number and not history.current(baseline):
        return (
            f"best {best.value:.4f} bpb; the baseline was measured on another machine, or before this one changed its "
            "speed, so there is no gain to tell"
        )
    gain = noise.gain_interval(history)
    told = "0.0000" if gain is None else f"{gain.mean:.4f} ± {gain.half_width:.4f} (95 %)"
    return f"baseline {baseline.value:.4f} bpb, best {best.value:.4f}: gain {told}"


def note_of(event: Mapping[str, Any], history: History) -> str:
    """What an event of a journal is told as, in a line; "" for those that aren't told, or are told as an outcome.

    Args:
        history: with the event.
    """
    match event["event"]:
        case "withdrawn":
            best = history.incumbent
            again = f"; #{best.number} is the incumbent again" if best else ""
            return f"  #{event['n']} is withdrawn: {event['reason']}{again}"
        case "refused":
            return f"  refused: {event.get('origin') or event.get('hypothesis', '')}: {event['reason']}"
        case "failed":
            proposer = f"{event['proposer']}: " if event.get("proposer") else ""
            return f"  {proposer}no proposal: {event['kind']}: {event['reason']}"
    return ""


def show_command(workspace: Path, commit: str) -> str:
    """What prints the train.py of a commit, from any directory."""
    return f"git -C {shlex.quote(str(workspace))} show {commit[:12]}:./train.py"


class View(Protocol):
    """A search's audience."""

    def note(self, text: str) -> None:
        """Say one thing that is worth a line."""

    def detail(self, text: str) -> None:
        """Say what is told to those alone who asked for more (-v)."""

    def stage(self, name: str, share: float) -> None:
        """Show how far a long step before the search is, 0..1."""

    def begin(self, title: str) -> None:
        """A measurement starts."""

    def event(self, message: Mapping[str, Any]) -> None:
        """What the executor tells of the measurement that runs."""

    def decided(self, outcome: Outcome) -> None:
        """An experiment has its verdict."""

    def standing(self, standing: Standing) -> None:
        """Where the search stands, after each change."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class Relay:
    """A view that passes everything on to another one; the base of those that do something besides."""

    def __init__(self, view: View) -> None:
        self._view = view

    def note(self, text: str) -> None:
        self._view.note(text)

    def detail(self, text: str) -> None:
        self._view.detail(text)

    def stage(self, name: str, share: float) -> None:
        self._view.stage(name, share)

    def begin(self, title: str) -> None:
        self._view.begin(title)

    def event(self, message: Mapping[str, Any]) -> None:
        self._view.event(message)

    def decided(self, outcome: Outcome) -> None:
        self._view.decided(outcome)

    def standing(self, standing: Standing) -> None:
        self._view.standing(standing)

    def close(self) -> None:
        self._view.close()
