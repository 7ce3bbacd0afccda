import math

import numpy as np
import pytest

from autoresearch.core import interval
from autoresearch.core.interval import known_spread, t_quantile, welch


@pytest.mark.parametrize(
    ("p", "dof", "expected"),
    # Tables of Student's t, e.g. NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2.
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 5, 2.571),
        (0.975, 10, 2.228),
        (0.975, 30, 2.042),
        (0.975, 100, 1.984),
        (0.95, 7, 1.895),
        (0.90, 15, 1.341),
        (0.999, 3, 10.215),
        (0.999, 60, 3.232),
    ],
)
def test_quantiles_are_those_of_the_table(p, dof, expected):
    assert t_quantile(p, dof) == pytest.approx(expected, abs=5.1e-4)
    assert t_quantile(1 - p, dof) == -t_quantile(p, dof)


def test_closed_forms_between_whole_degrees_and_at_the_end():
    assert t_quantile(0.9, 1) == pytest.approx(math.tan(math.pi * 0.4), rel=1e-10)  # Cauchy
    assert t_quantile(0.9, 2) == pytest.approx(0.8 * math.sqrt(2 / (1 - 0.8**2)), rel=1e-10)
    assert t_quantile(0.975, 5) > t_quantile(0.975, 5.5) > t_quantile(0.975, 6)
    assert t_quantile(0.975, 9e5) == pytest.approx(t_quantile(0.975, 2e6), rel=1e-5)
    assert t_quantile(0.5, 3) == 0


@pytest.mark.parametrize(("p", "dof"), [(0, 3), (1, 3), (0.9, 0.5), (math.nan, 3), (0.9, math.nan)])
def test_other_arguments_are_refused(p, dof):
    with pytest.raises(ValueError, match="a quantile of t"):
        t_quantile(p, dof)


def test_the_interval_of_a_worked_example():
    """Two samples with s²/n of 1 and 4 and 4 and 9 degrees of freedom: Welch–Satterthwaite gives 25 / (1/4 + 16/9)."""
    a, b = np.array([-1.0, -0.5, 0, 0.5, 1.0]), np.linspace(-1, 1, 10)
    first, second = (7 + a * math.sqrt(5 / a.var(ddof=1))).tolist(), (4 + b * math.sqrt(40 / b.var(ddof=1))).tolist()
    found = welch(first, second)
    assert found.mean == pytest.approx(3)
    assert found.dof == pytest.approx(25 / (1 / 4 + 16 / 9))
    assert found.half_width == pytest.approx(t_quantile(0.975, found.dof) * math.sqrt(5))
    assert (found.low + found.high) / 2 == pytest.approx(3)


def test_equal_scores_have_no_width_and_one_score_no_interval():
    assert welch([2.0, 2.0], [1.5, 1.5, 1.5]) == (0.5, 0.5, 0.5, 3.0)
    with pytest.raises(ValueError, match="two or more"):
        welch([1.0], [1.0, 2.0])


def coverage(monkeypatch=None, quantile=t_quantile) -> float:
    if monkeypatch is not None:
        monkeypatch.setattr(interval, "t_quantile", quantile)
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(1000):
        found = welch(rng.normal(2.0, 1.0, 4).tolist(), rng.normal(1.0, 3.0, 6).tolist())
        hits += found.low <= 1.0 <= found.high
    return hits / 1000


def test_the_interval_covers_as_often_as_it_says(monkeypatch):
    assert 0.93 <= coverage() <= 0.97
    assert coverage(monkeypatch, lambda p, dof: 1.959964) < 0.93, "quantiles of the normal would be noticed"


def test_a_spread_that_is_known_makes_an_interval_of_one_measurement_each():
    """Two samples of equal variance, by the textbook: t(n + m − 2)·s_p·√(1/n + 1/m)."""
    found = known_spread(10.0, 4, 7.0, 12, spread=2.0, dof=14)
    assert found.mean == 3
    assert found.half_width == pytest.approx(2.145 * 2 * math.sqrt(1 / 4 + 1 / 12), abs=1e-3)
    one = known_spread(2.0, 1, 1.9, 1, spread=0.01, dof=4)
    assert one.half_width == pytest.approx(2.776 * 0.01 * math.sqrt(2), abs=1e-4)
    assert one.half_width > known_spread(2.0, 1, 1.9, 5, spread=0.01, dof=4).half_width
    assert one.half_width > known_spread(2.0, 1, 1.9, 1, spread=0.01, dof=40).half_width
    assert known_spread(2.0, 1, 1.9, 1, spread=0.01, dof=0.5).dof == 1
    with pytest.raises(ValueError, match="a measurement of each, received 0 and 1"):
        known_spread(2.0, 0, 1.9, 1, spread=0.01, dof=4)


def test_a_known_spread_covers_the_true_difference_as_often_as_it_says():
    """Normal scores around a true difference of 0.3, the spread estimated apart from them with 6 degrees of freedom."""
    generator = np.random.default_rng(3)
    trials = 4000
    first = generator.normal(2.3, 0.1, (trials, 2)).mean(axis=1)
    second = generator.normal(2.0, 0.1, (trials, 3)).mean(axis=1)
    spreads = 0.1 * np.sqrt(generator.chisquare(6, trials) / 6)
    found = [known_spread(a, 2, b, 3, s, 6) for a, b, s in zip(first, second, spreads, strict=True)]
    covered = sum(i.low <= 0.3 <= i.high for i in found) / trials
    assert covered == pytest.approx(0.95, abs=0.012)
