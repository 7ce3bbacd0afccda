"""The rule under noise, complete: from what was measured to the next step and its reason. Pure, no files, no git.

z = (m − x) / (s·√(1/k + 1/n)) compares the mean x of k measurements of a candidate with the mean m of n fresh
measurements of the incumbent, in units of the spread s of that difference; a first score has k = 1.

`next_step` is asked after everything that happens, and its answer is done before it is asked again. The same scores
in the same order therefore give the same steps: in a search, in a replay of its journal, in a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from autoresearch.core.contract import Status, Verdict
from autoresearch.core.task import Rules


@dataclass(frozen=True, slots=True)
class Score:
    """One measurement, as far as the rule looks at it."""

    val_bpb: float | None
    """Bits per byte, finite; None after a failure."""
    status: Status = "ok"
    reason: str = ""
    """Of a failure."""
    suspect: str = ""
    """Why the machine may have changed it; "" where nothing was seen."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One experiment, as far as the rule looks at it."""

    number: int
    """0 is the baseline."""
    code_size: int
    """Lines, comments and blank lines not counted."""
    scores: tuple[Score, ...] = ()
    """In order, those that are comparable with what is measured next."""
    verdict: Verdict | None = None
    """None while it is undecided."""
    value: float | None = None
    """What a kept one is worth here, in bits per byte; None where no comparable score says so."""
    value_n: int = 0
    """Measurements that `value` stands for."""
    withdrawn: bool = False
    judged_here: bool = True
    """Whether its verdict rests on `scores`; not where it was decided on another machine."""

    @property
    def kept(self) -> bool:
        return self.verdict == "keep" and not self.withdrawn


@dataclass(frozen=True, slots=True)
class Measure:
    """Measure an experiment once more, with a fresh seed."""

    number: int
    reason: str
    """Why; "" for the first score."""


@dataclass(frozen=True, slots=True)
class Decide:
    """An experiment has its verdict."""

    number: int
    verdict: Verdict
    reason: str
    val_bpb: float | None
    """Mean of the scores that it was judged by; None after a failure."""
    z: float | None = None
    """Of the first score; None for the baseline and after a failure."""
    value: float | None = None
    """Of a kept one."""
    value_n: int = 0
    near_miss: bool = False
    """Discarded, though its first score was an unclear gain."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """The incumbent is worth this from now on: the mean of its fresh measurements."""

    number: int
    value: float
    value_n: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """A keep that fresh measurements don't bear out; the former incumbent is the incumbent again."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Propose:
    """Nothing is owed: the next experiment may begin."""


Step = Measure | Decide | Anchor | Withdraw | Propose

DOUBTFUL = "the only fresh score of the incumbent is suspect: it is measured again first"


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
    """What the scores of one candidate say, with the numbers it follows from."""

    action: Literal["keep", "discard", "retest"]
    reason: str
    z: float
    """Of the first score."""
    value: float | None = None
    """The value of the incumbent after a keep."""
    n: int = 0
    """Measurements that `value` stands for."""


def next_step(experiments: Sequence[Candidate], spread: float, rules: Rules) -> Step:
    """The next step of a search, with its reason.

    Args:
        experiments: in order, the baseline first; the last may be undecided.
        spread: standard deviation of val_bpb between seeds of one source, in bits per byte.
        rules: thresholds.

    Returns:
        `Propose` also where the baseline failed, so that there is no incumbent.
    """
    pending = experiments[-1] if experiments and experiments[-1].verdict is None else None
    kept = (candidate for candidate in reversed(experiments) if candidate.kept)
    incumbent, former = next(kept, None), next(kept, None)
    if incumbent is None:
        return Propose() if pending is None else _baseline(pending)
    if step := _settle(incumbent, former):
        return step
    if pending is not None:
        return _judge(pending, incumbent, spread, rules)
    if experiments[-1].number - incumbent.number >= rules.fresh_within:
        if not fresh_scores(incumbent):
            due = f"{rules.fresh_within} experiments after its keep, a fresh measurement is due"
            return Measure(incumbent.number, due)
        if _doubtful(incumbent):
            return Measure(incumbent.number, DOUBTFUL)
    return Propose()


