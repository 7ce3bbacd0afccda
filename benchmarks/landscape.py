"""Which rule finds true gains under noise: rules compared on a simulated landscape. Nothing is trained.

    python benchmarks/landscape.py [REPLICATES]        4000 by default: half a minute on one core

The model. A measurement is the true value plus normal noise of standard deviation sigma; everything is told in sigma.
A search has BUDGET measurements, the baseline's first one included. An idea changes the true value of what it is made
from: with probability p it is good and gains an exponential amount of a stated mean; otherwise it does nothing (half
of them) or harms by an exponential amount of mean 1. In the null no idea does anything. A kept idea is what the next
ones are made from.

The rules.

    greedy       keep any score below the incumbent's recorded one
    2 sigma      keep a score at least 2 sigma below it
    retest       measure any lower score again; keep it if the second one is lower too, which is then recorded
    default      core.decide with its default thresholds, sigma known
    estimated    the same, sigma estimated: a prior that is right, updated by fresh measurements
    too wide     the same with a prior of 2 sigma; too narrow: of half a sigma
    strict       core.decide with strict = true, sigma known

What is told. True gain: how much lower the true value of the final incumbent is than the baseline's. Bias: the gain
that is claimed for the incumbent (against the true baseline) minus its true one, in three ways: by the value recorded
at the end of the budget; by the mean of FINAL fresh measurements alone, as `autoresearch audit` tells it; and by the
value after these went into the record as any fresh measurement does (where they withdraw the incumbent, the former one
is measured in turn). Kept: ideas that stand at the end; idle: those of them that don't gain.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoresearch.core.decide import shrink
from autoresearch.core.task import Rules

BUDGET = 100
FINAL = 6
MEANS = (0.5, 1.0, 2.0, 4.0)
SHARES = (0.10, 0.25)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Draws(NamedTuple):
    """All chance of some searches, so that rules, and two ways to compute one, meet the same."""

    effects: Floats
    """(R, BUDGET) what idea i gains, in sigma; the baseline is idea 0."""
    noise: Floats
    """(R, BUDGET) of measurement t, in sigma."""
    final: Floats
    """(R, BUDGET, FINAL) of the last measurements of what is the incumbent after i withdrawals."""


class Outcome(NamedTuple):
    """The end of each search: (R,), in sigma."""

    true: Floats
    """Gain."""
    claimed: Floats
    """Gain by the recorded value, at the end of the budget."""
    audited: Floats
    """Gain by FINAL fresh measurements alone."""
    final_true: Floats
    final_claimed: Floats
    """Gains after these measurements went into the record."""
    kept: Floats
    """Ideas that stand at the end."""
    idle: Floats
    """Of them, those that don't gain."""


def draw(replicates: int, share: float, mean: float, rng: np.random.Generator, budget: int = BUDGET) -> Draws:
    """Chance for `replicates` searches among ideas of which `share` are good, with a mean gain of `mean` sigma."""
    shape = (replicates, budget)
    if share == 0:
        effects = np.zeros(shape)
    else:
        good, harmful = rng.random(shape) < share, rng.random(shape) < 0.5
        gains, harms = rng.exponential(mean, shape), rng.exponential(1.0, shape)
        effects = np.where(good, gains, np.where(harmful, -harms, 0.0))
    return Draws(effects, rng.standard_normal(shape), rng.standard_normal((*shape, FINAL)))


# Rules that compare with one recorded score


def threshold(draws: Draws, gap: float = 0.0, retest: bool = False) -> Outcome:
    """Keep a score below the recorded one by more than `gap` sigma, after a `retest` where that is asked for."""
    replicates, budget = draws.effects.shape
    every = np.arange(replicates)
    true, record, kept, idle = (
        np.zeros(replicates),
        draws.noise[:, 0].copy(),
        np.zeros(replicates),
        np.zeros(replicates),
    )
    candidate, effect = np.zeros(replicates), np.zeros(replicates)
    again: Flags = np.zeros(replicates, bool)
    idea: Ints = np.zeros(replicates, np.int64)
    for t in range(1, budget):
        idea += ~again
        effect = np.where(again, effect, draws.effects[every, idea])
        candidate = np.where(again, candidate, true - effect)
        score = candidate + draws.noise[:, t]
        better = score < record - gap
        keep = better & (again | (not retest))
        again = better & ~keep
        true, record = np.where(keep, candidate, true), np.where(keep, score, record)
        kept += keep
        idle += keep & (effect <= 0)
    audited = -(true + draws.final[:, 0].mean(axis=1))
    return Outcome(-true, -record, audited, -true, audited, kept, idle)


