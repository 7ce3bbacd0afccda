"""The picture of a search's progress, drawn as the original autoresearch is known for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

from autoresearch.core.errors import AutoresearchError
from autoresearch.report.document import INSTALL_HINT, missing
from autoresearch.report.progress import Point, Progress, progress
from autoresearch.report.trajectory import Trajectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "progress.png"
NEEDED = ("matplotlib",)

_KEPT, _FADED, _FAILED = "#2ca02c", "#b0b0b0", "#c62828"
_LABEL_CHARACTERS = 48
_CHARACTER_PIXELS = 6.0
_APART = 11
"""Pixels between labels."""
_CROWD = 1000
"""Discards that are drawn smaller."""
_ROOM_FOR_LABELS = 0.12
"""Of the width, to the right of the last experiment."""


def png(trajectory: Trajectory) -> bytes:
    """A PNG of 1600 × 800 pixels.

    Raises:
        AutoresearchError: matplotlib isn't installed.
    """
    stream = BytesIO()
    figure(trajectory).savefig(stream, format="png")
    return stream.getvalue()


def figure(trajectory: Trajectory) -> Figure:
    """Grey discards, green keeps with what they changed, failures at the lower edge, and the incumbent's line.

    Raises:
        AutoresearchError: matplotlib isn't installed.
    """
    if missing(NEEDED):
        raise AutoresearchError("the picture needs matplotlib", INSTALL_HINT)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(16, 8), dpi=100, layout="constrained")
    FigureCanvasAgg(made)
    axes = made.add_subplot()
    axes.set_title(_title(trajectory), fontsize=13)
    axes.set_xlabel("experiment")
    axes.set_ylabel("val_bpb, lower is better")
    axes.grid(color="#e8e8e8")
    axes.set_axisbelow(True)
    if trajectory.rows:
        _draw(axes, progress(trajectory), trajectory)
    else:
        axes.text(0.5, 0.5, "nothing was measured yet", ha="center", transform=axes.transAxes)
    return made


def _title(trajectory: Trajectory) -> str:
    tried = sum(not row.is_baseline for row in trajectory.rows)
    kept, gain = len(trajectory.kept), trajectory.gain
    title = f"{trajectory.name}: {tried} experiment{'' if tried == 1 else 's'}, {kept} kept"
    baseline, best = trajectory.baseline, trajectory.best
    if gain and baseline is not None and best is not None and baseline.value:
        title += f", {baseline.value:.4f} to {best.value:.4f} ({-gain / baseline.value:+.2%})"
    return _plain(title)


def _draw(axes: Axes, laid_out: Progress, trajectory: Trajectory) -> None:
    from matplotlib.ticker import MaxNLocator

    low, high = laid_out.low, laid_out.high
    kept = [p for p in laid_out.points if (p.row.kept or p.row.is_baseline) and not p.row.failed]
    failed = [p for p in laid_out.points if p.row.failed]
    shown = {p.row.number for p in (*kept, *failed)}
    others = [p for p in laid_out.points if p.row.number not in shown]
    size = 22 if len(others) < _CROWD else 8
    _scatter(axes, [p for p in others if not p.edge], "discarded", color=_FADED, s=size)
    _scatter(axes, [p for p in others if p.edge], "off the scale", color=_FADED, s=26, marker="^")
    _scatter(axes, failed, "failed", color=_FAILED, s=30, marker="x", linewidths=1.2)
    if laid_out.line:
        x, y = zip(*laid_out.line, strict=True)
        axes.step(x, y, where="post", color=_KEPT, linewidth=1.6, alpha=0.8, label="best so far")
    _scatter(axes, kept, "kept", color=_KEPT, s=52, edgecolors="black", linewidths=0.6, zorder=3)
    if laid_out.elsewhere:
        numbers = [row.number for row in laid_out.elsewhere]
        label = "measured under other conditions"
        axes.axvspan(min(numbers) - 0.5, max(numbers) + 0.5, color="#f0f0f0", zorder=0, label=label)
    first, last = trajectory.rows[0].number, trajectory.rows[-1].number
    margin = max(0.5, 0.02 * (last - first))
    axes.set_xlim(first - margin, last + _ROOM_FOR_LABELS * (last - first) + margin)
    axes.set_ylim(low, high)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper right", framealpha=0.9)
    _label(axes, kept)


def _scatter(axes: Axes, points: list[Point], label: str, **style: object) -> None:
    if points:
        axes.scatter([p.row.number for p in points], [p.y for p in points], label=label, **style)  # type: ignore[arg-type]


def _label(axes: Axes, kept: Sequence[Point]) -> None:
    """Name the kept ones, the largest gain first, where no other label is; the baseline names itself."""
    drawn = axes.get_figure(root=True)
    assert drawn is not None, "the axes are on one"
    drawn.draw_without_rendering()  # from here on the layout stands
    frame = axes.get_window_extent()
    taken: list[tuple[float, float]] = []
    for point in sorted(kept, key=lambda p: p.row.gain or 0.0, reverse=True):
        x, y = axes.transData.transform((point.row.number, point.y))
        text = _plain(point.row.description)
        text = text if len(text) <= _LABEL_CHARACTERS else text[: _LABEL_CHARACTERS - 1] + "…"
        for side, up in ((1, 1), (1, -1), (-1, -1), (-1, 1)):
            steps = range(_APART, int(_CHARACTER_PIXELS * len(text)) + _APART, _APART)
            way = [(x + side * 0.87 * step, y + up * 0.5 * step) for step in steps]
            if all(frame.contains(*place) for place in way) and not _meets(way, taken):
                taken += way
                axes.annotate(
                    text,
                    (point.row.number, point.y),
                    xytext=(5 * side, 3 * up),
                    textcoords="offset points",
                    rotation=30 * side * up,
                    rotation_mode="anchor",
                    ha="left" if side > 0 else "right",
                    va="center",
                    fontsize=8,
                    color="#1d6f1d",
                )
                break


def _meets(way: Sequence[tuple[float, float]], taken: Sequence[tuple[float, float]]) -> bool:
    return any(math.dist(one, other) < _APART for one in way for other in taken)


def _plain(text: str) -> str:
    """One line that matplotlib takes as it is: dollar signs would begin mathematics."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split()).replace("$", r"\$")