def usable(candidate: Candidate) -> tuple[list[Score], str]:
    """The measurements to go by, and why the last one must be repeated first ("" where it needn't).

    A suspect one is repeated once. The repeat counts in its place, suspect or not.
    """
    used: list[Score] = []
    suspect = ""
    for score in candidate.scores:
        if suspect or not score.suspect:
            used.append(score)
            suspect = ""
        else:
            suspect = score.suspect
    return used, suspect


def fresh_scores(candidate: Candidate, clean: bool = False) -> list[float]:
    """Scores of fresh seeds, in bits per byte, in order.

    The first score of a candidate picked it, so only those after it are fresh. The baseline was not picked, nor was a
    candidate by its scores on a machine that it wasn't judged on. A suspect repeat counts where there is nothing else.

    Args:
        clean: leave it out even there.
    """
    used = usable(candidate)[0][1 if candidate.number and candidate.judged_here else 0 :]
    found = [score.val_bpb for score in used if score.val_bpb is not None and not score.suspect]
    return found or ([] if clean else [score.val_bpb for score in used if score.val_bpb is not None])


def _doubtful(incumbent: Candidate) -> bool:
    """Whether its value rests on one suspect repeat: on a machine that stays busy, two of them have to do."""
    fresh = fresh_scores(incumbent)
    return len(fresh) == 1 and not fresh_scores(incumbent, clean=True)


def _baseline(pending: Candidate) -> Step:
    used, suspect = usable(pending)
    if suspect:
        return Measure(pending.number, f"suspect: {suspect}")
    if not used:
        return Measure(pending.number, "")
    score = used[0]
    if score.val_bpb is None:
        return _failed(pending, score)
    return Decide(pending.number, "keep", _flagged("baseline", used), score.val_bpb, None, score.val_bpb, 1)


def _settle(incumbent: Candidate, former: Candidate | None) -> Step | None:
    """What the incumbent's own measurements ask for; None where its value stands."""
    number = incumbent.number
    used, suspect = usable(incumbent)
    if suspect:
        return Measure(number, f"suspect: {suspect}")
    fresh = fresh_scores(incumbent)
    if not fresh:
        if incumbent.value is None:
            return Measure(
                number, "no fresh measurement of the incumbent is comparable with what this machine measures"
            )
        failures = [score for score in used if score.val_bpb is None]
        if len(failures) >= 2 and former is not None:
            return Withdraw(number, f"fails with fresh seeds: {failures[-1].status}: {failures[-1].reason}")
        if failures:
            return Measure(number, f"{failures[-1].status} with a fresh seed: {failures[-1].reason}")
        return None
    value, n = _mean(fresh), len(fresh)
    if former is not None and former.value is not None and value > former.value:
        told = f"{value:.4f} bpb with fresh seeds, n {n}, is above the former incumbent's {former.value:.4f}"
        return Withdraw(number, told) if n >= 2 else Measure(number, told)
    if (incumbent.value, incumbent.value_n) != (value, n):
        return Anchor(number, value, n)
    return None


def _judge(pending: Candidate, incumbent: Candidate, spread: float, rules: Rules) -> Step:
    """The step that an undecided candidate asks for."""
    assert incumbent.value is not None, "settled before"
    used, suspect = usable(pending)
    if suspect:
        return Measure(pending.number, f"suspect: {suspect}")
    if failure := next((score for score in used if score.val_bpb is None), None):
        return _failed(pending, failure)
    scores = [score.val_bpb for score in used if score.val_bpb is not None]
    if not scores:
        return Measure(pending.number, "")
    against = Incumbent(incumbent.value, incumbent.value_n, incumbent.code_size)
    decision = decide(against, scores, pending.code_size, spread, rules)
    if decision.action != "discard" and _doubtful(incumbent):
        return Measure(incumbent.number, f"#{pending.number} is {decision.reason}, but {DOUBTFUL}")
    if decision.action == "retest":
        if not fresh_scores(incumbent):
            told = f"#{pending.number} is {decision.reason}: a fresh measurement of the incumbent comes first"
            return Measure(incumbent.number, told)
        return Measure(pending.number, decision.reason)
    if decision.action == "keep" and all(score.suspect for score in used):
        # A machine that became faster would be kept in the candidate's name.
        reason = _flagged(f"{decision.reason}, but no score is clean", used)
        unclear = decision.z >= rules.retest_z
        return Decide(pending.number, "discard", reason, _mean(scores), decision.z, near_miss=unclear)
    return Decide(
        pending.number,
        decision.action,
        _flagged(decision.reason, used),
        _mean(scores),
        decision.z,
        decision.value,
        decision.n,
        near_miss=decision.action == "discard" and decision.z >= rules.retest_z,
    )


