"""The simulation that compares rules computes what the real rule does, and reproduces what is known of greedy."""

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoresearch.core import noise
from autoresearch.core.decide import (
    Anchor,
    Candidate,
    Decide,
    Measure,
    Score,
    Withdraw,
    applied,
    fresh_scores,
    next_step,
)
from autoresearch.core.task import Rules

REPLICATES = 1000
BUDGET = 40
DEFAULT, STRICT = Rules(spread=1.0), Rules(spread=1.0, strict=True)
WIDE = replace(DEFAULT, keep_z=2.5)
"""With a wide band of scores that are measured again."""
TESTED = {"default": DEFAULT, "wide": WIDE, "strict": STRICT}


@pytest.fixture(scope="module")
def landscape():
    path = Path(__file__).parents[2] / "benchmarks" / "landscape.py"
    spec = importlib.util.spec_from_file_location("landscape", path)
    module = sys.modules["landscape"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Search:
    """One search through the real rule, with the chance of `landscape.Draws`."""

    def __init__(self, rules: Rules, known: bool) -> None:
        self.rules, self.known = rules, known
        self.experiments = [Candidate(0, 1)]
        self.true = [0.0]
        self.withdrawn = 0

    @property
    def incumbent(self) -> Candidate:
        return next(c for c in reversed(self.experiments) if c.kept)

    def spread(self) -> float:
        if self.known:
            return 1.0
        groups = [fresh_scores(c, clean=True) for c in self.experiments]
        return noise.estimate(self.rules.spread, self.rules.spread_dof, groups).value

    def measure(self, number: int, error: float) -> None:
        one = self.experiments[number]
        score = Score(float(self.true[number] + error))
        self.experiments[number] = replace(one, scores=(*one.scores, score))

    def advance(self) -> int | None:
        """Take every step that needs no measurement; the experiment that is measured next, None for a new one."""
        while True:
            match next_step(self.experiments, self.spread(), self.rules):
                case Measure(number=number):
                    return number
                case (Decide() | Anchor() | Withdraw()) as step:
                    self.experiments[step.number] = applied(self.experiments[step.number], step)
                    self.withdrawn += isinstance(step, Withdraw)
                case _:
                    return None

    def run(self, effects, errors, final) -> tuple[float, ...]:
        """The fields of `landscape.Outcome`."""
        for error in errors:
            number = self.advance()
            if number is None:
                number = len(self.experiments)
                self.true.append(self.true[self.incumbent.number] - float(effects[number]))
                self.experiments.append(Candidate(number, 1))
            self.measure(number, error)
        self.advance()
        if self.experiments[-1].verdict is None:
            self.experiments.pop()  # cut off by the budget
        at_end, standing = self.incumbent, [c.number for c in self.experiments[1:] if c.kept]
        for fresh in final:
            measured = self.incumbent.number
            for error in fresh:
                self.measure(measured, error)
            self.advance()
            if self.incumbent.number == measured:
                break
        gain, last = -self.true[at_end.number], self.incumbent
        idle = sum(effects[n] <= 0 for n in standing)
        audited = gain - float(final[0].mean())
        return gain, -at_end.value, audited, -self.true[last.number], -last.value, len(standing), idle


def searched(landscape, draws, rules, known=True):
    searches = [Search(rules, known) for _ in draws.effects]
    ends = [search.run(*one) for search, one in zip(searches, zip(*draws))]
    return landscape.Outcome(*np.array(ends, float).T), sum(search.withdrawn for search in searches)


@pytest.mark.parametrize("known", [True, False], ids=["known spread", "estimated spread"])
@pytest.mark.parametrize("rules", TESTED.values(), ids=TESTED)
@pytest.mark.parametrize("share", [0.0, 0.25])
def test_the_same_chance_gives_the_same_searches(landscape, rules, known, share):
    draws = landscape.draw(200, share, 2.0, np.random.default_rng(5), BUDGET)
    real, withdrawn = searched(landscape, draws, rules, known)
    simulated = landscape.Simulation(draws, rules, known).run()
    for name, one, other in zip(real._fields, real, simulated):
        np.testing.assert_allclose(one, other, atol=1e-9, err_msg=name)
    assert real.kept.sum() > 0
    assert rules.strict or withdrawn > 0, "every step of the rule is met"


def distances(real, simulated) -> dict[str, float]:
    """By field: the difference of means in standard errors."""
    far = {}
    for name, one, other in zip(real._fields, real, simulated):
        error = math.sqrt(one.var(ddof=1) / len(one) + other.var(ddof=1) / len(other))
        far[name] = abs(one.mean() - other.mean()) / error
    return far


@pytest.fixture(scope="module")
def real(landscape):
    """By rule: 1,000 searches through the real one among ideas of which a quarter are good."""
    draws = landscape.draw(REPLICATES, 0.25, 1.0, np.random.default_rng(1), BUDGET)
    return {name: searched(landscape, draws, rules)[0] for name, rules in TESTED.items()}


@pytest.mark.parametrize("name", TESTED)
def test_a_thousand_searches_by_the_rule_match_the_simulation(landscape, real, name):
    other = landscape.draw(5 * REPLICATES, 0.25, 1.0, np.random.default_rng(2), BUDGET)
    far = distances(real[name], landscape.Simulation(other, TESTED[name]).run())
    assert max(far.values()) < 3, far


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("default", {"keep_z": 1.5}),
        ("wide", {"retest_z": 1.0}),
        ("strict", {"strict_z": STRICT.strict_z - 1.0}),
        ("strict", {"strict_retests": 1}),
    ],
)
def test_a_changed_threshold_would_be_noticed(landscape, real, name, fault):
    other = landscape.draw(5 * REPLICATES, 0.25, 1.0, np.random.default_rng(2), BUDGET)
    far = distances(real[name], landscape.Simulation(other, replace(TESTED[name], **fault)).run())
    assert max(far.values()) > 3, far


