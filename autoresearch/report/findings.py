"""What the numbers of a search say: what was gained, how sure that is, what mattered, and how even the machine was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any, NamedTuple

from autoresearch.core import noise
from autoresearch.core.audits import Audits
from autoresearch.core.contract import Result
from autoresearch.core.history import History
from autoresearch.core.interval import Interval
from autoresearch.core.journal import Journal
from autoresearch.core.runs import SavedRun
from autoresearch.report import audit as audit_report
from autoresearch.report.trajectory import Row, Trajectory

_TOLD = 3
"""Of the changes that mattered most."""


class Conclusion(NamedTuple):
    """Sentences for a person; "" where there is nothing to say."""

    gained: str
    audited: str
    mattered: str
    sure: str

    def __str__(self) -> str:
        return "\n".join(filter(None, self))


class Category(NamedTuple):
    """What the experiments of one category came to, the baseline not among them."""

    name: str
    tried: int
    kept: int
    failed: int
    gain: float
    """Sum over those that were kept, in bits per byte."""
    seconds: float
    cost_usd: float


class Pace(NamedTuple):
    """How fast one measurement was, against others that should have been as fast."""

    order: int
    """Its place among all measurements of the run, from 0."""
    number: int
    """Of its experiment."""
    tokens: float | None
    """Its tokens/s over the median of all measurements of the same source; None where it is the only one."""
    probe: float | None
    """The device probe before training over its median; None where it was not probed."""
    suspect: bool


def conclude(trajectory: Trajectory, audited: str = "") -> Conclusion:
    """The conclusion on a run.

    Args:
        trajectory: of a run, not of a foreign table.
        audited: conclusion of its audit, "" where there is none.
    """
    assert trajectory.saved is not None, "a foreign table has no history"
    history = trajectory.saved.history
    gain = noise.gain_interval(history)
    told = f"Audit: {audited}." if audited else ""
    return Conclusion(_gained(trajectory, gain), told, _mattered(trajectory), _sure(trajectory, gain, audited))


def _gained(trajectory: Trajectory, gain: Interval | None) -> str:
    rows, baseline, best = trajectory.rows, trajectory.baseline, trajectory.best
    if not rows:
        return "Nothing was measured yet."
    if rows[0].failed:
        return f"The baseline failed, so no change could be judged: {rows[0].verdict}: {rows[0].reason}"
    if best is None or best.value is None:
        return "Nothing was measured on this machine yet."
    if baseline is None or baseline.value is None:
        return (
            f"The best train.py scores {best.value:.4f} bpb. The baseline was measured on another machine, or before "
            "this one changed its speed, so there is no gain to tell."
        )
    if gain is None:
        return f"No gain yet: {_nothing_kept(len(rows) - 1)}. The baseline is {baseline.value:.4f} bpb."
    return (
        f"val_bpb went from {baseline.value:.4f} to {best.value:.4f}: "
        f"a gain of {gain.mean:.4f} ± {gain.half_width:.4f} bpb, {gain.mean / baseline.value:.1%}."
    )


def _nothing_kept(changes: int) -> str:
    if changes < 2:
        return "the one change was not kept" if changes else "no change was tried"
    return f"none of {changes} changes was kept"


def _sure(trajectory: Trajectory, gain: Interval | None, audited: str) -> str:
    baseline, best = trajectory.baseline, trajectory.best
    if gain is None or baseline is None or best is None:
        return ""
    basis = (
        f"95 % confidence, from the spread between seeds {trajectory.spread}; measured: "
        f"the baseline {_times(baseline.value_n)}, the best {_times(best.value_n)}."
    )
    if audited:
        return basis
    if gain.low <= 0:
        return f"That can't be told from noise: {basis} More of them: autoresearch audit"
    return f"{basis} Not audited on held-out text: autoresearch audit"


def _mattered(trajectory: Trajectory) -> str:
    wins = [row for row in trajectory.wins if (row.gain or 0) > 0]
    total = sum(row.gain or 0 for row in wins)
    if not wins:
        return ""
    told = (f"#{row.number} {row.description} (−{row.gain:.4f}, {(row.gain or 0) / total:.0%})" for row in wins[:_TOLD])
    rest = len(wins) - _TOLD
    return f"What mattered: {'; '.join(told)}" + (f"; and {rest} more." if rest > 0 else ".")


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def audit_of(saved: SavedRun) -> dict[str, Any] | None:
    """The document of the latest audit of the run's incumbent; None where it wasn't audited, or not far enough."""
    path, best = saved.folder / "audits.jsonl", saved.history.incumbent
    if best is None:
        return None
    measured = Audits.from_events(Journal(path).read(), str(path)).measured
    for subject in reversed([subject for subject in measured if subject.incumbent == best.number]):
        try:
            return audit_report.document(saved, subject)
        except ValueError:
            continue  # fewer than two measurements of either
    return None


def by_category(rows: Iterable[Row]) -> list[Category]:
    """The largest gain first."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if not row.is_baseline:
            groups[row.category or "other"].append(row)
    found = [
        Category(
            name,
            len(group),
            sum(row.kept for row in group),
            sum(row.failed for row in group),
            sum(row.gain or 0.0 for row in group if row.kept),
            sum(row.seconds for row in group),
            sum(row.cost_usd for row in group),
        )
        for name, group in groups.items()
    ]
    return sorted(found, key=lambda category: (-category.gain, -category.tried, category.name))


def pace(history: History) -> list[Pace]:
    """Of every measurement that trained; tokens/s is compared for equal sources alone."""
    placed = {place: record.number for record in history.experiments.values() for place in record.places}
    results = [(order, result) for order, result in enumerate(history.results) if result.status == "ok"]
    tokens = _relative(results, lambda r: (r.comparability_key, r.source_hash), lambda r: r.tokens_per_second, 2)
    probes = _relative(results, lambda r: r.comparability_key, lambda r: r.probe_before, 2)
    return [
        Pace(order, placed[order], tokens.get(order), probes.get(order), bool(result.suspect))
        for order, result in results
        if order in placed and (order in tokens or order in probes)
    ]


def _relative(
    results: Iterable[tuple[int, Result]],
    group_of: Callable[[Result], object],
    number_of: Callable[[Result], float | None],
    fewest: int,
) -> dict[int, float]:
    """Each number over the median of its group, by order; groups of fewer than `fewest` are left out."""
    groups: dict[object, list[tuple[int, float]]] = defaultdict(list)
    for order, result in results:
        if number := number_of(result):
            groups[group_of(result)].append((order, number))
    found = {}
    for group in groups.values():
        middle = median(number for _, number in group)
        if len(group) >= fewest:
            found.update({order: number / middle for order, number in group})
    return found
