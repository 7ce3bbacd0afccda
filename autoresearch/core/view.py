"""Where a search tells what it does. `report.terminal` implements it for terminals and for pipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from autoresearch.core.history import Record


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
    what: str
    """The hypothesis, and the reason of a failure."""


def outcome_of(record: Record, change: float | None) -> Outcome:
    """What to show of a decided experiment; `change` is against the incumbent that it was judged by."""
    what = record.hypothesis if not record.failed else f"{record.hypothesis}: {record.reason}"
    return Outcome(
        number=record.number,
        verdict="baseline" if record.number == 0 and record.kept else str(record.verdict),
        val_bpb=record.val_bpb,
        change=change,
        seconds=sum(result.total_seconds for result in record.results),
        what=what,
    )


class View(Protocol):
    """A search's audience."""

    def note(self, text: str) -> None:
        """Say one thing that is worth a line."""

    def stage(self, name: str, share: float) -> None:
        """Show how far a long step before the search is, 0..1."""

    def begin(self, title: str) -> None:
        """A measurement starts."""

    def event(self, message: Mapping[str, Any]) -> None:
        """What the executor tells of the measurement that runs."""

    def decided(self, outcome: Outcome) -> None:
        """An experiment has its verdict."""

    def close(self) -> None:
        """Leave the terminal as it was."""
