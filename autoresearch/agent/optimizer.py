"""Hyper-parameter search over the constants that a train.py names: Optuna's TPE, and random search as its control.

Both vary one to three constants around the incumbent. They keep no state: what was tried is in the Context, and the
Context's seed decides the next proposal, so a resumed search goes on as if it had never stopped.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autoresearch.agent.proposer import Context, Proposal, Trial
from autoresearch.core.candidate import source_hash
from autoresearch.core.constants import Choices, Constant, Range, constants, set_constants
from autoresearch.core.errors import UsageError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study

Space = Mapping[str, Range | Choices]

SIGNIFICANT_DIGITS = 3
MOST_MOVES = 3
"""Constants that one proposal changes at most: with more, the cause of a gain could not be told."""
COMBINE_EVERY = 4
"""One proposal of so many puts two near misses together, while there are such pairs."""
ATTEMPTS = 100
"""Draws after which the neighbourhood of the incumbent counts as used up."""

# What paid first in published searches, on every kind of machine: (constant, whether it rises, its new value).
_FIRST_MOVES: tuple[tuple[str, bool, Callable[[Any], Any]], ...] = (
    ("TOTAL_BATCH_SIZE", False, lambda value: value // 2),
    ("DEPTH", False, lambda value: value - 1),
    ("WARMDOWN_RATIO", True, lambda value: max(value, 0.75)),
)
# (in the constant's name, category, why it might be raised, why it might be lowered); the first match counts.
_KINDS = (
    ("BATCH", "batch", "a less noisy gradient in each step", "more optimizer steps in the same time"),
    ("DEPTH|ASPECT|WIDTH", "size", "a model that can hold more", "a model fast enough to see more tokens"),
    ("WARMDOWN", "schedule", "a longer decay of the learning rates", "full learning rates for longer"),
    ("WARMUP|RAMP", "schedule", "a gentler start", "a faster start"),
    ("FINAL", "schedule", "still learning at the end", "settling more at the end"),
    ("DECAY", "weight decay", "more regularisation", "less regularisation"),
    ("INIT", "init", "a larger start", "a smaller start"),
    ("LR$|LEARNING_RATE", "learning rate", "faster progress in each step", "steadier steps"),
    ("WINDOW", "attention", "attention span against speed", "attention span against speed"),
    ("HEAD_DIM", "attention", "fewer, wider heads", "more, narrower heads"),
    ("ROTARY", "attention", "positions over longer distances", "positions told apart more finely"),
)


class RandomSearch:
    """Draws the new values uniformly, on a log scale where annotated."""

    name = "random"

    def propose(self, context: Context) -> Proposal | None:
        """The incumbent with one to three constants changed, unlike all that was tried; None when nothing is left.

        Raises:
            UsageError: no constant can be searched, or an annotation can't be read.
        """
        current = constants(context.incumbent_source)
        values = {name: constant.value for name, constant in current.items()}
        space = search_space(current, int(context.task["seq_len"]))
        if not space:
            raise UsageError(
                "train.py has no constant that can be searched",
                'annotate one below the banner "Hyper-parameters", e.g. `LR = 0.1  # search: 0.01..1.0 log`',
            )
        tried = {_key(trial.constants) for trial in context.history}
        for changes in self._changes(context, values, space):
            source = set_constants(context.incumbent_source, changes)
            origin = f"{self.name}:{source_hash(source)[:12]}"
            if _key({**values, **changes}) not in tried and origin not in context.origins:
                moves = [_hypothesis(name, values[name], new, space[name]) for name, new in changes.items()]
                return Proposal(source, "; ".join(moves), _kind(next(iter(changes)))[0], origin)
        return None

    def _changes(self, context: Context, values: Mapping[str, Any], space: Space) -> Iterator[dict[str, Any]]:
        """Sets of new values, in the order in which they should be tried."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        rng = random.Random(context.seed)
        distributions = {name: _distribution(search) for name, search in space.items()}
        incumbent = {name: _coordinate(values[name], search) for name, search in space.items()}
        study = optuna.create_study()
        self._teach(study, context.history, space, distributions)
        sampler = self._sampler(rng.getrandbits(32))
        for _ in range(ATTEMPTS):
            moving = rng.sample(list(space), k=min(rng.randint(1, MOST_MOVES), len(space)))
            fixed = {name: value for name, value in incumbent.items() if name not in moving}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                study.sampler = optuna.samplers.PartialFixedSampler(fixed, sampler)
            trial = study.ask(distributions)
            study.tell(trial, state=optuna.trial.TrialState.FAIL)  # only drawn: nothing to learn from
            settled = {name: _settle(name, trial.params[name], values[name], space[name], context) for name in moving}
            changes = {name: new for name, new in settled.items() if new != values[name]}
            if changes:
                yield changes

    def _sampler(self, seed: int) -> BaseSampler:
        from optuna.samplers import RandomSampler

        return RandomSampler(seed)

    def _teach(
        self, study: Study, history: Sequence[Trial], space: Space, distributions: dict[str, BaseDistribution]
    ) -> None:
        """Tell the study what was measured; chance needs none of it."""


