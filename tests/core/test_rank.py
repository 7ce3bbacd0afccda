"""Agreement of effects, against values from tables and by hand."""

import numpy as np
import pytest

from autoresearch.core.rank import DRAWN, EXACT, rank_correlation, sign_agreement


def test_sign_agreement():
    assert sign_agreement([1, 2, -1, 3, 0], [4, -2, -2, 1, 9]) == (3, 4, pytest.approx(2 * 5 / 16))
    assert sign_agreement([1] * 6, [1] * 6) == (6, 6, pytest.approx(2 / 64))
    assert sign_agreement([1] * 6, [-1] * 6) == (0, 6, pytest.approx(2 / 64)), "all against each other is as uneven"
    assert sign_agreement([1, -1], [1, 1]).p == 1.0
    assert sign_agreement([], []) == (0, 0, 1.0)


def test_rank_correlation_of_few():
    """1 - 6 Σd² / (n(n² - 1)) without ties; of the 24 orders of four, how many are as far."""
    found = rank_correlation([1, 2, 3, 4], [10, 30, 20, 40])
    assert found == (pytest.approx(0.8), 4, pytest.approx(8 / 24), True)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == (pytest.approx(-1.0), 4, pytest.approx(2 / 24), True)
    assert rank_correlation([1, 2, 3], [1e-9, 5, 1e9]) == (pytest.approx(1.0), 3, pytest.approx(2 / 6), True)


def test_equal_values_share_their_rank():
    found = rank_correlation([1, 1, 2, 3], [5, 6, 7, 8])
    expected = np.corrcoef([1.5, 1.5, 3, 4], [1, 2, 3, 4])[0, 1]
    assert found is not None and found.rho == pytest.approx(expected)


def test_too_few_or_all_equal():
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
    assert rank_correlation([1, 2, 3], [1, 1, 1]) is None


def test_random_orders_stand_for_all():
    generator = np.random.default_rng(7)
    x = generator.normal(size=EXACT + 12)
    related = rank_correlation(x, x + 0.3 * generator.normal(size=len(x)))
    unrelated = rank_correlation(x, generator.normal(size=len(x)))
    assert related is not None and unrelated is not None
    assert not related.exact and related.p == 1 / (DRAWN + 1), "never zero"
    assert unrelated.p > 0.05
    assert rank_correlation(x, -x) == (pytest.approx(-1.0), len(x), 1 / (DRAWN + 1), False)


def test_what_is_drawn_agrees_with_what_is_counted():
    """At the border: nine pairs drawn against all 362,880 orders, within four standard errors."""
    from itertools import permutations

    x, y = np.arange(9.0), np.array([2.0, 0, 1, 5, 3, 4, 8, 6, 7])
    found = rank_correlation(x, y)
    assert found is not None and not found.exact
    centred = x - x.mean()
    products = np.array(list(permutations(centred))) @ centred
    true = np.mean(np.abs(products) >= abs((y - y.mean()) @ centred) - 1e-9)
    assert found.p == pytest.approx(true, abs=4 * np.sqrt(true / DRAWN) + 1 / DRAWN)
