"""Whether the machine, not the candidate, may have changed a score.

Judged by what each measurement says of its machine: interruptions, the rate of the device probe before and after
training, and the drift of its step times. The last two can be the candidate's doing, by a setting that slows the
device or a schedule that makes steps dearer. Where another measurement of the same source shows the same, they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import TypeVar

from autoresearch.core.amounts import flops
from autoresearch.core.contract import Result

RECENT = 12
"""Measurements that a band is made of."""
LASTING = 6
"""So many suspect measurements in a row are no incident: the machine is another one now, and its band begins anew."""
DEVIATIONS = 4.0
"""Half width of a band in robust standard deviations, 1.4826 times the median absolute deviation."""
NARROWEST, WIDEST = 0.15, 0.3
"""Bounds of that half width, as a share of the median: half-second probes of a machine at rest differ by 2 %, a
laptop's clock moves by 10 %, and a busy process takes 25 to 45 % of two cores."""
FEW, UNKNOWN = 3, 0.2
"""With fewer measurements than FEW their spread isn't known, and UNKNOWN is the half width."""
DRIFT = 0.25
"""How much slower or faster steps may become within a measurement."""

T = TypeVar("T")
Number = Callable[[Result], float | None]


def _before(result: Result) -> float | None:
    return result.probe_before


def _after(result: Result) -> float | None:
    return result.probe_after


def _change(result: Result) -> float | None:
    """The later probe over the earlier one."""
    return result.probe_after / result.probe_before if result.probe_before and result.probe_after else None


def _drift(result: Result) -> float | None:
    return result.step_drift


def suspicion(result: Result, earlier: Sequence[Result]) -> str:
    """Why a measurement is suspect, with the numbers; "" where nothing was seen.

    Args:
        result: of the measurement; `suspect` holds what its executor saw.
        earlier: results with the same comparability key, in order, each with its own verdict in `suspect`.
    """
    normal = _normal(earlier)
    own = [other for other in earlier if other.source_hash == result.source_hash]
    reasons = [result.suspect]
    # Where nothing was clean yet, the fastest probe is the best guess of a machine at rest.
    fastest = sorted([*_values(earlier, _before), *_values(earlier, _after)])[-1:]
    if reason := _left_band("before training", result.probe_before, _values(normal, _before) or fastest):
        reasons.append(reason)
    elif not _seen_before(result, own, _change):
        if afters := _values(normal, _after):
            reasons.append(_left_band("after training", result.probe_after, afters))
        elif (change := _change(result)) is not None and _far(change, 1.0, UNKNOWN):
            reasons.append(f"the device ran at {change:.2f} times its rate before training once that was over")
    if (drift := result.step_drift) is not None and _far(drift, 1.0, DRIFT) and not _seen_before(result, own, _drift):
        reasons.append(f"steps took {drift:.2f} times as long later in the training as in its first third")
    return "; ".join(filter(None, reasons))


def counted(measurements: Iterable[T], result_of: Callable[[T], Result]) -> list[T]:
    """The measurements that count: failures don't, and a suspect one is made again, once, in its place."""
    chosen, repeated = [], False
    for made in measurements:
        result = result_of(made)
        if result.status != "ok":
            continue
        if result.suspect and not repeated:
            repeated = True
            continue
        chosen.append(made)
        repeated = False
    return chosen


def _normal(earlier: Sequence[Result]) -> list[Result]:
    """The measurements that say what this machine does when nothing disturbs it."""
    normal: list[Result] = []
    streak: list[Result] = []
    for result in earlier:
        streak = [*streak, result] if result.suspect else []
        if len(streak) >= LASTING:
            normal = list(streak)
        elif not result.suspect:
            normal.append(result)
    return normal[-RECENT:]


def _values(results: Iterable[Result], number: Number) -> list[float]:
    return [value for value in map(number, results) if value is not None]


def _far(value: float, usual: float, share: float) -> bool:
    return not (1 - share) * usual <= value <= (1 + share) * usual


def _left_band(when: str, rate: float | None, usual: Sequence[float]) -> str:
    if rate is None or not usual:
        return ""
    middle = median(usual)
    width = UNKNOWN
    if len(usual) >= FEW:
        deviation = 1.4826 * median(abs(value - middle) for value in usual) / middle
        width = min(max(DEVIATIONS * deviation, NARROWEST), WIDEST)
    if not _far(rate, middle, width):
        return ""
    return f"{when} the device ran at {flops(rate)}, usual are {flops(middle)} within {width:.0%}"


def _seen_before(result: Result, own: Iterable[Result], number: Number) -> bool:
    """Whether another measurement of the same source shows the same number, within NARROWEST."""
    value = number(result)
    return value is not None and any(not _far(other, value, NARROWEST) for other in _values(own, number))
