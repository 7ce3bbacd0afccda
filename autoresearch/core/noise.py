"""The spread of val_bpb between seeds of one source: a stated prior, updated by every fresh-seed measurement."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autoresearch.core.decide import Candidate, fresh_scores
from autoresearch.core.history import History
from autoresearch.core.interval import Interval, known_spread
from autoresearch.core.records import Prior, Record
from autoresearch.core.task import Rules

NOTHING = Prior(0.0, 0)


@dataclass(frozen=True)
class Spread:
    """A standard deviation, and what it rests on."""

    value: float
    """In bits per byte."""
    dof: float
    """Degrees of freedom, those of the prior included."""
    measured: int
    """Degrees of freedom that come from measurements, here or earlier; 0 is the stated prior alone."""

    def __str__(self) -> str:
        origin = f"{self.measured} measured" if self.measured else "stated prior"
        return f"{self.value:.4f} ({origin})"


def pooled(groups: Iterable[Sequence[float]]) -> Prior:
    """Squared deviations and degrees of freedom of groups of scores, each of one unchanged source.

    Args:
        groups: scores in bits per byte; groups of fewer than two say nothing.
    """
    square, dof = 0.0, 0
    for group in groups:
        if len(group) >= 2:
            mean = math.fsum(group) / len(group)
            square += math.fsum((x - mean) ** 2 for x in group)
            dof += len(group) - 1
    return Prior(square, dof)


def estimate(prior: float, prior_dof: float, groups: Iterable[Sequence[float]], earlier: Prior = NOTHING) -> Spread:
    """Pool a stated prior and what earlier runs measured with groups of fresh-seed measurements.

    The posterior scale of a scaled inverse chi-square prior (Gelman et al., Bayesian Data Analysis, section 2.6):
    s² = (ν₀ s₀² + Σ (x − group mean)²) / (ν₀ + Σ (n − 1)).

    Args:
        prior: s₀, in bits per byte.
        prior_dof: ν₀.
        groups: see `pooled`.
        earlier: what was measured before.
    """
    here = pooled(groups)
    measured = here.dof + earlier.dof
    dof = prior_dof + measured
    return Spread(math.sqrt((prior_dof * prior * prior + here.square + earlier.square) / dof), dof, measured)


def comparable_scores(history: History, record: Record) -> list[float]:
    """Scores of an experiment that are comparable with the run's present key, in order."""
    return [result.val_bpb for result in history.comparable(record) if result.val_bpb is not None]


def value_of(history: History, record: Record) -> float | None:
    """What an experiment is worth, in bits per byte; None after a failure, and where it isn't comparable by now."""
    if not history.current(record):
        return None
    # A discard was never worth anything but its score.
    return record.val_bpb if record.value is None else record.value


def gain_of(history: History, record: Record) -> float | None:
    """By how many bits per byte an experiment is better than the incumbent that it was made from.

    Returns:
        None where the two can't be compared; for the baseline, too.
    """
    parent = None if record.parent is None else history.experiments.get(record.parent)
    before, value = None if parent is None else value_of(history, parent), value_of(history, record)
    return None if before is None or value is None else before - value


def spread_among(candidates: Iterable[Candidate], rules: Rules, earlier: Prior = NOTHING) -> Spread:
    """The spread that the priors and the fresh, unsuspected scores of all decided candidates give."""
    return estimate(rules.spread, rules.spread_dof, _fresh(candidates), earlier)


def _fresh(candidates: Iterable[Candidate]) -> Iterator[list[float]]:
    return (fresh_scores(candidate, clean=True) for candidate in candidates if candidate.verdict is not None)


def spread_of(history: History, rules: Rules) -> Spread:
    """The spread as the next decision of a run sees it."""
    key = history.comparability_key
    known, former = history.priors.get(key, NOTHING), pooled(_fresh(history.former.get(key, ())))
    earlier = Prior(known.square + former.square, known.dof + former.dof)
    return spread_among(history.candidates, rules, earlier)


def gain_interval(history: History, confidence: float = 0.95) -> Interval | None:
    """From the baseline to the incumbent, in bits per byte, positive is better; with the run's own spread.

    It rests on the values that decided, so a clear keep counts at its shrunk value until a fresh measurement; the
    picking itself is not in it: an unbiased gain is what `audit` measures.

    Args:
        confidence: probability that the interval covers the true gain.

    Returns:
        None where the baseline is the incumbent, and where they can't be compared.
    """
    baseline, best = history.baseline, history.incumbent
    if baseline is None or best is None or best.number == baseline.number:
        return None
    if not (history.current(baseline) and history.current(best)):
        return None
    if baseline.value is None or best.value is None or min(baseline.value_n, best.value_n) < 1:
        return None
    s = spread_of(history, history.rules)
    return known_spread(baseline.value, baseline.value_n, best.value, best.value_n, s.value, s.dof, confidence)


def fresh_seed(run_seed: int, experiment: int, k: int) -> int:
    """The seed of measurement `k` of an experiment: 31 bits, never used twice in a run but by chance."""
    digest = hashlib.sha256(f"{run_seed}/{experiment}/{k}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
