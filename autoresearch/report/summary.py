"""Where a run stands and what it found, as JSON and as text; read from its journal, also while it searches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoresearch.core import noise
from autoresearch.core.errors import UsageError
from autoresearch.core.history import History
from autoresearch.core.journal import Journal
from autoresearch.core.records import Record
from autoresearch.core.task import workspace_folder
from autoresearch.core.view import gain_text, show_command
from autoresearch.core.workspace import Workspace

TOLD = 10
"""Of failures, near misses and suspect measurements each, the last ones."""


@dataclass(frozen=True)
class State:
    """One run as its journal tells it."""

    tag: str
    workspace: Path
    history: History
    audit: tuple[dict[str, Any], ...]
    """Scores of the test split, by experiment and k."""


def load(directory: Path, tag: str = "") -> State:
    """Read a run.

    Args:
        directory: a workspace, or a folder with the one that the main job made.
        tag: "" is the run written to last.

    Raises:
        UsageError: no workspace, no run, or none of that tag.
        DataError: the journal is damaged.
    """
    place = workspace_folder(directory)
    if not place.is_dir():
        raise UsageError(f"no workspace in {directory.resolve()}", "start a search there: autoresearch")
    workspace = Workspace(place)
    tags = workspace.tags()
    if not tags:
        raise UsageError(f"{workspace.directory} has no run yet", "start one: autoresearch")
    if tag and tag not in tags:
        raise UsageError(f"no run {tag!r} in {workspace.directory}", "runs: " + ", ".join(tags))
    chosen = tag or tags[-1]
    folder = workspace.directory / ".autoresearch" / chosen
    journal = Journal(folder / "journal.jsonl")
    audit = Journal(folder / "audit.jsonl").read()
    history = History.from_events(journal.read(), str(journal.path))
    return State(chosen, workspace.directory, history, tuple(audit))


def spread(history: History) -> noise.Spread:
    """The spread between seeds as the run's decisions saw it."""
    return noise.spread_of(history, history.rules)


def status(state: State) -> dict[str, Any]:
    """The document of `autoresearch status --json`."""
    history = state.history
    counts, baseline, best = history.counts, history.baseline, history.incumbent
    return {
        "tag": state.tag,
        "workspace": str(state.workspace),
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
        "baseline": _measured(state, baseline),
        "best": None if best is None else {**_measured(state, best), "commit": best.commit, "experiment": best.number},
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


def _measured(state: State, record: Record | None) -> dict[str, Any]:
    if record is None or record.value is None or record.value_key != state.history.comparability_key:
        return {"val_bpb": None, "n": 0, "spread": None}
    return {"val_bpb": record.value, "n": record.value_n, "spread": spread(state.history).value}


def status_text(state: State) -> str:
    """A few lines for a person."""
    s = status(state)
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
            f"{gain_text(state.history)}, spread between seeds {spread(state.history)}; "
            f"best: experiment {s['best']['experiment']}, commit {s['best']['commit'][:10]}"
        )
    if state.history.charges or state.history.open_calls:
        lines.append(_cost_text(s))
    if s["running"] is not None and not s["stop_reason"]:
        lines.append(f"experiment {s['running']} is under way, or was when the search ended")
    lines.append(f"stopped: {s['stop_reason']}" if s["stop_reason"] else "not stopped yet")
    return "\n".join(lines)


def _cost_text(s: dict[str, Any]) -> str:
    """What the calls cost: in all, for each kept change, by agent."""
    each = f", {s['cost_usd'] / s['kept']:.2f} for each kept change" if s["kept"] else ""
    agents = ", ".join(f"{name} {usd:.2f}" for name, usd in s["cost_by_agent"].items())
    return f"calls cost {s['cost_usd']:.2f} dollars{each}; {agents}"


def report(state: State) -> dict[str, Any]:
    """The document of `autoresearch report --json`: the status, and every experiment."""
    rows = []
    for record in state.history.experiments.values():
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
                "cost_usd": round(state.history.cost_of(record.number), 9),
                "parent": record.parent,
                "commit": record.commit,
                "diff_lines": record.diff_lines,
                "seconds": round(sum(r.total_seconds for r in record.results), 3),
            }
        )
    return {"status": status(state), "experiments": rows, "test": list(state.audit)}


def report_text(state: State) -> str:
    """The conclusion first, then what was kept, then what failed."""
    document = report(state)
    s, rows = document["status"], document["experiments"]
    lines = [status_text(state), ""]
    kept = [row for row in rows if row["verdict"] == "keep" and row["experiment"] > 0]
    value = {n: r.value for n, r in state.history.experiments.items() if noise.comparable_scores(state.history, r)}
    lines.append("kept changes:" if kept else "kept changes: none")
    for row in kept:
        before, after = value.get(row["parent"]), value.get(row["experiment"])
        change = f"{after - before:+.4f}" if before is not None and after is not None else "      ?"
        mark = f" (withdrawn: {row['withdrawn']})" if row["withdrawn"] else ""
        cost = f" (${row['cost_usd']:.3f})" if row["cost_usd"] else ""
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
    if test := _test_gain(state):
        lines.append(test)
    if s["best"] and s["best"]["experiment"]:
        lines += ["", f"the best train.py: {show_command(state.workspace, s['best']['commit'])}"]
    return "\n".join(lines)


def _test_gain(state: State) -> str:
    """How baseline and incumbent score on text that decided nothing."""
    best = state.history.incumbent
    if best is None or best.number == 0:
        return ""
    mean: dict[int, float] = {}
    for number in (0, best.number):
        keys = [result.comparability_key for result in state.history.experiments[number].results]
        here = {k for k, key in enumerate(keys) if key == state.history.comparability_key}
        # The line written last counts: a measurement that was cut off may have left one behind.
        audit = [a for a in state.audit if a["n"] == number and a["k"] in here]
        values = {a["k"]: float(a["test_bpb"]) for a in audit if "test_bpb" in a}
        if not values:
            return ""
        mean[number] = sum(values.values()) / len(values)
    gain = mean[0] - mean[best.number]
    return f"held-out test text: baseline {mean[0]:.4f}, best {mean[best.number]:.4f}: gain {gain:.4f}"
