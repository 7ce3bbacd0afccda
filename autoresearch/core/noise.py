"""The spread of val_bpb between seeds of one source: a stated prior, updated by every fresh-seed measurement."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoresearch.core.history import History, Record
from autoresearch.core.task import Rules


@dataclass(frozen=True)
class Spread:
    """A standard deviation, and what it rests on."""

    value: float
    """In bits per byte."""
    dof: float
    """Degrees of freedom, those of the prior included."""
    measured: int
    """Degrees of freedom that come from measurements here; 0 is the stated prior alone."""

    def __str__(self) -> str:
        origin = f"{self.measured} measured" if self.measured else "stated prior"
        return f"{self.value:.4f} ({origin})"


def estimate(prior: float, prior_dof: float, groups: Iterable[Sequence[float]]) -> Spread:
    """Pool a prior with groups of fresh-seed measurements, each group of one unchanged source.

    The posterior scale of a scaled inverse chi-square prior (Gelman et al., Bayesian Data Analysis, section 2.6):
    s² = (ν₀ s₀² + Σ (x − group mean)²) / (ν₀ + Σ (n − 1)).

    Args:
        prior: s₀, in bits per byte.
        prior_dof: ν₀.
        groups: scores in bits per byte; groups of fewer than two say nothing.
    """
    square = prior_dof * prior * prior
    measured = 0
    for group in groups:
        if len(group) >= 2:
            mean = math.fsum(group) / len(group)
            square += math.fsum((x - mean) ** 2 for x in group)
            measured += len(group) - 1
    dof = prior_dof + measured
    return Spread(math.sqrt(square / dof), dof, measured)


def comparable_scores(history: History, record: Record) -> list[float]:
    """Scores of an experiment that are comparable with the run's present key, in order."""
    key = history.comparability_key
    return [r.val_bpb for r in record.results if r.val_bpb is not None and r.comparability_key == key]


def spread_of(history: History, rules: Rules) -> Spread:
    """The spread that a run's prior and its fresh measurements give.

    The first score of a candidate picked it, so only those after it are fresh; the baseline was not picked.
    """
    fresh = (comparable_scores(history, record)[0 if n == 0 else 1 :] for n, record in history.experiments.items())
    return estimate(rules.spread, rules.spread_dof, fresh)


def fresh_seed(run_seed: int, experiment: int, k: int) -> int:
    """The seed of measurement `k` of an experiment: 31 bits, never used twice in a run but by chance."""
    digest = hashlib.sha256(f"{run_seed}/{experiment}/{k}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
