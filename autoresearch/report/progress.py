"""Where the points of a progress plot lie: a scale that bad scores don't flatten, and the incumbent's line."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Literal, NamedTuple

from autoresearch.report.trajectory import Row, Trajectory

Edge = Literal["", "top", "bottom"]

_ROOM = 0.12
"""Of the gain, left below the best."""
_MOST_ABOVE = 3.0
"""Gains above the baseline that the scale shows at most."""
_SHARE = 0.9
"""Of all scores that it shows where that needs less."""

_INSET = 0.03
"""Of the scale, between an edge and what lies at it."""


class Point(NamedTuple):
    """One experiment on the plot."""

    row: Row
    y: float
    """In bits per byte."""
    edge: Edge
    """Where it lies because it has no score ("bottom": a failure), or one that is off the scale ("top")."""


class Progress(NamedTuple):
    """What is drawn."""

    points: list[Point]
    """Without those that aren't comparable with the present comparability key."""
    low: float
    high: float
    """Of the scale, in bits per byte."""
    line: list[tuple[int, float]]
    """(experiment, value) of the baseline, then of each keep that stands; the last one's value once more at the end."""
    elsewhere: list[Row]
    """Scored, and not comparable."""


def progress(trajectory: Trajectory) -> Progress:
    """Lay out a trajectory."""
    scored = [row for row in trajectory.rows if row.value is not None]
    low, high = _scale(trajectory, scored)
    inset = _INSET * (high - low)
    points = []
    for row in trajectory.rows:
        if row.failed:
            points.append(Point(row, low + inset, "bottom"))
        elif row.value is not None:
            off = row.value > high
            points.append(Point(row, high - inset if off else row.value, "top" if off else ""))
    standing = [row for row in scored if row.kept or (row.is_baseline and not row.failed)]
    line = [(row.number, row.value) for row in standing if row.value is not None]
    if line:
        line.append((trajectory.rows[-1].number, line[-1][1]))
    elsewhere = [row for row in trajectory.rows if row.val_bpb is not None and row.value is None]
    return Progress(points, low, high, line, elsewhere)


def _scale(trajectory: Trajectory, scored: Sequence[Row]) -> tuple[float, float]:
    """From a little below the lowest score to the baseline, and as much above it as most scores need."""
    values = sorted(row.value for row in scored if row.value is not None)
    if not values:
        return 0.0, 1.0
    baseline = trajectory.baseline
    middle = baseline.value if baseline is not None and baseline.value is not None else values[len(values) // 2]
    spread = trajectory.spread.value if trajectory.spread else 0.0
    span = max(middle - values[0], 4 * spread, 1e-3 * abs(middle), 1e-9)
    needed = values[ceil(_SHARE * (len(values) - 1))] - middle
    top = middle + min(max(needed, 0.35 * span), _MOST_ABOVE * span)
    return values[0] - _ROOM * span, top + _ROOM / 2 * span
