"""Whether two lists of effects agree: in sign, and in order; with probabilities that hold for few of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FEWEST = 3
"""Pairs below which nothing is said of their order."""
EXACT = 8
"""Up to so many pairs all orders are gone through: 8! are 40,320."""
DRAWN = 9_999
"""Random orders above that."""


class Signs(NamedTuple):
    """Of pairs of effects."""

    same: int
    n: int
    """Pairs without those in which one is zero."""
    p: float
    """Two-sided sign test: how likely so uneven a split is where each pair agrees by the toss of a coin."""


class Ranks(NamedTuple):
    """Spearman's rank correlation."""

    rho: float
    n: int
    p: float
    """Two-sided: the share of orders that give a correlation as far from zero."""
    exact: bool
    """Whether all orders were gone through."""


def sign_agreement(first: Sequence[float], second: Sequence[float]) -> Signs:
    """How often the signs of paired effects agree, with the exact binomial probability.

    Args:
        first, second: paired, of equal length.
    """
    products = [x * y for x, y in zip(first, second, strict=True) if x and y]
    n, same = len(products), sum(product > 0 for product in products)
    tail = sum(math.comb(n, k) for k in range(min(same, n - same) + 1)) / 2**n
    return Signs(same, n, min(1.0, 2 * tail))


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> Ranks | None:
    """Spearman's ρ with its permutation probability; equal values share the mean of their ranks.

    With more than EXACT pairs DRAWN random orders stand for all, always the same ones; the observed order counts among
    them (Phipson and Smyth, Permutation p-values should never be zero, 2010).

    Args:
        first, second: paired, of equal length.

    Returns:
        None for fewer than FEWEST pairs, and where all of a list are equal.
    """
    n = len(first)
    if n < FEWEST or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    x, y = _standardised(first), _standardised(second)
    rho = float(x @ y)
    exact = n <= EXACT
    if exact:
        orders = np.array(list(permutations(range(n))))
    else:
        orders = np.random.default_rng(0).permuted(np.tile(np.arange(n), (DRAWN, 1)), axis=1)
    as_far = int(np.count_nonzero(np.abs(y[orders] @ x) >= abs(rho) - 1e-12))
    p = as_far / len(orders) if exact else (as_far + 1) / (len(orders) + 1)
    return Ranks(max(-1.0, min(1.0, rho)), n, p, exact)


def as_json(signs: Signs, ranks: Ranks | None) -> dict[str, Any]:
    """`signs` and `ranks` of a document; each is null where there are fewer than FEWEST pairs."""
    return {
        "signs": {"same": signs.same, "n": signs.n, "p": signs.p} if signs.n >= FEWEST else None,
        "ranks": None if ranks is None else {"rho": ranks.rho, "n": ranks.n, "p": ranks.p, "exact": ranks.exact},
    }


def _standardised(values: Sequence[float]) -> NDArray[np.float64]:
    """Ranks with mean 0 and length 1."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse]
    centred: NDArray[np.float64] = ranks - ranks.mean()
    return centred / np.linalg.norm(centred)
