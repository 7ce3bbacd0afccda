"""Confidence intervals of a difference of means, for few measurements of unequal spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, variance
from typing import NamedTuple

import numpy as np

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


class Interval(NamedTuple):
    """An estimate between its confidence limits, all in the unit of the samples."""

    mean: float
    low: float
    high: float
    dof: float
    """Degrees of freedom of the t distribution that the limits come from."""

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def t_quantile(p: float, dof: float) -> float:
    """The p-quantile of Student's t distribution.

    With t = √ν·tan θ the density becomes Γ((ν+1)/2) / (√π·Γ(ν/2)) · cos^(ν−1) θ, which is smooth and bounded: its
    integral from 0 is taken by Gauss–Legendre quadrature of 64 nodes and inverted by bisection, to about ten digits.

    Args:
        p: 0 < p < 1.
        dof: degrees of freedom ν, 1 or more, not necessarily whole.

    Raises:
        ValueError: out of these ranges.
    """
    if not (0 < p < 1 and dof >= 1):
        raise ValueError(f"a quantile of t needs 0 < p < 1 and 1 or more degrees of freedom, received {p} and {dof}")
    if dof > 1e6:
        return NormalDist().inv_cdf(p)  # they agree to six digits, where the gamma functions begin to cancel
    scale = math.exp(math.lgamma((dof + 1) / 2) - math.lgamma(dof / 2)) / math.sqrt(math.pi)
    target = abs(p - 0.5) / scale
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        half = middle / 2
        area = half * float(np.dot(_WEIGHTS, np.cos(half * (_NODES + 1)) ** (dof - 1)))
        low, high = (middle, high) if area < target else (low, middle)
    return math.copysign(math.sqrt(dof) * math.tan(low), p - 0.5) if target else 0.0


def known_spread(
    first: float, n: int, second: float, m: int, spread: float, dof: float, confidence: float = 0.95
) -> Interval:
    """The difference of two means, first minus second, whose measurements share a spread that is known apart from them.

    t with ν degrees of freedom times s·√(1/n + 1/m): the interval of two samples with a pooled variance.

    Args:
        first, second: means.
        n, m: measurements behind each, 1 or more.
        spread: s, the standard deviation of one measurement.
        dof: ν of it, positive; below 1 counts as 1.
        confidence: probability that the interval covers the true difference, for normal measurements.

    Raises:
        ValueError: a mean of no measurements.
    """
    if min(n, m) < 1:
        raise ValueError(f"an interval needs a measurement of each, received {n} and {m}")
    mean, dof = first - second, max(1.0, dof)
    half = t_quantile((1 + confidence) / 2, dof) * spread * math.sqrt(1 / n + 1 / m)
    return Interval(mean, mean - half, mean + half, dof)


def spread_limits(spread: float, dof: int, confidence: float = 0.9) -> tuple[float, float]:
    """The confidence interval of a standard deviation, for normal measurements: s·√(ν / χ²) at both tails.

    Args:
        spread: s, estimated from the measurements.
        dof: degrees of freedom ν of it, 1 or more.
        confidence: probability that the interval covers the true one.
    """
    tail = (1 - confidence) / 2
    low, high = (spread * math.sqrt(dof / chi_square_quantile(p, dof)) for p in (1 - tail, tail))
    return low, high


def chi_square_quantile(p: float, dof: float) -> float:
    """The p-quantile of the chi-square distribution, to about ten digits.

    By bisection of its distribution function, the regularised incomplete gamma function P(ν/2, x/2) by its power series
    (Abramowitz and Stegun, Handbook of Mathematical Functions, 6.5.29).

    Args:
        p: 0 < p < 1.
        dof: degrees of freedom ν, positive.

    Raises:
        ValueError: out of these ranges.
    """
    if not (0 < p < 1 and dof > 0):
        raise ValueError(f"a quantile needs 0 < p < 1 and positive degrees of freedom, received {p} and {dof}")
    low, high = 0.0, dof + 20 * math.sqrt(2 * dof) + 100  # beyond any tail that a float can tell from 1
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _chi_square_below(middle, dof) < p else (low, middle)
    return (low + high) / 2


def _chi_square_below(x: float, dof: float) -> float:
    a, half = dof / 2, x / 2
    if not half:
        return 0.0
    term = total = 1.0 / a
    n = a
    while term > 1e-15 * total:
        n += 1
        term *= half / n
        total += term
    return math.exp(a * math.log(half) - half - math.lgamma(a)) * total


def welch(first: Sequence[float], second: Sequence[float], confidence: float = 0.95) -> Interval:
    """The difference of means, first minus second, with its confidence interval.

    Welch's interval (The generalization of "Student's" problem, Biometrika 34, 1947): the samples may differ in size
    and in spread; the degrees of freedom are those of Welch and Satterthwaite.

    Args:
        first, second: independent samples of at least two each.
        confidence: probability that the interval covers the true difference, where the samples are normal.

    Raises:
        ValueError: fewer than two of either.
    """
    if min(len(first), len(second)) < 2:
        raise ValueError(f"an interval needs two or more measurements of each, received {len(first)}, {len(second)}")
    squares = [variance(sample) / len(sample) for sample in (first, second)]
    total = sum(squares)
    mean = fmean(first) - fmean(second)
    if total == 0:
        return Interval(mean, mean, mean, float(len(first) + len(second) - 2))
    dof = total**2 / sum(s**2 / (len(x) - 1) for s, x in zip(squares, (first, second), strict=True))
    half = t_quantile((1 + confidence) / 2, dof) * math.sqrt(total)
    return Interval(mean, mean - half, mean + half, dof)
