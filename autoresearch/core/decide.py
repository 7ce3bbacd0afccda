"""The verdict under noise: a pure function of the scores so far.

z = (m − x) / (s·√(1 + 1/n)) compares the candidate's score x with the mean m of n fresh measurements of the incumbent,
in units of the spread s of that difference. A clear gain is kept at once, an unclear one is measured once more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from autoresearch.core.task import Rules


@dataclass(frozen=True)
class Incumbent:
    """What a candidate is held against."""

    value: float
    """Mean of its fresh-seed measurements in bits per byte, or the shrunk score after a clear keep."""
    n: int
    """Measurements that the value stands for."""
    code_size: int
    """Lines, comments and blank lines not counted."""


@dataclass(frozen=True)
class Decision:
    """The next step, with its reason and the numbers it follows from."""

    action: Literal["keep", "discard", "retest"]
    reason: str
    z: float
    value: float | None = None
    """The value of the incumbent after a keep."""
    n: int = 0
    """Measurements that `value` stands for."""


def shrink(incumbent: float, score: float, z: float) -> float:
    """The score after a clear keep, moved towards the incumbent for having been picked.

    The positive-part James–Stein factor 1 − 1/z² of one difference in units of its own spread.
    """
    return incumbent - (incumbent - score) * max(0.0, 1.0 - 1.0 / (z * z))


def decide(incumbent: Incumbent, scores: Sequence[float], code_size: int, spread: float, rules: Rules) -> Decision:
    """Judge a candidate by its measurements so far.

    Args:
        incumbent: the best candidate kept.
        scores: of the candidate, in order, all finite; one or two.
        code_size: lines of the candidate.
        spread: standard deviation of val_bpb between seeds.
        rules: thresholds.

    Raises:
        ValueError: no scores, or a score that isn't finite: a failure is never judged.
    """
    if not scores or not all(math.isfinite(x) for x in scores):
        raise ValueError(f"a verdict needs finite scores, received {list(scores)}")
    first = scores[0]
    z = (incumbent.value - first) / (spread * math.sqrt(1.0 + 1.0 / incumbent.n))
    gain = f"{first - incumbent.value:+.4f} bpb, z {z:.1f}"
    if z >= rules.keep_z:
        return Decision("keep", f"clear: {gain}", z, shrink(incumbent.value, first, z), 1)
    if z >= rules.retest_z:
        if len(scores) == 1:
            return Decision("retest", f"unclear: {gain}", z)
        again = scores[1]
        told = f"{again - incumbent.value:+.4f} bpb the second time"
        if again < incumbent.value:
            return Decision("keep", f"retested: {told}", z, again, 1)
        return Decision("discard", f"retested: {told}", z)
    if first == incumbent.value and code_size < incumbent.code_size:
        return Decision(
            "keep", f"a tie with {incumbent.code_size - code_size} lines less", z, incumbent.value, incumbent.n
        )
    return Decision("discard", gain, z)
