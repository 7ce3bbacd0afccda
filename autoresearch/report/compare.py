"""Searches side by side: as the document of `autoresearch compare --json`, from which text and page are made.

Scores are ranked under one comparability key alone. What other searches are compared by is relative to each one's own
baseline, or counts: gains in percent, per experiment and per hour, moves and their effects, throughput, waste.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

from autoresearch.core import noise
from autoresearch.core.audits import ENOUGH
from autoresearch.core.decide import fresh_scores
from autoresearch.core.interval import Interval, known_spread, welch
from autoresearch.core.rank import FEWEST, as_json
from autoresearch.report.compare_run import in_numbers
from autoresearch.report.moves import Agreement, Shared, Tried, agreement, moves
from autoresearch.report.trajectory import Trajectory
from autoresearch.report.transfer import transfers


def document(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """What one search shows, or several beside each other.

    Args:
        trajectories: one or more.

    Returns:
        Scores and gains in bits per byte, relative ones as shares of the baseline's or the incumbent's value; intervals
        of 95 %. What isn't known is null.
    """
    labels = _labels(trajectories)
    tried = [moves(trajectory) for trajectory in trajectories]
    pairs = list(combinations(range(len(labels)), 2))
    not_ranked = [(i, j, why) for i, j in pairs if (why := _why_not_ranked(trajectories, labels, i, j))]
    return {
        "runs": [in_numbers(trajectory, label) for trajectory, label in zip(trajectories, labels, strict=True)],
        "rankings": _rankings(trajectories, labels),
        "not_ranked": [{"runs": [labels[i], labels[j]], "why": why} for i, j, why in not_ranked],
        "constants": _constants(trajectories, labels, tried),
        "agreement": [_agreement(agreement(tried[i], tried[j]), labels[i], labels[j]) for i, j in pairs],
        "transfers": transfers(trajectories, labels),
    }


def _labels(trajectories: Sequence[Trajectory]) -> list[str]:
    """A name for each, told apart by a number where they have the same."""
    seen: Counter[str] = Counter()
    labels = []
    for trajectory in trajectories:
        seen[trajectory.name] += 1
        count = seen[trajectory.name]
        labels.append(trajectory.name if count == 1 else f"{trajectory.name} ({count})")
    return labels


def _why_not_ranked(trajectories: Sequence[Trajectory], labels: Sequence[str], i: int, j: int) -> str:
    """ "" where the scores of two searches can be ranked."""
    first, second = trajectories[i], trajectories[j]
    unknown = [labels[k] for k in (i, j) if not trajectories[k].key]
    if unknown:
        whose = " and ".join(unknown)
        return (
            f"on what {whose} was measured isn't known (no comparability key), so its scores compare with nothing else"
        )
    if first.key != second.key:
        return f"their comparability keys differ: {_differing(first, second)}"
    return "" if first.best and second.best else "one of them has no score under its present key"


_KEY_PARTS = ("task", "backend", "device", "framework", "dtype", "version of the measurement")
"""Of a comparability key, see `DeviceInfo.machine_class`."""


def _differing(first: Trajectory, second: Trajectory) -> str:
    parts = [trajectory.key.split("/") for trajectory in (first, second)]
    if any(len(named) != len(_KEY_PARTS) for named in parts):
        return f"{first.key} and {second.key}"
    differ = [f"{name} {a} and {b}" for name, a, b in zip(_KEY_PARTS, *parts, strict=True) if a != b]
    if first.preset != second.preset:
        differ.insert(0, f"preset {first.preset} and {second.preset}")
    return ", ".join(differ)


def _rankings(trajectories: Sequence[Trajectory], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Of each key that two or more searches share, the best first, each against the next."""
    found = []
    for key in dict.fromkeys(t.key for t in trajectories if t.key):
        same = [k for k, t in enumerate(trajectories) if t.key == key and t.best is not None]
        same.sort(key=lambda k: _best_value(trajectories[k]))
        if len(same) < 2:
            continue
        steps = []
        for better, worse in pairwise(same):
            lead, method = difference(trajectories[worse], trajectories[better])
            steps.append(
                {
                    "better": labels[better],
                    "worse": labels[worse],
                    "lead": {"bpb": lead.mean, "low": lead.low, "high": lead.high, "dof": lead.dof},
                    "method": method,
                    "clear": lead.low > 0,
                }
            )
        order = [{"name": labels[k], "val_bpb": _best_value(trajectories[k])} for k in same]
        found.append({"comparability_key": key, "order": order, "steps": steps})
    return found


