"""One search in numbers that can stand beside those of another one, whatever both were measured on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from autoresearch.core import noise
from autoresearch.core.contract import Result
from autoresearch.report.moves import effect_of
from autoresearch.report.trajectory import Row, Trajectory

WINS = 10
"""Of the largest gains, as many are listed."""


def in_numbers(trajectory: Trajectory, label: str) -> dict[str, Any]:
    """The entry of a search in the document of `compare`.

    Args:
        label: its name among the others.
    """
    tried = [row for row in trajectory.rows if not row.is_baseline]
    clock = hours(trajectory)
    total = clock[-1] if clock else None
    gain = relative_gain(trajectory)
    return {
        "name": label,
        "place": str(trajectory.place),
        "kind": "run" if trajectory.saved else "table",
        "backend": trajectory.backend,
        "preset": trajectory.preset,
        "device": trajectory.device,
        "comparability_key": trajectory.key or None,
        "rows": dict(Counter(row.verdict for row in trajectory.rows)),
        "experiments": len(tried),
        "kept": len(trajectory.kept),
        "discarded": sum(not row.kept and not row.failed for row in tried),
        "withdrawn": sum(bool(row.withdrawn) for row in tried),
        "failed": sum(row.failed for row in tried),
        "baseline": _standing(trajectory.baseline),
        "best": _standing(trajectory.best),
        "gain": trajectory.gain,
        "relative_gain": gain["value"],
        "relative_gain_interval": gain["interval"],
        "spread": None if trajectory.spread is None else trajectory.spread.value,
        "hours": total,
        "gain_per_experiment": gain["value"] / len(tried) if gain["value"] is not None and tried else None,
        "gain_per_hour": gain["value"] / total if gain["value"] is not None and total else None,
        "wins": [_change(row) for row in trajectory.wins[:WINS]],
        "kept_changes": [_change(row) for row in trajectory.kept],
        "categories": _categories(tried),
        "throughput": {
            "baseline": _throughput(trajectory, trajectory.baseline),
            "best": _throughput(trajectory, trajectory.best),
            "drift": _drift(trajectory),
        },
        "wasted": _wasted(trajectory, tried),
        "curve": curve(trajectory),
        "problems": list(trajectory.problems),
    }


def _standing(row: Row | None) -> dict[str, Any] | None:
    if row is None:
        return None
    return {
        "experiment": row.number,
        "val_bpb": row.value,
        "n": row.value_n,
        "commit": row.commit,
        "description": row.description,
    }


def _change(row: Row) -> dict[str, Any]:
    return {
        "experiment": row.number,
        "val_bpb": row.value,
        "gain": row.gain,
        "relative_gain": effect_of(row),
        "category": row.category,
        "commit": row.commit,
        "description": row.description,
    }


def relative_gain(trajectory: Trajectory) -> dict[str, Any]:
    """From the baseline to the best, as a share of the baseline's value.

    The interval is that of the gain in bits per byte, see `noise.gain_interval`, divided by the baseline's value: that
    the value itself varies matters a gain's share of the gain's error.
    """
    baseline, gain = trajectory.baseline, trajectory.gain
    if baseline is None or gain is None or not baseline.value:
        return {"value": None, "interval": None}
    found = noise.gain_interval(trajectory.saved.history) if trajectory.saved else None
    share = None if found is None else {"low": found.low / baseline.value, "high": found.high / baseline.value}
    return {"value": gain / baseline.value, "interval": share}


def hours(trajectory: Trajectory) -> list[float]:
    """Since the search began, after each row: by the seconds of measurements, else by time stamps; [] without both."""
    if any(row.seconds for row in trajectory.rows):
        total, told = 0.0, []
        for row in trajectory.rows:
            total += row.seconds / 3600
            told.append(total)
        return told
    stamps = [row.decided_at for row in trajectory.rows]
    first = next((stamp for stamp in stamps if stamp is not None), None)
    if first is None or len(set(stamps)) < 2:
        return []
    latest, told = 0.0, []
    for stamp in stamps:
        latest = max(latest, (stamp - first).total_seconds() / 3600 if stamp is not None else 0.0)
        told.append(latest)
    return told


def curve(trajectory: Trajectory) -> list[dict[str, float | int | None]]:
    """The relative gain of the best so far: where it changes, and at both ends."""
    baseline, clock = trajectory.baseline, hours(trajectory)
    points: list[dict[str, float | int | None]] = []
    if baseline is None or not baseline.value:
        return points
    best = math.inf
    for place, row in enumerate(trajectory.rows):
        better = row.value is not None and (row.kept or row.is_baseline) and row.value < best
        if better:
            best = row.value or best
        if math.isfinite(best) and (better or place == len(trajectory.rows) - 1):
            passed = clock[place] if clock else None
            share = (baseline.value - best) / baseline.value
            points.append({"experiment": row.number, "hours": passed, "relative_gain": share})
    return points


def _categories(tried: Sequence[Row]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in tried:
        one = found.setdefault(row.category or "none named", {"tried": 0, "kept": 0, "relative_gain": 0.0})
        one["tried"] += 1
        one["kept"] += row.kept
        one["relative_gain"] += (effect_of(row) or 0.0) if row.kept else 0.0
    return dict(sorted(found.items(), key=lambda item: -item[1]["relative_gain"]))


def _throughput(trajectory: Trajectory, row: Row | None) -> dict[str, float] | None:
    """Means over a row's measurements on the run's present machine."""
    here = _here(trajectory, row)
    if not here:
        return None
    names = ("steps", "tokens", "tokens_per_second", "num_params", "train_seconds")
    return {name: fmean(getattr(result, name) for result in here) for name in names}


def _here(trajectory: Trajectory, row: Row | None) -> list[Result]:
    results = row.results if row is not None else ()
    return [result for result in results if result.status == "ok" and result.comparability_key == trajectory.key]


def _drift(trajectory: Trajectory) -> dict[str, Any] | None:
    """How tokens/s of one source changed from its first measurement to its last; None where none was repeated."""
    changes = []
    for row in trajectory.rows:
        rates = [result.tokens_per_second for result in _here(trajectory, row) if result.tokens_per_second]
        if len(rates) >= 2:
            changes.append(rates[-1] / rates[0] - 1)
    if not changes:
        return None
    return {"experiments": len(changes), "median": median(changes), "largest": max(changes, key=abs)}


def _wasted(trajectory: Trajectory, tried: Sequence[Row]) -> dict[str, Any]:
    """What gave nothing."""
    history = trajectory.saved.history if trajectory.saved else None
    lost = [row for row in tried if not row.kept]
    total = math.fsum(row.seconds for row in trajectory.rows)
    spent = math.fsum(row.seconds for row in lost)
    return {
        "failures": dict(Counter(row.verdict for row in tried if row.failed)),
        "refused": len(history.refusals) if history else None,
        "duplicates": sum("duplicate" in refusal.reason for refusal in history.refusals) if history else None,
        "failed_rounds": len(history.outages) if history else None,
        "hours_discarded": math.fsum(row.seconds for row in lost if not row.failed) / 3600 if total else None,
        "hours_failed": math.fsum(row.seconds for row in lost if row.failed) / 3600 if total else None,
        "share_of_hours": spent / total if total else None,
    }
