"""Where a search tells what it does. `report.terminal` implements it for terminals and for pipes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from autoresearch.core import noise
from autoresearch.core.history import History
from autoresearch.core.records import Record


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

    def close(self) -> None:
        """Leave the terminal as it was."""