def _best_value(trajectory: Trajectory) -> float:
    best = trajectory.best
    assert best is not None and best.value is not None, "asked before"
    return best.value


def difference(first: Trajectory, second: Trajectory) -> tuple[Interval, str]:
    """The values of two incumbents of one comparability key, first minus second, and how the interval was made.

    Welch's where each has ENOUGH fresh measurements; else t with the spread between seeds of both runs together, whose
    stated prior counts once.
    """
    one_fresh, other_fresh = _fresh(first), _fresh(second)
    if min(len(one_fresh), len(other_fresh)) >= ENOUGH:
        found = welch(one_fresh, other_fresh)
        return found, f"Welch, {len(one_fresh)} and {len(other_fresh)} fresh measurements"
    one, other = first.best, second.best
    assert first.saved and second.saved and one and other, "runs of one key have journals"
    histories = [first.saved.history, second.saved.history]
    earlier = max((history.priors.get(first.key, noise.NOTHING) for history in histories), key=lambda prior: prior.dof)
    together = [candidate for history in histories for candidate in history.candidates]
    spread = noise.spread_among(together, histories[0].rules, earlier)
    n, m = max(one.value_n, 1), max(other.value_n, 1)
    found = known_spread(_best_value(first), n, _best_value(second), m, spread.value, spread.dof)
    return found, f"t with the spread between seeds {spread}, n {n} and {m}"


def _fresh(trajectory: Trajectory) -> list[float]:
    """Scores of the incumbent that did not pick it."""
    best = trajectory.best
    if trajectory.saved is None or best is None:
        return []
    found = next(c for c in trajectory.saved.history.candidates if c.number == best.number)
    return fresh_scores(found, clean=True)


def _constants(
    trajectories: Sequence[Trajectory], labels: Sequence[str], tried: Sequence[dict[str, Tried]]
) -> dict[str, dict[str, Any]]:
    """Each constant that some search moved alone or kept another value of: from where to where, and the tries."""
    ends = [(t.baseline, t.best) for t in trajectories]
    changed = {
        name: None
        for baseline, best in ends
        if baseline is not None and best is not None
        for name, value in best.constants.items()
        if baseline.constants.get(name) != value
    }
    alone = {one.name.split(" ", 1)[0]: None for found in tried for one in found.values() if _is_alone(one)}
    known = [name for name in {**changed, **alone} if any(b is not None and name in b.constants for b, _ in ends)]
    return {
        name: {
            label: {
                "from": baseline.constants.get(name) if baseline is not None else None,
                "to": best.constants.get(name) if best is not None else None,
                "moves": [_tried(one) for one in found.values() if _is_alone(one) and one.name.startswith(f"{name} ")],
            }
            for label, (baseline, best), found in zip(labels, ends, tried, strict=True)
            if baseline is not None and name in baseline.constants
        }
        for name in known
    }


def _is_alone(one: Tried) -> bool:
    """Whether a move is of one constant."""
    return not one.name.startswith("code ") and "," not in one.name


def _tried(one: Tried) -> dict[str, Any]:
    return {
        "move": one.name,
        "label": one.label,
        "effect": one.effect,
        "error": one.error,
        "clear": one.clear,
        "tried": len(one.rows),
        "kept": one.kept,
        "failed": one.failed,
    }


def _agreement(found: Agreement, first: str, second: str) -> dict[str, Any]:
    return {
        "runs": [first, second],
        "n": len(found.shared),
        "moves": [_pair(pair) for pair in found.shared],
        **as_json(found.signs, found.ranks),
        "note": f"n too small: below {FEWEST} shared moves nothing is said" if len(found.shared) < FEWEST else "",
    }


def _pair(pair: Shared) -> dict[str, Any]:
    clear = {pair.first.clear, pair.second.clear}
    return {
        "move": pair.first.name,
        "label": pair.first.label,
        "opposed": pair.opposed,
        "clear": False if False in clear else None if None in clear else True,
        "first": _tried(pair.first),
        "second": _tried(pair.second),
    }
