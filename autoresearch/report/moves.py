"""What a search tried, as moves that can be found again in another one: by name across backends, by hash within one.

A move is one constant in one direction, several of them together, or an edit of the code that is the same line by line.
Its effect is what a row gained against its incumbent, relative to the incumbent's value: 0.01 is one percent fewer bits
per byte, negative is worse. Absolute gains of two machines can't be compared, since their scores can't.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from autoresearch.core.constants import moved
from autoresearch.core.rank import Ranks, Signs, rank_correlation, sign_agreement
from autoresearch.report.trajectory import Row, Trajectory

CLEAR = 2.0
"""Standard errors beyond which an effect is more than noise."""


@dataclass(frozen=True)
class Tried:
    """One move and how it went in one search."""

    name: str
    """The same in every search, e.g. "EMBEDDING_LR up"; of code "code " and a hash."""
    label: str
    """For people: of code, the description of the first try."""
    rows: tuple[Row, ...]
    effect: float | None
    """Mean of those tries that scored."""
    error: float | None
    """Standard error of `effect` that the spread between seeds makes; None where the spread isn't known."""

    @property
    def kept(self) -> int:
        return sum(row.kept for row in self.rows)

    @property
    def failed(self) -> int:
        return sum(row.failed for row in self.rows)

    @property
    def clear(self) -> bool | None:
        """Whether the effect is more than noise; None where nothing is known of either."""
        if self.effect is None or self.error is None:
            return None
        return abs(self.effect) > CLEAR * self.error


class Shared(NamedTuple):
    """A move that two searches tried, with an effect in both."""

    first: Tried
    second: Tried

    @property
    def opposed(self) -> bool:
        """Whether it helped in one and hurt in the other."""
        return (self.first.effect or 0.0) * (self.second.effect or 0.0) < 0


class Agreement(NamedTuple):
    """Of the moves that two searches share, those first that matter most in both."""

    shared: tuple[Shared, ...]
    signs: Signs
    ranks: Ranks | None
    """None where there are too few."""


def direction(before: Any, after: Any) -> str:
    """Where a constant goes: up, down, on, off, added, removed, or "to VALUE" where its values have no order."""
    if before is None or after is None:
        return "added" if before is None else "removed"
    if isinstance(before, bool) or isinstance(after, bool):
        return "on" if after else "off"
    if isinstance(before, int | float) and isinstance(after, int | float):
        return "up" if after > before else "down"
    return f"to {after if isinstance(after, str) else json.dumps(after)}"


def effect_of(row: Row) -> float | None:
    """What a row gained, relative to its incumbent's value; None where it can't be compared with one."""
    if row.gain is None or row.value is None:
        return None
    return row.gain / (row.value + row.gain)


def moves(trajectory: Trajectory) -> dict[str, Tried]:
    """What a search tried, by the name of the move, in the order of the first try.

    Rows whose change isn't known, as those of a table that has no sources, are left out.
    """
    by_number = {row.number: row for row in trajectory.rows}
    tries: dict[str, list[Row]] = {}
    for row in trajectory.rows:
        parent = by_number.get(row.parent) if row.parent is not None else None
        if parent is not None and (name := _name(row, parent)):
            tries.setdefault(name, []).append(row)
    return {name: _tried(name, rows, trajectory, by_number) for name, rows in tries.items()}


def _name(row: Row, parent: Row) -> str:
    """The name of what a row did to its parent; "" where it isn't known."""
    changes = moved(parent.constants, row.constants)
    # A constant is a line: one taken away, one put in. More than that is code.
    if row.diff_lines > 2 * len(changes):
        return f"code {row.change_hash}" if row.change_hash else ""
    return ", ".join(sorted(f"{name} {direction(*values)}" for name, values in changes.items()))


def _tried(name: str, rows: Sequence[Row], trajectory: Trajectory, by_number: Mapping[int, Row]) -> Tried:
    scored = [(row, effect) for row in rows if (effect := effect_of(row)) is not None]
    effect = math.fsum(effect for _, effect in scored) / len(scored) if scored else None
    error = None
    if scored and trajectory.spread is not None:
        variances = (variance_of(row, by_number, trajectory.spread.value) for row, _ in scored)
        error = math.sqrt(math.fsum(variances)) / len(scored)
    label = f"{name[:13]}: {rows[0].description}" if name.startswith("code ") else name
    return Tried(name, label, tuple(rows), effect, error)


def variance_of(row: Row, by_number: Mapping[int, Row], spread: float) -> float:
    """Of the relative effect of a row that scored: its score and its incumbent's vary between seeds."""
    assert row.value is not None and row.gain is not None and row.parent is not None, "it scored"
    n, before = max(row.value_n, 1), max(by_number[row.parent].value_n, 1)
    return (spread / (row.value + row.gain)) ** 2 * (1 / n + 1 / before)


def agreement(first: Mapping[str, Tried], second: Mapping[str, Tried]) -> Agreement:
    """Whether the moves that two searches share had the same effects.

    Args:
        first, second: of `moves`.
    """
    both = [Shared(tried, second[name]) for name, tried in first.items() if name in second]
    scored = [pair for pair in both if pair.first.effect is not None and pair.second.effect is not None]
    scored.sort(key=_weight, reverse=True)
    one, other = [pair.first.effect or 0.0 for pair in scored], [pair.second.effect or 0.0 for pair in scored]
    return Agreement(tuple(scored), sign_agreement(one, other), rank_correlation(one, other))


def _weight(pair: Shared) -> float:
    return min(abs(pair.first.effect or 0.0), abs(pair.second.effect or 0.0))
