"""The page of a run: one HTML file with all that its journal tells, the conclusion first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from autoresearch.core.amounts import dollars
from autoresearch.core.contract import Result
from autoresearch.core.files import write_atomic
from autoresearch.core.records import Record
from autoresearch.core.runs import SavedRun
from autoresearch.core.view import show_command
from autoresearch.report import audit as audit_report
from autoresearch.report import summary
from autoresearch.report.diffs import unified
from autoresearch.report.document import Figure, document, render
from autoresearch.report.findings import Pace, audit_of, by_category, conclude, pace
from autoresearch.report.progress import Point, progress
from autoresearch.report.trajectory import Row, Trajectory, of_run

NAME = "report.html"

_MOST_REFUSALS = 200
"""Refused proposals, and rounds without one, that are told: the latest."""


def write(saved: SavedRun, folder: Path) -> Path:
    """Write the page of a run as `report.html`; where it lies.

    Raises:
        AutoresearchError: the extra `report` isn't installed, or the file can't be written.
    """
    path = folder / NAME
    write_atomic(path, build(saved))
    return path


def build(saved: SavedRun) -> str:
    """The page of a run.

    Raises:
        AutoresearchError: the extra `report` isn't installed.
    """
    trajectory = of_run(saved)
    history = saved.history
    audit = audit_of(saved)
    paces = pace(history)
    along = audit_report.along(saved)["experiments"]
    best = history.incumbent
    figures = {}
    if len(along) > 1:
        figures["gap"] = _gap_figure(along)
    if len(paces) > 1:
        figures["pace"] = _pace_figure(paces)
    if history.charges:
        figures["cost"] = _cost_figure(trajectory)
    laid_out = progress(trajectory)
    body = render(
        "report.html",
        tag=saved.tag,
        status=summary.status(saved),
        conclusion=conclude(trajectory, audit["conclusion"] if audit else ""),
        baseline=trajectory.baseline,
        best=trajectory.best,
        gain=trajectory.gain,
        elsewhere=len(laid_out.elsewhere),
        hours=sum(row.seconds for row in trajectory.rows) / 3600,
        rows=trajectory.rows,
        categories=by_category(trajectory.rows),
        figures=figures,
        audit=audit_report.text(audit) if audit else "",
        refusals=history.refusals[-_MOST_REFUSALS:],
        refused=len(history.refusals),
        outages=history.outages[-_MOST_REFUSALS:],
        show=show_command(saved.place, best.commit) if best and best.commit and saved.workspace else "",
        most=_MOST_REFUSALS,
        dollars=dollars,
        written=datetime.now().astimezone(),
    )
    data = {
        "rows": [_row(row) for row in trajectory.rows],
        "progress": {
            "points": [_point(point) for point in laid_out.points],
            "scale": [laid_out.low, laid_out.high],
            "line": laid_out.line,
            "elsewhere": [row.number for row in laid_out.elsewhere],
        },
    }
    scripts = ["report.js"] if trajectory.rows else []
    return document(f"{saved.tag} · autoresearch", body, figures, data, _details(saved, trajectory), scripts)


def _row(row: Row) -> dict[str, Any]:
    """What the table and the plot show of an experiment."""
    return {
        "n": row.number,
        "outcome": row.outcome,
        "group": _group(row),
        "score": _rounded(row.val_bpb),
        "value": _rounded(row.value),
        "of": row.value_n,
        "gain": _rounded(row.gain),
        "what": row.description,
        "category": row.category or "other",
        "proposer": row.proposer,
        "why": row.withdrawn or row.reason,
        "seconds": round(row.seconds, 1),
        "cost": round(row.cost_usd, 4),
        "marks": _marks(row),
    }


def _group(row: Row) -> str:
    """What it is filtered and coloured by."""
    return "failure" if row.failed else row.outcome


def _marks(row: Row) -> list[str]:
    found = []
    if row.near_miss:
        found.append("near miss")
    if row.suspect:
        found.append("suspect")
    if row.val_bpb is not None and row.value is None:
        found.append("not comparable")
    return found


def _point(point: Point) -> list[Any]:
    return [point.row.number, _rounded(point.y), point.edge]


def _rounded(number: float | None, digits: int = 6) -> float | None:
    return None if number is None else round(number, digits)


def _details(saved: SavedRun, trajectory: Trajectory) -> list[dict[str, Any]]:
    """What is shown of one experiment alone, in the order of the rows."""
    sources, tests = saved.sources(), saved.test_scores
    records = (saved.history.experiments[row.number] for row in trajectory.rows)
    return [_detail(record, sources, tests) for record in records]


def _detail(record: Record, sources: Mapping[int, str], tests: Mapping[tuple[int, int], float]) -> dict[str, Any]:
    parent = record.parent
    known = parent is not None and parent in sources and record.number in sources
    logs = [result.log_tail for result in record.results if result.log_tail]
    return {
        "commit": record.commit,
        "parent": parent,
        "diff": unified(sources[parent], sources[record.number]) if known and parent is not None else None,
        "results": [_result(result, tests.get((record.number, k))) for k, result in enumerate(record.results)],
        "log": logs[-1] if logs else "",
    }


def _result(result: Result, test_bpb: float | None) -> dict[str, Any]:
    return {
        "status": result.status,
        "reason": result.reason,
        "suspect": result.suspect,
        "val": _rounded(result.val_bpb),
        "test": _rounded(test_bpb),
        "seconds": round(result.train_seconds, 1),
        "steps": result.steps,
        "tokens_per_second": round(result.tokens_per_second),
        "params": result.num_params,
        "memory": result.peak_memory_bytes,
        "mfu": _rounded(result.mfu, 4),
        "seed": result.seed,
        "key": result.comparability_key,
        "curve": _columns(result.loss_curve),
    }


def _columns(curve: Sequence[tuple[float, float]]) -> list[list[float]]:
    """Progress, and loss in nats; rounded by NumPy, since a long run has a million of these numbers."""
    columns: list[list[float]] = np.round(np.array(curve, float).reshape(-1, 2).T, 4).tolist()
    return columns


def _scatter(name: str, x: list[Any], y: list[Any], colour: str, **more: Any) -> dict[str, Any]:
    marker = {"color": f"var(--{colour})", "size": 7}
    return {"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "marker": marker, **more}


def _gap_figure(along: list[dict[str, Any]]) -> Figure:
    traces = []
    for name, kept, colour in (("not kept", False, "discarded"), ("kept", True, "kept")):
        rows = [row for row in along if row["kept"] == kept]
        hover = "#%{x}: test − val %{y:+.4f} bpb<extra></extra>"
        x, y = [row["experiment"] for row in rows], [_rounded(row["gap"]) for row in rows]
        traces.append(_scatter(name, x, y, colour, hovertemplate=hover))
    return Figure(traces, {"xaxis": {"title": {"text": "experiment"}}, "yaxis": {"title": {"text": "test − val, bpb"}}})


def _pace_figure(paces: list[Pace]) -> Figure:
    traces = []
    kinds = (("tokens/s of equal sources", "tokens", "accent"), ("device probe", "probe", "discarded"))
    for name, attribute, colour in kinds:
        shown = [one for one in paces if getattr(one, attribute) is not None]
        if not shown:
            continue
        text = [f"#{one.number}" + (", suspect" if one.suspect else "") for one in shown]
        x, y = [one.order + 1 for one in shown], [round(100 * getattr(one, attribute), 2) for one in shown]
        hover = "%{text}: %{y:.1f} % of the median<extra></extra>"
        traces.append(_scatter(name, x, y, colour, text=text, hovertemplate=hover))
    layout = {
        "xaxis": {"title": {"text": "measurement"}},
        "yaxis": {"title": {"text": "of the median"}, "ticksuffix": " %"},
    }
    return Figure(traces, layout)


def _cost_figure(trajectory: Trajectory) -> Figure:
    total, sums = 0.0, []
    for row in trajectory.rows:
        total += row.cost_usd
        sums.append(round(total, 4))
    trace = {
        "type": "scatter",
        "mode": "lines",
        "line": {"color": "var(--accent)", "shape": "hv"},
        "x": [row.number for row in trajectory.rows],
        "y": sums,
        "hovertemplate": "up to #%{x}: $%{y:.2f}<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "experiment"}},
        "yaxis": {"title": {"text": "US dollars, in all"}, "tickprefix": "$"},
    }
    return Figure([trace], layout)
