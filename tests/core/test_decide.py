"""The verdict: thresholds, retest, ties; and the spread it rests on."""

import math

import pytest

from autoresearch.core.decide import Incumbent, decide, shrink
from autoresearch.core.noise import estimate, fresh_seed
from autoresearch.core.task import Rules

RULES = Rules()
SPREAD = 0.01
ONE = Incumbent(value=1.0, n=1, code_size=100)


def at(z, incumbent=ONE):
    """The score whose z against `incumbent` is `z`."""
    return incumbent.value - z * SPREAD * math.sqrt(1 + 1 / incumbent.n)


@pytest.mark.parametrize(
    ("z", "action"),
    [(6.0, "keep"), (2.51, "keep"), (2.49, "retest"), (0.51, "retest"), (0.49, "discard"), (-3.0, "discard")],
)
def test_first_score_is_judged_by_z(z, action):
    decision = decide(ONE, [at(z)], 100, SPREAD, RULES)
    assert decision.action == action
    assert decision.z == pytest.approx(z)


def test_more_measurements_of_the_incumbent_make_the_same_gain_clearer():
    score = at(2.49)
    assert decide(ONE, [score], 100, SPREAD, RULES).action == "retest"
    assert decide(Incumbent(1.0, 8, 100), [score], 100, SPREAD, RULES).action == "keep"


def test_a_retest_keeps_only_what_beats_the_incumbent_again():
    kept = decide(ONE, [at(1.0), 0.9999], 100, SPREAD, RULES)
    assert (kept.action, kept.value, kept.n) == ("keep", 0.9999, 1)
    assert decide(ONE, [at(1.0), 1.0], 100, SPREAD, RULES).action == "discard"


def test_a_clear_keep_is_valued_below_its_lucky_score():
    score = at(3.0)
    kept = decide(ONE, [score], 100, SPREAD, RULES)
    assert score < kept.value < ONE.value
    assert kept.value == pytest.approx(ONE.value - (ONE.value - score) * (1 - 1 / 9))


def test_shrinking_never_passes_the_incumbent():
    assert shrink(1.0, 0.999, 0.5) == 1.0
    assert shrink(1.0, 0.9, 100.0) == pytest.approx(0.9, abs=1e-4)


@pytest.mark.parametrize(("size", "action"), [(99, "keep"), (100, "discard"), (101, "discard")])
def test_on_a_tie_the_shorter_file_wins(size, action):
    assert decide(ONE, [1.0], size, SPREAD, RULES).action == action


@pytest.mark.parametrize("scores", [[], [math.nan], [math.inf], [0.9, math.nan]])
def test_a_failure_is_never_judged(scores):
    with pytest.raises(ValueError, match="finite"):
        decide(ONE, scores, 100, SPREAD, RULES)


def test_spread_is_the_prior_until_something_is_measured():
    spread = estimate(0.02, 4, [[1.0], []])
    assert (spread.value, spread.dof, spread.measured) == (pytest.approx(0.02), 4, 0)
    assert "prior" in str(spread)


def test_spread_pools_groups_around_their_own_means():
    spread = estimate(0.02, 4, [[1.00, 1.02], [5.00, 5.04]])
    expected = math.sqrt((4 * 0.0004 + 0.0002 + 0.0008) / 6)
    assert spread.value == pytest.approx(expected)
    assert spread.measured == 2


def test_many_measurements_outweigh_the_prior():
    group = [1.0 + 0.001 * (-1) ** i for i in range(400)]
    assert estimate(0.05, 4, [group]).value == pytest.approx(0.005, abs=0.001)


def test_seeds_are_not_reused():
    seeds = {fresh_seed(7, n, k) for n in range(500) for k in range(4)}
    assert len(seeds) == 2000
    assert fresh_seed(7, 3, 1) != fresh_seed(8, 3, 1)
    assert all(0 <= s < 2**31 for s in seeds)