def _failed(pending: Candidate, score: Score) -> Decide:
    assert score.status != "ok", "a score is missing after a failure alone"
    return Decide(pending.number, score.status, _flagged(score.reason, [score]), None)


def _flagged(reason: str, used: Sequence[Score]) -> str:
    """The reason of a verdict that rests on a repeat which was suspect again says so."""
    told = next((score.suspect for score in used if score.suspect), "")
    return f"{reason} (suspect, also when repeated: {told})" if told else reason


def _mean(scores: Sequence[float]) -> float:
    return math.fsum(scores) / len(scores)


def shrink(incumbent: float, score: float, z: float) -> float:
    """The score after a clear keep, moved towards the incumbent for having been picked.

    The positive-part James–Stein factor 1 − 1/z² of one difference in units of its own spread.
    """
    return incumbent - (incumbent - score) * max(0.0, 1.0 - 1.0 / (z * z))


def decide(incumbent: Incumbent, scores: Sequence[float], code_size: int, spread: float, rules: Rules) -> Decision:
    """Judge a candidate by its measurements so far.

    A first score with z >= keep_z is kept, with the shrunk value; one with z >= retest_z is measured once more and
    kept if the retest beats the incumbent. On a tie the shorter file wins.

    With `rules.strict` no first score is kept for its gain: from retest_z on, a candidate is measured `strict_retests`
    times more, stopped as soon as the mean of these fresh scores doesn't beat the incumbent, and kept if the z of
    their mean is at least `strict_z`.

    Args:
        incumbent: the best candidate kept.
        scores: of the candidate, in order, all finite; the first picks it, those after it are retests.
        code_size: lines of the candidate.
        spread: standard deviation of val_bpb between seeds.
        rules: thresholds.

    Raises:
        ValueError: no scores, or a score that isn't finite: a failure is never judged.
    """
    if not scores or not all(math.isfinite(x) for x in scores):
        raise ValueError(f"a verdict needs finite scores, received {list(scores)}")
    first = scores[0]
    z = _z(incumbent, first, 1, spread)
    gain = f"{first - incumbent.value:+.4f} bpb, z {z:.1f}"
    if z >= rules.retest_z and rules.strict:
        return _confirmed(incumbent, scores[1:], spread, rules, z, gain)
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


def _confirmed(
    incumbent: Incumbent, retests: Sequence[float], spread: float, rules: Rules, z: float, gain: str
) -> Decision:
    """The strict rule, from the retests alone; `z` and `gain` are those of the first score."""
    if not retests:
        return Decision("retest", f"to be confirmed: {gain}", z)
    value, n = _mean(retests), len(retests)
    confirmed = _z(incumbent, value, n, spread)
    told = f"{value - incumbent.value:+.4f} bpb in {n} fresh measurement{'s' if n > 1 else ''}, z {confirmed:.1f}"
    if value < incumbent.value and n < rules.strict_retests:
        return Decision("retest", f"to be confirmed: {told}", z)
    if confirmed >= rules.strict_z:
        return Decision("keep", f"confirmed: {told}", z, value, n)
    return Decision("discard", f"not confirmed: {told}", z)


def _z(incumbent: Incumbent, mean: float, k: int, spread: float) -> float:
    return (incumbent.value - mean) / (spread * math.sqrt(1.0 / k + 1.0 / incumbent.n))


def applied(candidate: Candidate, step: Decide | Anchor | Withdraw) -> Candidate:
    """The candidate after a step about it was taken."""
    match step:
        case Decide():
            return replace(candidate, verdict=step.verdict, value=step.value, value_n=step.value_n)
        case Anchor():
            return replace(candidate, value=step.value, value_n=step.value_n)
        case Withdraw():
            return replace(candidate, withdrawn=True)
