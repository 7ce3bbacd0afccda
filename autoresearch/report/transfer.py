"""What became of experiments that were replayed from another run: helped there, helped here.

A replaying run's journal says of each experiment where it is from (`replay_of`, see `agent.replay_of`) and how it went
there. Where that run is at hand too, its own journal is asked: a keep may have been withdrawn since.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autoresearch.core.rank import as_json, rank_correlation, sign_agreement
from autoresearch.report.moves import CLEAR, effect_of, variance_of
from autoresearch.report.trajectory import Row, Trajectory

_ORIGIN = re.compile(r"replay:(?P<run>.+)-(?P<id>[0-9a-f]{8})#(?P<number>\d+)")
_PREFIX = re.compile(r"replay of #\d+ of \S+ \([^()]*\): ")
_SIDES = {(True, True): "both", (True, False): "there_alone", (False, True): "here_alone", (False, False): "neither"}


def transfers(trajectories: Sequence[Trajectory], labels: Sequence[str]) -> list[dict[str, Any]]:
    """One for each replaying run and each run that it replayed.

    Args:
        labels: a name for each trajectory.

    Returns:
        Of each: `experiments` that were carried over, with verdict, relative effect and whether it helped, there and
        here, and the parts that it was carried without; `not_carried`, with the reason; `counts` of those that were
        carried whole, by where they helped; `signs` and `ranks`, the agreement of their effects.
    """
    sources = {t.saved.identity: (t, label) for t, label in zip(trajectories, labels, strict=True) if t.saved}
    found = []
    for trajectory, label in zip(trajectories, labels, strict=True):
        for identity, run in _replayed(trajectory):
            source, name = sources.get(identity, (None, run))
            found.append({"from": name, "to": label, **_transfer(trajectory, identity, source)})
    return found


def _replayed(trajectory: Trajectory) -> list[tuple[str, str]]:
    """Identity and tag of each run that a run replayed."""
    made = {told["id"]: told["run"] for row in trajectory.rows if (told := row.facts.get("replay_of"))}
    refused = {origin["id"]: origin["run"] for origin, *_ in _refusals(trajectory)}
    return list({**made, **refused}.items())


def _refusals(trajectory: Trajectory) -> Iterator[tuple[re.Match[str], str, str]]:
    """(origin, reason, hypothesis) of what could not be carried, or was tried here before."""
    for refusal in trajectory.saved.history.refusals if trajectory.saved else ():
        if origin := _ORIGIN.fullmatch(refusal.origin):
            yield origin, refusal.reason.removeprefix("not carried: "), _PREFIX.sub("", refusal.hypothesis, count=1)


def _transfer(trajectory: Trajectory, identity: str, source: Trajectory | None) -> dict[str, Any]:
    there = {} if source is None else {row.number: row for row in source.rows}
    rows = [
        _experiment(row, told, trajectory, there.get(told["experiment"]), source)
        for row in trajectory.rows
        if (told := row.facts.get("replay_of")) and told["id"] == identity
    ]
    not_carried = [
        {
            "there": number,
            "verdict_there": there[number].outcome if number in there else "",
            "hypothesis": there[number].description if number in there else hypothesis,
            "reason": reason,
        }
        for origin, reason, hypothesis in _refusals(trajectory)
        if origin["id"] == identity
        for number in [int(origin["number"])]
    ]
    whole = [row for row in rows if not row["left_out"]]
    counts = Counter(_SIDES[row["helped_there"], row["helped_here"]] for row in whole)
    pairs = [(row["effect_there"], row["effect_here"]) for row in whole]
    scored = [(a, b) for a, b in pairs if a is not None and b is not None]
    effects = [a for a, _ in scored], [b for _, b in scored]
    return {
        "experiments": rows,
        "not_carried": not_carried,
        "in_part": len(rows) - len(whole),
        "counts": {side: counts[side] for side in _SIDES.values()},
        **as_json(sign_agreement(*effects), rank_correlation(*effects)),
    }


def _experiment(
    row: Row, told: Mapping[str, Any], here: Trajectory, other: Row | None, source: Trajectory | None
) -> dict[str, Any]:
    return {
        "there": told["experiment"],
        "here": row.number,
        "hypothesis": told["hypothesis"],
        "verdict_there": other.outcome if other else told["verdict"],
        "verdict_here": row.outcome,
        "effect_there": effect_of(other) if other else told["effect"],
        "effect_here": effect_of(row),
        "helped_there": helped(other, source) if other and source else told["verdict"] == "keep",
        "helped_here": helped(row, here),
        "left_out": list(told["left_out"]),
    }


def helped(row: Row, trajectory: Trajectory) -> bool:
    """Whether an experiment was kept and stands, or was better by more than noise."""
    effect = effect_of(row)
    if row.kept or row.withdrawn or effect is None or trajectory.spread is None:
        return row.kept
    by_number = {other.number: other for other in trajectory.rows}
    return effect > CLEAR * math.sqrt(variance_of(row, by_number, trajectory.spread.value))
