"""Constants that the descriptions of a results table name: "embedding LR 0.6 to 0.8" moves EMBEDDING_LR.

A table without sources tells of moves in words alone. Read so far is the form "NAME BEFORE to AFTER" with numbers;
anything else is a change without a name. Words that the original's users have for its constants, and the original's own
names, are translated into those of this package, so that moves of both can be compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_NUMBER = r"[-+]?\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?"
_MOVE = re.compile(
    rf"(?P<name>[A-Za-z].*?)[\s:=]+(?P<before>{_NUMBER})(?P<b>[KkMx]?)"
    rf"\s*(?:to|->|=>|→)\s*(?P<after>{_NUMBER})(?P<a>[KkMx]?)(?!\w|\.\d)"
)
_FACTORS = {"K": 1e3, "k": 1e3, "M": 1e6}
_VERBS = {"change", "cut", "decrease", "double", "halve", "increase", "lower", "raise", "reduce", "set", "try"}
_SAME = {
    "ADAM_WD": "EMBEDDING_DECAY",
    "BATCH": "TOTAL_BATCH_SIZE",
    "BATCH_SIZE": "TOTAL_BATCH_SIZE",
    "EMBEDDING_WD": "EMBEDDING_DECAY",
    "LM_HEAD_WD": "HEAD_DECAY",
    "MUON_MOMENTUM_WARMUP": "MOMENTUM_RAMP_STEPS",
    "MUON_WD": "MATRIX_DECAY",
    "ROPE_BASE": "ROTARY_BASE",
    "ROPE_BASE_FREQUENCY": "ROTARY_BASE",
    "UNEMBEDDING_LR": "HEAD_LR",
    "VE_GATE_CHANNELS": "GATE_CHANNELS",
    "VE_LR": "VALUE_EMBEDDING_LR",
    "VE_WD": "VALUE_EMBEDDING_DECAY",
    "WARMDOWN": "WARMDOWN_RATIO",
    "WEIGHT_DECAY": "MATRIX_DECAY",
}


class Move(NamedTuple):
    """A constant that a description moves."""

    name: str
    before: float
    after: float


def move(description: str) -> Move | None:
    """What a description moves; None where it doesn't say so in the form that is read."""
    found = _MOVE.match(description.strip())
    if found is None:
        return None
    words = [word for word in re.split(r"[^A-Za-z0-9]+", found["name"]) if word]
    while words and words[0].lower() in _VERBS:
        words.pop(0)
    name = "_".join(words).upper()
    if not name or "SEED" in name:  # another seed is no move
        return None
    before, after = (
        float(found[value]) * _FACTORS.get(found[unit], 1.0) for value, unit in (("before", "b"), ("after", "a"))
    )
    return Move(_SAME.get(name, name), before, after)


class Described:
    """The constants of a search, as far as its descriptions tell, row after row."""

    def __init__(self, descriptions: Iterable[str]) -> None:
        """At the baseline each has the value from which it is first moved.

        Args:
            descriptions: of all rows, in order.
        """
        self._values: dict[str, float] = {}
        for found in map(move, descriptions):
            if found is not None:
                self._values.setdefault(found.name, found.before)

    def step(self, description: str, kept: bool) -> Mapping[str, float]:
        """The constants of the next row; of one whose words contradict what was kept before, those of the incumbent."""
        found = move(description)
        if found is None or self._values[found.name] != found.before:
            return dict(self._values)
        moved = {**self._values, found.name: found.after}
        if kept:
            self._values = moved
        return moved
