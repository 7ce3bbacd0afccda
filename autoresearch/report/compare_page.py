"""The page of `autoresearch compare --html`: the sections of the text, and the paths of the searches in one figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from autoresearch.core.files import write_atomic
from autoresearch.report.compare_text import Section, sections
from autoresearch.report.document import Figure, render
from autoresearch.report.document import document as page

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#eeca3b")
"""Legible on light and on dark ground."""
DASHES = ("solid", "dash", "dot", "dashdot")


def write(document: Mapping[str, Any], path: Path) -> None:
    """Write the page of a comparison.

    Raises:
        AutoresearchError: it can't be written, or the extra `report` isn't installed.
    """
    write_atomic(path, html(document))


def html(document: Mapping[str, Any]) -> str:
    """The page.

    Args:
        document: of `compare.document`.
    """
    parts: Sequence[Section] = sections(document)
    figures = {name: figure for name in ("experiment", "hours") if (figure := _paths(document["runs"], name))}
    title = "compared: " + ", ".join(run["name"] for run in document["runs"])
    body = render("compare.html", title=title, conclusion=parts[0].lines, parts=parts[1:], figures=figures)
    return page(title, body, figures)


def _paths(runs: Sequence[Mapping[str, Any]], axis: str) -> Figure | None:
    """The relative gain of the best so far, by experiments or by hours; None where no search tells of these."""
    traces = []
    for place, run in enumerate(runs):
        points = [point for point in run["curve"] if point[axis] is not None]
        if points:
            colour, dash = COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)]
            traces.append(
                {
                    "x": [point[axis] for point in points],
                    "y": [100 * point["relative_gain"] for point in points],
                    "name": escape(run["name"]),  # a legend reads markup
                    "mode": "lines+markers",
                    "line": {"shape": "hv", "color": colour, "dash": dash},
                    "marker": {"size": 5},
                    "hovertemplate": "%{x:.4g}: %{y:.3f} %",
                }
            )
    unit = {"experiment": "experiments", "hours": "hours"}[axis]
    layout = {"xaxis": {"title": {"text": unit}}, "yaxis": {"title": {"text": "gain over the own baseline, %"}}}
    return Figure(traces, layout) if traces else None