# The rule of core.decide, all searches at once; tests/core/test_landscape.py compares it with the rule itself


@dataclass
class _Stack:
    """Kept experiments of each search, (R, BUDGET + 1), the incumbent on top."""

    top: Ints
    number: Ints
    true: Floats
    value: Floats
    value_n: Floats
    fresh: Floats
    """Sum of the fresh scores."""
    fresh_n: Floats
    effect: Floats


class Simulation:
    """Searches by the rule of core.decide as arrays over replicates.

    Args:
        draws: their chance.
        rules: thresholds, and the prior of the spread where it isn't known.
        known: the spread is 1.
    """

    def __init__(self, draws: Draws, rules: Rules, known: bool = True) -> None:
        self._draws, self._rules, self._known = draws, rules, known
        replicates, budget = draws.effects.shape
        self._every = np.arange(replicates)
        shape = (replicates, budget + 1)
        floats = [np.zeros(shape) for _ in range(6)]
        self._kept = _Stack(np.zeros(replicates, np.int64), np.zeros(shape, np.int64), *floats)
        self._idea: Ints = np.zeros(replicates, np.int64)
        self._pending: Flags = np.zeros(replicates, bool)
        self._candidate, self._effect = np.zeros(replicates), np.zeros(replicates)
        self._first, self._retests = np.zeros(replicates), np.zeros(replicates)
        self._scores: Ints = np.zeros(replicates, np.int64)
        self._squares = np.full(replicates, rules.spread_dof * rules.spread**2)
        self._dof = np.full(replicates, rules.spread_dof)

    def run(self) -> Outcome:
        kept, errors = self._kept, self._draws.noise
        budget = self._draws.effects.shape[1]
        self._take_fresh(np.ones_like(self._pending), errors[:, 0])
        for t in range(1, budget):
            of_incumbent = self._advance()
            self._propose(~of_incumbent & ~self._pending)
            self._take_fresh(of_incumbent, kept.true[self._every, kept.top] + errors[:, t])
            self._take_score(~of_incumbent, self._candidate + errors[:, t])
        self._advance()
        self._pending[:] = False
        true, claimed = -self._of_top(kept.true), -self._of_top(kept.value)
        standing = (np.arange(kept.number.shape[1]) <= kept.top[:, None]) & (kept.number > 0)
        idle = (standing & (kept.effect <= 0)).sum(axis=1).astype(float)
        audited = true - self._draws.final[:, 0].mean(axis=1)
        self._measure_finally()
        final_true, final_claimed = -self._of_top(kept.true), -self._of_top(kept.value)
        return Outcome(true, claimed, audited, final_true, final_claimed, standing.sum(axis=1).astype(float), idle)

    def _measure_finally(self) -> None:
        """FINAL measurements of the incumbent; where they withdraw it, of the one before in turn."""
        todo, kept = np.ones_like(self._pending), self._kept
        for errors in self._draws.final.transpose(1, 2, 0):
            for error in errors:
                self._take_fresh(todo, self._of_top(kept.true) + error)
            before = kept.top.copy()
            self._advance()
            todo = todo & (kept.top < before)
            if not todo.any():
                return

    def _of_top(self, values: NDArray[Any]) -> NDArray[Any]:
        return values[self._every, self._kept.top]

    def _spread(self) -> Floats:
        return np.ones_like(self._squares) if self._known else np.sqrt(self._squares / self._dof)

    def _learn(self, where: Flags, count: Floats, total: Floats, score: Floats) -> None:
        """One more score of a group of `count` that sum to `total`, for the spread."""
        grown = where & (count > 0)
        deviation = score - total / np.maximum(count, 1)
        self._squares += np.where(grown, deviation**2 * count / np.maximum(count + 1, 1), 0.0)
        self._dof += grown

    def _take_fresh(self, where: Flags, score: Floats) -> None:
        """A fresh score of the incumbent."""
        kept, rows, top = self._kept, self._every[where], self._kept.top[where]
        self._learn(where, self._of_top(kept.fresh_n), self._of_top(kept.fresh), score)
        kept.fresh[rows, top] += score[where]
        kept.fresh_n[rows, top] += 1

    def _take_score(self, where: Flags, score: Floats) -> None:
        """A score of the pending candidate."""
        retest = where & (self._scores > 0)
        self._learn(retest, (self._scores - 1).astype(float), self._retests, score)
        self._first = np.where(where & ~retest, score, self._first)
        self._retests += np.where(retest, score, 0.0)
        self._scores += where

    def _propose(self, where: Flags) -> None:
        self._idea += where
        effect = self._draws.effects[self._every, np.minimum(self._idea, self._draws.effects.shape[1] - 1)]
        self._effect = np.where(where, effect, self._effect)
        self._candidate = np.where(where, self._of_top(self._kept.true) - self._effect, self._candidate)
        self._scores[where], self._retests[where], self._pending[where] = 0, 0.0, True

    def _advance(self) -> Flags:
        """Take every step that needs no measurement; which searches measure their incumbent next."""
        while True:
            of_incumbent, withdrew = self._settle()
            wants, decided = self._judge(~of_incumbent & ~withdrew & self._pending & (self._scores > 0))
            if not (withdrew | decided).any():
                break
        kept, fresh_n = self._kept, self._of_top(self._kept.fresh_n)
        due: Flags = (
            ~self._pending & (fresh_n == 0) & (self._idea - self._of_top(kept.number) >= self._rules.fresh_within)
        )
        return of_incumbent | wants | due

    def _settle(self) -> tuple[Flags, Flags]:
        """Anchor and withdraw; which incumbents are measured next, and which were withdrawn."""
        kept, rows = self._kept, self._every
        n = self._of_top(kept.fresh_n)
        mean = self._of_top(kept.fresh) / np.maximum(n, 1)
        worse = (n > 0) & (kept.top > 0) & (mean > kept.value[rows, np.maximum(kept.top - 1, 0)])
        anchored = (n > 0) & ~worse
        kept.value[rows[anchored], kept.top[anchored]] = mean[anchored]
        kept.value_n[rows[anchored], kept.top[anchored]] = n[anchored]
        withdrew = worse & (n >= 2)
        kept.top -= withdrew
        return worse & (n == 1), withdrew

    def _judge(self, where: Flags) -> tuple[Flags, Flags]:
        """Which candidates' incumbents are measured first, and which candidates have their verdict."""
        kept, rules = self._kept, self._rules
        m, n, spread = self._of_top(kept.value), self._of_top(kept.value_n), self._spread()
        z = (m - self._first) / (spread * np.sqrt(1 + 1 / n))
        unclear, retests = z >= rules.retest_z, self._scores - 1
        mean = self._retests / np.maximum(retests, 1)
        value, value_n = mean, np.maximum(retests, 1).astype(float)
        if rules.strict:
            confirmed = (m - mean) / (spread * np.sqrt(1 / np.maximum(retests, 1) + 1 / n))
            more = unclear & ((retests == 0) | ((mean < m) & (retests < rules.strict_retests)))
            keep = unclear & ~more & (confirmed >= rules.strict_z)
        else:
            clear = z >= rules.keep_z
            more = unclear & ~clear & (retests == 0)
            keep = clear | (unclear & ~more & (self._retests < m))
            shrunk = np.array([shrink(*one) if one[2] else 0.0 for one in zip(m, self._first, z, strict=True)])
            value, value_n = np.where(clear, shrunk, value), np.where(clear, 1.0, value_n)
        decided, push = where & ~more, where & keep
        self._pending &= ~decided
        kept.top += push
        rows, top = self._every[push], kept.top[push]
        kept.number[rows, top] = self._idea[push]
        kept.true[rows, top], kept.effect[rows, top] = self._candidate[push], self._effect[push]
        kept.value[rows, top], kept.value_n[rows, top] = value[push], value_n[push]
        kept.fresh[rows, top], kept.fresh_n[rows, top] = self._retests[push], retests[push]
        return where & more & (self._of_top(kept.fresh_n) == 0), decided


