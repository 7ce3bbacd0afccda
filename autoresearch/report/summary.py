"""Where a run stands and what it found, as JSON and as text; read from its journal, also while it searches."""

from __future__ import annotations

import math
from typing import Any

from autoresearch.core import noise
from autoresearch.core.amounts import dollars
from autoresearch.core.history import History
from autoresearch.core.records import Record
from autoresearch.core.runs import SavedRun
from autoresearch.core.view import gain_text, show_command
from autoresearch.report import findings
from autoresearch.report.trajectory import Row, Trajectory, of_run

TOLD = 10
"""Of failures, near misses and suspect measurements each, the last ones."""


def spread(history: History) -> noise.Spread:
    """The spread between seeds as the run's decisions saw it."""
    return noise.spread_of(history, history.rules)


def status(run: SavedRun) -> dict[str, Any]:
    """The document of `autoresearch status --json`."""
    history = run.history
    counts, baseline, best = history.counts, history.baseline, history.incumbent
    return {
        "tag": run.tag,
        "workspace": str(run.place),
        "backend": history.settings.get("backend", ""),
        "preset": history.settings.get("preset", ""),
        "device": history.run.get("device", {}).get("name", ""),
        "comparability_key": history.comparability_key,
        "experiments": counts.experiments,
        "measurements": counts.measurements,
        "kept": counts.kept,
        "discarded": counts.discarded,
        "failed": counts.failed,
        "refused": len(history.refusals),
        "failed_rounds": len(history.outages),
        "baseline": _measured(run, baseline),
        "best": None if best is None else {**_measured(run, best), "commit": best.commit, "experiment": best.number},
        "incumbent_commit": best.commit if best else None,
        "running": history.pending.number if history.pending and not history.stop_reason else None,
        "cost_usd": round(history.cost_usd, 9),
        "cost_by_agent": cost_by_agent(history),
        "stop_reason": history.stop_reason or None,
    }


def cost_by_agent(history: History) -> dict[str, float]:
    """US dollars of its calls, by who made them."""
    calls = (*history.charges, *history.open_calls.values())
    agents = dict.fromkeys(charge.agent for charge in calls)
    return {a: round(math.fsum(charge.usd for charge in calls if charge.agent == a), 9) for a in agents}


def _measured(run: SavedRun, record: Record | None) -> dict[str, Any]:
    if record is None or record.value is None or not run.history.current(record):
        return {"val_bpb": None, "n": 0, "spread": None}
    return {"val_bpb": record.value, "n": record.value_n, "spread": spread(run.history).value}


def status_text(run: SavedRun) -> str:
    """A few lines for a person."""
    s = status(run)
    lines = [
        f"run {s['tag']} in {s['workspace']}",
        f"{s['backend']} on {s['device']}, {s['preset']}, key {s['comparability_key']}",
        f"{s['experiments']} experiments, {s['measurements']} measurements: {s['kept']} kept, "
        f"{s['discarded']} discarded, {s['failed']} failed"
        + (f", {s['refused']} proposals refused" if s["refused"] else "")
        + (f", {s['failed_rounds']} rounds without a proposal" if s["failed_rounds"] else ""),
    ]
    if s["best"]:
        lines.append(
            f"{gain_text(run.history)}, spread between seeds {spread(run.history)}; "
            f"best: experiment {s['best']['experiment']}, commit {s['best']['commit'][:10]}"
        )
    if run.history.charges or run.history.open_calls:
        lines.append(_cost_text(s))
    if s["running"] is not None and not s["stop_reason"]:
        lines.append(f"experiment {s['running']} is under way, or was when the search ended")
    lines.append(f"stopped: {s['stop_reason']}" if s["stop_reason"] else "not stopped yet")
    return "\n".join(lines)


def _cost_text(s: dict[str, Any]) -> str:
    """What the calls cost: in all, for each kept change, by agent."""
    each = f", {dollars(s['cost_usd'] / s['kept'])} for each kept change" if s["kept"] else ""
    agents = ", ".join(f"{name} {dollars(usd)}" for name, usd in s["cost_by_agent"].items())
    return f"calls cost {dollars(s['cost_usd'])}{each}; {agents}"