class Optimizer(RandomSearch):
    """Starts with the moves that paid first in published searches, then follows Optuna's TPE.

    Every fourth proposal combines two near misses instead, the best pair first: two gains too small to be told from
    noise may be clear together.

    TPE is that of Bergstra et al. (2011) in its multivariate form (Falkner et al., 2018): constants that one proposal
    moves together are drawn from a joint density, since e.g. batch size and learning rates depend on each other.
    """

    name = "optimizer"

    def _changes(self, context: Context, values: Mapping[str, Any], space: Space) -> Iterator[dict[str, Any]]:
        yield from _first_moves(context, values, space)
        if len(context.history) % COMBINE_EVERY == 0:
            yield from _combinations(context, values, space)
        yield from super()._changes(context, values, space)

    def _sampler(self, seed: int) -> BaseSampler:
        import optuna

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.TPESampler(seed=seed, multivariate=True)

    def _teach(
        self, study: Study, history: Sequence[Trial], space: Space, distributions: dict[str, BaseDistribution]
    ) -> None:
        from optuna.trial import create_trial

        # TPE only ranks: any number above the worst says "stay away".
        failed = max((trial.val_bpb for trial in history if trial.val_bpb is not None), default=0.0) + 1.0
        for trial in history:
            if all(_comparable(trial.constants.get(name), search) for name, search in space.items()):
                params = {name: _coordinate(trial.constants[name], search) for name, search in space.items()}
                value = failed if trial.val_bpb is None else trial.val_bpb
                study.add_trial(create_trial(params=params, distributions=distributions, value=value))


def _first_moves(context: Context, values: Mapping[str, Any], space: Space) -> Iterator[dict[str, Any]]:
    """The published first moves, each unless some experiment changed that constant in that direction."""
    by_number = {trial.number: trial.constants for trial in context.history}
    for name, rises, move in _FIRST_MOVES:
        search, old = space.get(name), values.get(name)
        if search is None:
            continue
        steps = [
            (by_number[trial.parent].get(name), trial.constants.get(name))
            for trial in context.history
            if trial.parent in by_number
        ]
        if any(_comparable(a, search) and _comparable(b, search) and _rises(a, b, search) is rises for a, b in steps):
            continue
        drawn = _coordinate(old, search) + (1 if rises else -1) if isinstance(search, Choices) else move(old)
        new = _settle(name, drawn, old, search, context)
        if _rises(old, new, search) is rises:
            yield {name: new}


def _combinations(context: Context, values: Mapping[str, Any], space: Space) -> Iterator[dict[str, Any]]:
    """The changes of two near misses together, those with the lowest scores first.

    They change different constants, and the incumbent still has these as they were before.
    """
    by_number = {trial.number: trial.constants for trial in context.history}
    changes = []
    for trial in sorted(context.near_misses, key=lambda trial: (trial.val_bpb or math.inf, trial.number)):
        before = by_number.get(trial.parent, {})
        moved = {
            name: new for name, new in trial.constants.items() if _key({name: before.get(name)}) != _key({name: new})
        }
        known = all(name in space and _comparable(new, space[name]) for name, new in moved.items())
        if moved and known and all(before.get(name) == values[name] for name in moved):
            changes.append(moved)
    for one, other in itertools.combinations(changes, 2):
        if one.keys().isdisjoint(other):
            yield {**one, **other}


