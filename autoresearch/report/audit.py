"""What an audit found, as JSON and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import correlation, fmean, stdev
from typing import Any

from autoresearch.core.audits import ENOUGH, Audited, Audits, Comparison, Subject, compare, compare_excess, counted
from autoresearch.core.interval import Interval
from autoresearch.core.journal import Journal
from autoresearch.core.records import Record
from autoresearch.core.runs import SavedRun

NAMES = {"val": "val", "test": "test, held out", "text": "other text"}
"""Sets of rows as they are named to people."""


def document(run: SavedRun, subject: Subject | None) -> dict[str, Any]:
    """The document of `autoresearch audit --json`.

    Args:
        run: whose audit it is.
        subject: what was audited; None where nothing was kept.

    Returns:
        Scores in bits per byte; a gain is baseline minus incumbent, with a 95 % confidence interval.
    """
    history = run.history
    known: dict[str, Any] = {
        "tag": run.tag,
        "incumbent": subject.incumbent if subject else 0,
        "comparability_key": subject.key if subject else history.comparability_key,
        "same_machine": subject is None or subject.key == history.comparability_key,
        "claimed_gain": _claimed(run, subject),
        "texts": {},
        "val_gain_above_test_gain": None,
        "suspect": 0,
        "along": along(run),
    }
    if subject is None:
        return {**known, "conclusion": "nothing was kept: the incumbent is the baseline, so there is no gain to audit"}
    path = run.folder / "audits.jsonl"
    measured = Audits.from_events(Journal(path).read(), str(path)).measured[subject]
    names = [name for name in NAMES if name != "text" or subject.text]
    compared = {name: compare(measured, name) for name in names}
    return {
        **known,
        "texts": {name: _comparison(compared[name]) for name in names},
        "val_gain_above_test_gain": _interval(compare_excess(measured)),
        "suspect": sum(bool(made.result.suspect) for made in counted(measured)),
        "measurements": [_row(made, names) for made in measured],
        "conclusion": conclusion(
            known["claimed_gain"], compared["test"].gain, compared["text"].gain if subject.text else None
        ),
    }


def _claimed(run: SavedRun, subject: Subject | None) -> float | None:
    """The run's own gain on val; None where baseline and incumbent aren't comparable, or on another machine."""
    baseline, best = run.history.baseline, run.history.incumbent
    if baseline is None or best is None or baseline.value is None or best.value is None:
        return None
    if baseline.value_key != best.value_key or (subject is not None and best.value_key != subject.key):
        return None
    return baseline.value - best.value


def _comparison(found: Comparison) -> dict[str, Any]:
    return {
        "baseline": _arm(found.baseline),
        "incumbent": _arm(found.incumbent),
        "gain": _interval(found.gain),
    }


def _arm(scores: Sequence[float]) -> dict[str, Any]:
    return {"bpb": fmean(scores), "spread": stdev(scores), "n": len(scores)}


def _interval(interval: Interval) -> dict[str, float]:
    return {"bpb": interval.mean, "low": interval.low, "high": interval.high}


def _row(made: Audited, names: Sequence[str]) -> dict[str, Any]:
    ok = made.result.status == "ok"
    return {
        "experiment": made.n,
        "status": made.result.status,
        "suspect": made.result.suspect,
        "seed": made.result.seed,
        "bpb": {name: made.bpb(name) for name in names} if ok else {},
    }


def along(run: SavedRun) -> dict[str, Any]:
    """How val and test went together along the run, from the routine scores of every measurement.

    Returns:
        `experiments`: of each that scored here, its mean `val_bpb`, `test_bpb` and their `gap` (test minus val), and
        whether it was kept; `correlation` of val and test over them (None below three); `gap_change`: the incumbent's
        gap minus the baseline's.
    """
    history = run.history
    rows = [row for record in history.experiments.values() if (row := _along(record, run.val_and_test(record)))]
    gaps = {row["experiment"]: row["gap"] for row in rows}
    best = history.incumbent
    change = gaps[best.number] - gaps[0] if best is not None and best.number in gaps and 0 in gaps else None
    vals, tests = [row["val_bpb"] for row in rows], [row["test_bpb"] for row in rows]
    varied = len(rows) >= 3 and len(set(vals)) > 1 and len(set(tests)) > 1
    return {"experiments": rows, "correlation": correlation(vals, tests) if varied else None, "gap_change": change}


def _along(record: Record, both: Sequence[tuple[float, float]]) -> dict[str, Any] | None:
    if not both:
        return None
    val, held_out = fmean(v for v, _ in both), fmean(t for _, t in both)
    return {
        "experiment": record.number,
        "kept": record.kept,
        "val_bpb": val,
        "test_bpb": held_out,
        "gap": held_out - val,
    }


def conclusion(claimed: float | None, gain: Interval, other: Interval | None = None) -> str:
    """One sentence on the gain on held-out text.

    Args:
        claimed: what the search says it gained on val, in bits per byte; None where it can't be compared.
        gain: on test.
        other: on the text of another domain; None where none was scored.
    """
    return _on_test(claimed, gain) + (f"; on the other text {_on_other_text(other)}" if other is not None else "")


def _on_other_text(gain: Interval) -> str:
    found = f"{gain.mean:+.4f} ± {gain.half_width:.4f} bpb"
    if gain.low > 0:
        return f"it holds too: {found}"
    return f"it is a loss: {found}" if gain.high < 0 else f"there is none to be told from noise: {found}"


def _on_test(claimed: float | None, gain: Interval) -> str:
    what = "the search's gain" if claimed is None else f"the search's gain of {claimed:.4f} bpb on val"
    found = f"{gain.mean:.4f} ± {gain.half_width:.4f} bpb on held-out test text"
    if gain.high < 0:
        return f"the incumbent is worse than the baseline: {found}"
    if gain.low <= 0:
        return f"{what} can't be told from noise: {found}; more --repeats would narrow this down"
    if claimed is not None and gain.high < claimed:
        return f"{what} is real but smaller than claimed: {found}"
    return f"{what} is real: {found}"


def text(found: Mapping[str, Any]) -> str:
    """The document for a person, the conclusion first."""
    lines = [found["conclusion"]]
    if found["texts"]:
        counts = {arm: found["texts"]["val"][arm]["n"] for arm in ("baseline", "incumbent")}
        lines += [
            "",
            f"run {found['tag']}, experiment {found['incumbent']} against the baseline, fresh seeds, interleaved; "
            f"key {found['comparability_key']}",
            f"{'':16s}{'baseline':>10s}{'incumbent':>11s}   gain, 95 % confidence",
        ]
        for name, compared in found["texts"].items():
            before, after, gain = compared["baseline"], compared["incumbent"], compared["gain"]
            lines.append(
                f"{NAMES[name]:16s}{before['bpb']:10.4f}{after['bpb']:11.4f}   "
                f"{gain['bpb']:+.4f} ({gain['low']:+.4f} to {gain['high']:+.4f})"
            )
        lines.append(f"{'measurements':16s}{counts['baseline']:10d}{counts['incumbent']:11d}")
        excess = found["val_gain_above_test_gain"]
        lines.append(
            f"the gain on val is above that on test by {excess['bpb']:+.4f} ({excess['low']:+.4f} to "
            f"{excess['high']:+.4f})"
        )
        if not found["same_machine"]:
            lines.append("measured on another machine, or with another framework, than the run's")
        if found["suspect"]:
            lines.append(f"{found['suspect']} measurements are suspect: the machine changed meanwhile, twice in a row")
        if min(counts.values()) < ENOUGH:
            lines.append(f"fewer than {ENOUGH} measurements of each: the interval is wide, and rests on little")
    if told := _along_text(found["along"]):
        lines += ["", told]
    return "\n".join(lines)


def _along_text(found: Mapping[str, Any]) -> str:
    rows = found["experiments"]
    if len(rows) < 2:
        return ""
    told = f"along the run, {len(rows)} experiments on val and on a part of test:"
    if found["correlation"] is not None:
        told += f" correlation {found['correlation']:.3f};"
    change = found["gap_change"]
    ends = "" if change is None else f", {change:+.4f} from the baseline to the incumbent"
    kept = ", ".join(f"#{row['experiment']} {row['gap']:+.4f}" for row in rows if row["kept"])
    return f"{told} test minus val of what was kept: {kept}{ends}"