# The table

STRICT = Rules(spread=1.0, strict=True)
RULES: dict[str, Callable[[Draws], Outcome]] = {
    "greedy": threshold,
    "2 sigma": lambda draws: threshold(draws, gap=2.0),
    "retest": lambda draws: threshold(draws, retest=True),
    "default": lambda draws: Simulation(draws, Rules(spread=1.0)).run(),
    "estimated": lambda draws: Simulation(draws, Rules(spread=1.0), known=False).run(),
    "too wide": lambda draws: Simulation(draws, Rules(spread=2.0), known=False).run(),
    "too narrow": lambda draws: Simulation(draws, Rules(spread=0.5), known=False).run(),
    "strict": lambda draws: Simulation(draws, STRICT).run(),
}


def _told(values: Floats, digits: int = 2) -> str:
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1) / math.sqrt(len(values)):.{digits}f}"


def _rows(draws: Draws) -> Iterable[tuple[str, Outcome, str]]:
    greedy = RULES["greedy"](draws)
    for name, rule in RULES.items():
        end = rule(draws)
        cells = (
            _told(end.true),
            _share(end, greedy) if greedy.true.any() else "",
            _told(end.claimed),
            _told(end.claimed - end.true),
            _told(end.audited - end.true),
            _told(end.final_claimed - end.final_true),
            _told(end.kept),
            _told(end.idle),
        )
        yield name, end, "| " + " | ".join((f"{name:10s}", *cells)) + " |"