def search_space(current: Mapping[str, Constant], seq_len: int) -> dict[str, Range | Choices]:
    """The constants that may move."""
    space = {name: constant.search for name, constant in current.items() if constant.search is not None}
    batch = space.get("TOTAL_BATCH_SIZE")
    if isinstance(batch, Choices):
        space["TOTAL_BATCH_SIZE"] = Choices(tuple(value for value in batch.values if value % seq_len == 0))
    pattern = current.get("WINDOW_PATTERN")
    if pattern is not None and "S" not in str(pattern.value):
        space.pop("SHORT_WINDOW_DIVISOR", None)  # no layer has a short window
    return {name: search for name, search in space.items() if isinstance(search, Range) or len(search.values) > 1}


def _distribution(search: Range | Choices) -> BaseDistribution:
    """Choices become their index, so that the sampler knows which are neighbours."""
    from optuna.distributions import FloatDistribution, IntDistribution

    if isinstance(search, Choices):
        return IntDistribution(0, len(search.values) - 1)
    if search.integer:
        return IntDistribution(int(search.low), int(search.high), log=search.log)
    return FloatDistribution(search.low, search.high, log=search.log)


def _comparable(value: Any, search: Range | Choices) -> bool:
    """Whether a value of another version of train.py means something in this space."""
    return value in search.values if isinstance(search, Choices) else isinstance(value, int | float)


def _coordinate(value: Any, search: Range | Choices) -> float:
    """A value in terms of `_distribution`: clipped to a range, the index of a choice or of the nearest one."""
    if isinstance(search, Range):
        clipped: float = min(max(value, search.low), search.high)
        return clipped
    if value in search.values:
        return search.values.index(value)
    if isinstance(value, int | float):
        return min(range(len(search.values)), key=lambda index: abs(search.values[index] - value))
    return 0


def _rises(old: Any, new: Any, search: Range | Choices) -> bool | None:
    """Whether a constant moves up its range or its list; None where it stays."""
    a, b = (_coordinate(old, search), _coordinate(new, search)) if isinstance(search, Choices) else (old, new)
    return None if a == b else b > a


def _settle(name: str, drawn: float, current: Any, search: Range | Choices, context: Context) -> Any:
    """The value to write: short and in range; of choices, the neighbour of the current one in the drawn direction."""
    if isinstance(search, Choices):
        index = int(_coordinate(current, search))
        return search.values[min(max(index + (drawn > index) - (drawn < index), 0), len(search.values) - 1)]
    low, high = search.low, search.high
    if search.integer:
        # Sizes decide how long a step takes: a model three times as deep would only show that the budget is short.
        reach = max(1, abs(current) // 2)
        low, high = max(low, current - reach), min(high, current + reach)
    return written(name, drawn, current, low, high, int(context.task["seq_len"]))


def written(
    name: str, drawn: float, current: Any, low: float, high: float, seq_len: int, digits: int = SIGNIFICANT_DIGITS
) -> Any:
    """A number as it is put into a train.py: short, in range, of the current one's type; a batch in whole rows.

    Args:
        low, high: finite.
        seq_len: tokens in a row.
        digits: significant ones that are kept.
    """
    value = float(f"{drawn:.{digits}g}")
    if name == "TOTAL_BATCH_SIZE":
        value = round(drawn / seq_len) * seq_len
        low, high = math.ceil(low / seq_len) * seq_len, math.floor(high / seq_len) * seq_len
        if low > high:
            return current
    value = min(max(value, low), high)
    return round(value) if isinstance(current, int) else float(value)


def _key(values: Mapping[str, Any]) -> str:
    """Equal for equal configurations, also where a journal has turned a tuple into a list."""
    return json.dumps(dict(values), sort_keys=True)


def _kind(name: str) -> tuple[str, str, str]:
    """(category, why it might be raised, why it might be lowered)."""
    return next((kind[1:] for kind in _KINDS if re.search(kind[0], name)), ("other", "", ""))


def _hypothesis(name: str, old: Any, new: Any, search: Range | Choices) -> str:
    """E.g. "TOTAL_BATCH_SIZE 8192 → 4096: more optimizer steps in the same time"."""
    _, raised, lowered = _kind(name)
    reason = raised if _rises(old, new, search) else lowered
    return f"{name} {old} → {new}" + (f": {reason}" if reason else "")