def test_without_effects_greedy_keeps_as_many_as_there_are_records(landscape):
    draws = landscape.draw(4000, 0.0, 0.0, np.random.default_rng(3))
    kept = landscape.threshold(draws).kept
    expected = sum(1 / n for n in range(2, landscape.BUDGET + 1))
    error = kept.std(ddof=1) / math.sqrt(len(kept))
    assert abs(kept.mean() - expected) < 3 * error
    assert abs(landscape.threshold(draws, gap=0.1).kept.mean() - expected) > 3 * error, "a gap would be noticed"


def test_what_the_rules_are_for(landscape):
    """Greedy flatters itself by two sigma; the rule finds as much, keeps few idle ideas, and an audit is unbiased."""
    null = landscape.draw(2000, 0.0, 0.0, np.random.default_rng(4))
    assert landscape.Simulation(null, DEFAULT).run().kept.mean() <= 3
    assert landscape.Simulation(null, STRICT).run().kept.mean() <= 1
    for mean in (0.5, 1.0):
        draws = landscape.draw(2000, 0.1, mean, np.random.default_rng(5))
        greedy, ours = landscape.threshold(draws), landscape.Simulation(draws, DEFAULT).run()
        assert (greedy.claimed - greedy.true).mean() == pytest.approx(2.2, abs=0.3)
        assert abs((ours.audited - ours.true).mean()) < 0.1
        assert ours.true.mean() >= 0.95 * greedy.true.mean()
        wide = landscape.Simulation(draws, WIDE).run()
        assert mean == 0.5 or wide.true.mean() < 0.95 * greedy.true.mean(), "a band this wide costs gains"
        assert (ours.claimed - ours.true).mean() < (greedy.claimed - greedy.true).mean() - 0.5


def test_a_rule_dominates_another_only_where_it_is_nowhere_worse(landscape):
    draws = [landscape.draw(500, share, 2.0, np.random.default_rng(6)) for share in (0.0, 0.1)]
    greedy = [landscape.threshold(draw) for draw in draws]
    better = [end._replace(true=end.true + 1, kept=end.kept - 1, claimed=end.true + 1.5) for end in greedy]
    mixed = [end._replace(true=end.true + 1, kept=end.kept + 1) for end in greedy]
    assert landscape.dominates(better, greedy)
    assert not landscape.dominates(mixed, greedy)
    assert not landscape.dominates(greedy, greedy)
