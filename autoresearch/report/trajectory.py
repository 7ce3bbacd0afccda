"""The path that a search took, whoever searched: what reports, comparisons and plots are made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import fsum
from pathlib import Path
from statistics import fmean
from typing import Any

from autoresearch.core import noise
from autoresearch.core.contract import Result
from autoresearch.core.history import History
from autoresearch.core.records import Record
from autoresearch.core.runs import SavedRun

FAILURES = ("crash", "timeout", "diverged", "out_of_memory", "invalid")


@dataclass(frozen=True)
class Row:
    """One decided experiment. Scores and gains are in bits per byte."""

    number: int
    """Of the experiment; of a foreign table, the place of the row, from 0."""
    verdict: str
    """keep (the baseline too), discard, or one of FAILURES."""
    description: str
    """The hypothesis."""
    val_bpb: float | None
    """That it was decided on; None after a failure, and where a foreign table gives none."""
    is_baseline: bool = False
    """Number 0 of a run; a foreign table may begin with a crash."""
    value: float | None = None
    """What it is worth by now: of a kept one the mean of its fresh measurements, else its score. None where it isn't
    comparable with the run's present comparability key."""
    value_n: int = 1
    """Measurements behind `value`."""
    gain: float | None = None
    """The incumbent's value minus its own, positive is better; None where they can't be compared."""
    withdrawn: str = ""
    """Why a keep was taken back."""
    near_miss: bool = False
    suspect: str = ""
    reason: str = ""
    category: str = ""
    proposer: str = ""
    commit: str = ""
    parent: int | None = None
    """Number of the incumbent that it was made from."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Values of the hyper-parameter section."""
    diff_lines: int = 0
    change_hash: str = ""
    """Equal for the same edit of another source, see `candidate.change_hash`; "" where it isn't known."""
    seconds: float = 0.0
    """Of all its measurements, everything included."""
    cost_usd: float = 0.0
    memory_bytes: int = 0
    """At the peak; 0 where it isn't known."""
    test_bpb: float | None = None
    """Mean on the held-out part of test that is scored along with val; None where there is none."""
    results: tuple[Result, ...] = ()
    """Its measurements."""
    decided_at: datetime | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Of the proposal, as the journal holds them."""

    @property
    def kept(self) -> bool:
        return self.verdict == "keep" and not self.withdrawn

    @property
    def failed(self) -> bool:
        return self.verdict in FAILURES

    @property
    def outcome(self) -> str:
        """For people: baseline, keep, withdrawn, discard, or the kind of the failure."""
        if self.withdrawn:
            return "withdrawn"
        return "baseline" if self.is_baseline and not self.failed else self.verdict


@dataclass(frozen=True)
class Trajectory:
    """One search."""

    name: str
    """Short, for legends and columns."""
    place: Path
    """What it was read from."""
    rows: tuple[Row, ...]
    """In order."""
    key: str = ""
    """Comparability key; "" where it isn't known: then it is comparable with nothing else."""
    backend: str = ""
    preset: str = ""
    device: str = ""
    spread: noise.Spread | None = None
    """Between seeds; None where nothing is known of it."""
    problems: tuple[str, ...] = ()
    """Rows that can't be read, each with its line number and why."""
    saved: SavedRun | None = None
    """The run itself; None for a foreign table."""

    @property
    def baseline(self) -> Row | None:
        """Where the search began; None where that failed or was measured under another key."""
        return next((row for row in self.rows if row.is_baseline and row.value is not None), None)

    @property
    def kept(self) -> list[Row]:
        """Keeps that stand, in order, the baseline not among them."""
        return [row for row in self.rows if row.kept and not row.is_baseline]

    @property
    def best(self) -> Row | None:
        """The incumbent: of a run, its latest keep; of a foreign table, the lowest score that was kept."""
        standing = [row for row in self.rows if (row.kept or row.is_baseline) and row.value is not None]
        if self.saved is not None:
            return standing[-1] if standing else None
        return min(standing, key=lambda row: row.value or 0.0, default=None)

    @property
    def gain(self) -> float | None:
        """From the baseline to the best."""
        baseline, best = self.baseline, self.best
        if baseline is None or best is None or baseline.value is None or best.value is None:
            return None
        return baseline.value - best.value

    @property
    def wins(self) -> list[Row]:
        """What was kept, by gain, the largest first."""
        return sorted((row for row in self.kept if row.gain is not None), key=lambda row: -(row.gain or 0.0))


def of_run(saved: SavedRun) -> Trajectory:
    """The trajectory of a run."""
    history = saved.history
    decided = [record for record in history.experiments.values() if record.verdict is not None]
    costs = _costs(history)
    return Trajectory(
        name=saved.tag,
        place=saved.folder,
        rows=tuple(_row(record, saved, costs.get(record.number, 0.0)) for record in decided),
        key=history.comparability_key,
        backend=history.settings.get("backend", ""),
        preset=history.settings.get("preset", ""),
        device=history.run.get("device", {}).get("name", ""),
        spread=noise.spread_of(history, history.rules),
        saved=saved,
    )


def _costs(history: History) -> dict[int, float]:
    """`History.cost_of` of all experiments at once: thousands of them have thousands of calls."""
    calls: dict[int, list[float]] = defaultdict(list)
    for charge in (*history.charges, *history.open_calls.values()):
        calls[charge.n].append(charge.usd)
    return {number: fsum(dollars) for number, dollars in calls.items()}


def _row(record: Record, saved: SavedRun, cost_usd: float) -> Row:
    history, held_out = saved.history, [test for _, test in saved.val_and_test(record)]
    return Row(
        number=record.number,
        verdict=str(record.verdict),
        description=record.hypothesis,
        val_bpb=record.val_bpb,
        is_baseline=record.number == 0,
        value=noise.value_of(history, record),
        value_n=record.value_n or 1,
        gain=noise.gain_of(history, record),
        withdrawn=record.withdrawn or "",
        near_miss=record.near_miss,
        suspect="; ".join(dict.fromkeys(result.suspect for result in record.results if result.suspect)),
        reason=record.reason,
        category=record.category,
        proposer=record.proposer,
        commit=record.commit,
        parent=record.parent,
        constants=record.constants,
        diff_lines=record.diff_lines,
        change_hash=record.change_hash,
        seconds=sum(result.total_seconds for result in record.results),
        cost_usd=cost_usd,
        memory_bytes=max((result.peak_memory_bytes for result in record.results), default=0),
        test_bpb=fmean(held_out) if held_out else None,
        results=record.results,
        decided_at=record.decided_at,
        facts=record.facts,
    )
