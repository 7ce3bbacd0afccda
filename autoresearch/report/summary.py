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
    """The document of `autoresearch report --json`: the status, and every experiment."""
    rows = []
    for record in run.history.experiments.values():
        rows.append(
            {
                "experiment": record.number,
                "verdict": record.verdict,
                "withdrawn": record.withdrawn,
                "near_miss": record.near_miss,
                "suspect": [result.suspect for result in record.results if result.suspect],
                "reason": record.reason,
                "val_bpb": record.val_bpb,
                "measurements": len(record.results),
                "hypothesis": record.hypothesis,
                "category": record.category,
                "proposer": record.proposer,
                "cost_usd": round(run.history.cost_of(record.number), 9),
                "parent": record.parent,
                "commit": record.commit,
                "diff_lines": record.diff_lines,
                "seconds": round(sum(r.total_seconds for r in record.results), 3),
            }
        )
    return {"status": status(run), "experiments": rows, "test": list(run.audit)}


def report_text(run: SavedRun) -> str:
    """The conclusion first, then what was kept, then what failed."""
    document = report(run)
    s, rows = document["status"], document["experiments"]
    lines = [status_text(run), ""]
    kept = [row for row in rows if row["verdict"] == "keep" and row["experiment"] > 0]
    value = {n: r.value for n, r in run.history.experiments.items() if noise.comparable_scores(run.history, r)}
    lines.append("kept changes:" if kept else "kept changes: none")
    for row in kept:
        before, after = value.get(row["parent"]), value.get(row["experiment"])
        change = f"{after - before:+.4f}" if before is not None and after is not None else "      ?"
        mark = f" (withdrawn: {row['withdrawn']})" if row["withdrawn"] else ""
        cost = f" ({dollars(row['cost_usd'])})" if row["cost_usd"] else ""
        lines.append(f"  #{row['experiment']:<3d} {row['val_bpb']:.4f} bpb {change}  {row['hypothesis']}{cost}{mark}")
    categories: dict[str, list[int]] = {}
    for row in rows[1:]:
        tried = categories.setdefault(row["category"], [0, 0])
        tried[0] += 1
        tried[1] += row["verdict"] == "keep" and row["withdrawn"] is None
    if categories:
        shares = (f"{name} {kept_of} of {tried}" for name, (tried, kept_of) in sorted(categories.items()))
        lines.append("kept by category: " + ", ".join(shares))
    failures = [row for row in rows if row["verdict"] not in (None, "keep", "discard")]
    told = [f"  #{row['experiment']:<3d} {row['verdict']}: {row['hypothesis']}: {row['reason']}" for row in failures]
    if len(failures) > TOLD:
        lines.append(f"the last {TOLD} of {len(failures)} failures (all of them: autoresearch report --json):")
    lines += told[-TOLD:]
    near = [
        f"  #{row['experiment']:<3d} {row['val_bpb']:.4f} bpb  {row['hypothesis']}" for row in rows if row["near_miss"]
    ]
    if near:
        lines += ["near misses, no gain that was borne out alone:", *near[-TOLD:]]
    suspect = [f"  #{row['experiment']:<3d} {reason}" for row in rows for reason in row["suspect"]]
    if suspect:
        lines += [f"suspect measurements, repeated: {len(suspect)}", *suspect[-TOLD:]]
    if test := _test_gain(run):
        lines.append(test)
    if s["best"] and s["best"]["experiment"]:
        lines += ["", f"the best train.py: {show_command(run.place, s['best']['commit'])}"]
    return "\n".join(lines)


def _test_gain(run: SavedRun) -> str:
    """How baseline and incumbent score on text that decided nothing."""
    best = run.history.incumbent
    if best is None or best.number == 0:
        return ""
    mean: dict[int, float] = {}
    for number in (0, best.number):
        keys = [result.comparability_key for result in run.history.experiments[number].results]
        here = {k for k, key in enumerate(keys) if key == run.history.comparability_key}
        # The line written last counts: a measurement that was cut off may have left one behind.
        audit = [a for a in run.audit if a["n"] == number and a["k"] in here]
        values = {a["k"]: float(a["test_bpb"]) for a in audit if "test_bpb" in a}
        if not values:
            return ""
        mean[number] = sum(values.values()) / len(values)
    gain = mean[0] - mean[best.number]
    return f"held-out test text: baseline {mean[0]:.4f}, best {mean[best.number]:.4f}: gain {gain:.4f}"