def main(replicates: int) -> None:
    """Print the tables, in sigma, mean ± standard error, and what they say about the rules."""
    rng = np.random.default_rng(20251130)
    found: dict[str, list[Outcome]] = {name: [] for name in RULES}
    print(f"{replicates} searches a cell, {BUDGET} measurements each, in units of sigma, mean ± standard error")
    for share, mean in [(0.0, 0.0), *product(SHARES, MEANS)]:
        what = f"{share:.0%} of the ideas are good, by {mean:g} sigma on average" if share else "no idea does anything"
        print(f"\n**{what}**\n")
        print("| rule | true gain | of greedy's | claimed gain | bias | audited | pooled | kept | idle |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for name, end, line in _rows(draw(replicates, share, mean, rng)):
            found[name].append(end)
            print(line, flush=True)
    _conclude(found)


def _conclude(found: Mapping[str, list[Outcome]]) -> None:
    """What the tables say about the rules."""
    null = {name: _told(ends[0].kept) for name, ends in found.items()}
    print(f"\ngreedy keeps without any effect: expected {sum(1 / n for n in range(2, BUDGET + 1)):.2f}")
    print(
        f"false keeps per {BUDGET} measurements without any effect: default {null['default']}, strict {null['strict']}"
    )
    worst = max((end.audited - end.true for end in found["default"]), key=lambda bias: abs(float(bias.mean())))
    print(f"largest bias of the default's audited gain: {_told(worst)}")
    shares = [_share(*pair) for pair in zip(found["default"][1:], found["greedy"][1:], strict=True)]
    for number, share in enumerate(SHARES):
        told = shares[number * len(MEANS) : (number + 1) * len(MEANS)]
        print(f"true gain of the default where {share:.0%} are good, of greedy's, by mean gain: {', '.join(told)}")
    others = ("greedy", "2 sigma", "retest", "strict")
    dominating = [name for name in others if dominates(found[name], found["default"])]
    print("rules that dominate the default: " + (", ".join(dominating) or "none"))


def _share(end: Outcome, greedy: Outcome) -> str:
    """True gain in percent of greedy's on the same draws, with its standard error by the delta method."""
    share = end.true.mean() / greedy.true.mean()
    error = (end.true - share * greedy.true).std(ddof=1) / math.sqrt(len(end.true)) / greedy.true.mean()
    return f"{100 * share:.0f} ± {100 * error:.0f} %"


def dominates(one: list[Outcome], other: list[Outcome]) -> bool:
    """Whether a rule is at least as good in every cell, null first: in true gain, false keeps in the null and bias.

    Better or worse by less than two standard errors is equal.
    """

    def sure(difference: Floats) -> int:
        return int(np.sign(difference.mean())) * bool(
            abs(difference.mean()) > 2 * difference.std(ddof=1) / math.sqrt(len(difference))
        )

    signs = [sure(other[0].kept - one[0].kept)]
    for a, b in zip(one, other, strict=True):
        signs.append(sure(a.true - b.true))
        bias_a, bias_b = a.claimed - a.true, b.claimed - b.true
        signs.append(sure(bias_b * np.sign(bias_b.mean()) - bias_a * np.sign(bias_a.mean())))
    return min(signs) >= 0 and max(signs) > 0


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4000)