def report(run: SavedRun) -> dict[str, Any]:
    """The document of `autoresearch report --json`: conclusion, status, every experiment, categories."""
    trajectory, audit = of_run(run), findings.audit_of(run)
    decided = {row.number: row for row in trajectory.rows}
    rows = []
    for record in run.history.experiments.values():
        row = decided.get(record.number)
        rows.append(
            {
                "experiment": record.number,
                "verdict": record.verdict,
                "withdrawn": record.withdrawn,
                "near_miss": record.near_miss,
                "suspect": [result.suspect for result in record.results if result.suspect],
                "reason": record.reason,
                "val_bpb": record.val_bpb,
                "value": row.value if row else None,
                "gain": row.gain if row else None,
                "measurements": len(record.results),
                "hypothesis": record.hypothesis,
                "category": record.category,
                "proposer": record.proposer,
                "cost_usd": round(row.cost_usd if row else run.history.cost_of(record.number), 9),
                "parent": record.parent,
                "commit": record.commit,
                "diff_lines": record.diff_lines,
                "seconds": round(sum(r.total_seconds for r in record.results), 3),
            }
        )
    return {
        "conclusion": findings.conclude(trajectory, audit["conclusion"] if audit else "")._asdict(),
        "status": status(run),
        "experiments": rows,
        "categories": [category._asdict() for category in findings.by_category(trajectory.rows)],
        "refused": [refusal._asdict() for refusal in run.history.refusals],
        "audit": audit,
        "test": list(run.audit),
    }


def report_text(run: SavedRun) -> str:
    """The conclusion first, then what was kept, then what failed."""
    trajectory, audit = of_run(run), findings.audit_of(run)
    rows, best = trajectory.rows, trajectory.best
    lines = [str(findings.conclude(trajectory, audit["conclusion"] if audit else "")), "", status_text(run), ""]
    kept = [row for row in rows if row.verdict == "keep" and not row.is_baseline]
    lines.append("kept changes, what each is worth by now and its change:" if kept else "kept changes: none")
    lines += [f"  {_kept(row)}" for row in kept]
    if categories := findings.by_category(rows):
        lines.append("by category:")
        width = max(len(category.name) for category in categories)
        lines += [f"  {c.name:<{width}s}  {_change(c.gain)} bpb  {c.kept} of {c.tried} kept" for c in categories]
    lines += _latest(
        "failures", [f"#{row.number:<3d} {row.verdict}: {row.description}: {row.reason}" for row in rows if row.failed]
    )
    near = [f"#{row.number:<3d} {row.val_bpb:.4f} bpb  {row.description}" for row in rows if row.near_miss]
    lines += _latest("near misses, no gain that was borne out alone", near)
    suspect = [f"#{row.number:<3d} {r.suspect}" for row in rows for r in row.results if r.suspect]
    lines += _latest("suspect measurements, repeated", suspect)
    if test := _test_gain(trajectory):
        lines.append(test)
    if best is not None and not best.is_baseline:
        lines += ["", f"the best train.py: {show_command(run.place, best.commit)}"]
    return "\n".join(lines)


def _kept(row: Row) -> str:
    change = "      ?" if row.gain is None else _change(row.gain)
    value = f"{row.value:.4f}" if row.value is not None else "     ?"
    cost = f" ({dollars(row.cost_usd)})" if row.cost_usd else ""
    mark = f" (withdrawn: {row.withdrawn})" if row.withdrawn else ""
    return f"#{row.number:<3d} {value} bpb {change}  {row.description}{cost}{mark}"


def _change(gain: float) -> str:
    """Negative is better, as the lines of a search have it."""
    return f"{-gain:+.4f}" if gain else " 0.0000"


def _latest(title: str, lines: list[str]) -> list[str]:
    """A section of the last TOLD lines; none where there are none."""
    if not lines:
        return []
    shown = f", the last {TOLD} of {len(lines)} (all of them: autoresearch report --json)" if len(lines) > TOLD else ""
    return [f"{title}{shown}:", *(f"  {line}" for line in lines[-TOLD:])]


def _test_gain(trajectory: Trajectory) -> str:
    """How baseline and incumbent score on text that decided nothing."""
    baseline, best = trajectory.baseline, trajectory.best
    if baseline is None or best is None or best.is_baseline or baseline.test_bpb is None or best.test_bpb is None:
        return ""
    gain = baseline.test_bpb - best.test_bpb
    return f"held-out test text: baseline {baseline.test_bpb:.4f}, best {best.test_bpb:.4f}: gain {gain:.4f}"
