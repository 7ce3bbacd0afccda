"""A change that was made to one train.py, made to another one: constants by name, code as a patch.

Two machines rarely begin from the same values: a preset's batch has 8,192 tokens here and 524,288 there. So this is how
a constant is carried:

* It has here the value that it was moved from there: it gets the value that it was moved to there.
* Else, a number that was and is positive is multiplied by the same factor; any other number is moved by the same
  difference. The result is short (three digits), whole for integers, a batch of whole rows, within the range of the
  constant's `search:` comment, or the nearest of its choices in that direction, one step at least.
* Else, a word, a truth value or a tuple gets the value that it was moved to there.

Code is carried within a backend, by the same patch: its lines must be found here, the constants among them apart. What
can't be carried is left out, with the reason.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from autoresearch.agent.optimizer import SIGNIFICANT_DIGITS, search_space, written
from autoresearch.agent.scripted import PatchError, apply_patch
from autoresearch.core.candidate import normalized_hash
from autoresearch.core.constants import Choices, Range, constants, moved, set_constants, written_out
from autoresearch.core.errors import UsageError

_FAR = 2.0**53  # a limit for numbers that are not annotated


@dataclass(frozen=True)
class Change:
    """From one train.py to the next."""

    constants_before: Mapping[str, Any]
    constants_after: Mapping[str, Any]
    lines: int
    """Lines added and removed."""
    backend: str
    """That it was made for."""
    before: str | None = None
    """Text of the train.py; None where it isn't at hand."""
    after: str | None = None

    @property
    def moves(self) -> dict[str, tuple[Any, Any]]:
        """Constants with another value, of the same type, on both sides. Any other difference is one of code."""
        found = moved(self.constants_before, self.constants_after)
        return {name: (old, new) for name, (old, new) in found.items() if old is not None and type(old) is type(new)}

    @property
    def has_code(self) -> bool:
        """Whether anything else than values of constants differs."""
        if self.before is None or self.after is None:
            return self.lines > 2 * len(self.moves)  # a line taken away and one put in for each
        try:
            alike = set_constants(self.before, {name: new for name, (_, new) in self.moves.items()})
            return normalized_hash(written_out(alike)) != normalized_hash(written_out(self.after))
        except UsageError:
            return True


class Carried(NamedTuple):
    """What became of a change."""

    source: str
    """The train.py with it; "" where nothing of it could be carried."""
    moves: dict[str, tuple[Any, Any]]
    """Constants that it moves here, each with both values."""
    left_out: tuple[str, ...]
    """Parts that it is without, each with the reason."""


class _Stays(Exception):
    """A constant can't be moved; says why."""


def carry(change: Change, source: str, backend: str, seq_len: int) -> Carried:
    """Make a change to the train.py `source` of a backend.

    Args:
        seq_len: tokens in a row, here.

    Raises:
        UsageError: the constants of `source` can't be read.
    """
    here = constants(source)
    space = search_space(here, seq_len)
    moves: dict[str, tuple[Any, Any]] = {}
    left_out = []
    for name, (old, new) in change.moves.items():
        try:
            if name not in here:
                raise _Stays(f"there is no constant {name} here")
            now = here[name].value
            value = carried_value(name, old, new, now, space.get(name), seq_len)
            set_constants(source, {name: value})  # its type may be another one here
            moves[name] = now, value
        except _Stays as reason:
            left_out.append(str(reason))
        except UsageError as error:
            left_out.append(error.message)
    if change.has_code:
        try:
            return Carried(_with_code(change, source, backend, moves), moves, tuple(left_out))
        except PatchError as error:
            left_out.append(f"its code: {error}")
    if not (moves or left_out):
        left_out.append("it changes neither a constant nor code")
    values = {name: new for name, (_, new) in moves.items()}
    return Carried(set_constants(source, values) if moves else "", moves, tuple(left_out))


def carried_value(name: str, old: Any, new: Any, now: Any, search: Range | Choices | None, seq_len: int) -> Any:
    """The value here of a constant that was moved there from `old` to `new`; see above.

    Args:
        now: its value here.
        search: how it may be searched here; None says nothing.
        seq_len: tokens in a row, here.
    """
    if _same(old, now):
        return new
    if not all(type(value) in (int, float) for value in (old, new, now)):
        if _same(new, now):
            raise _Stays(f"{name} is {now!r} here already")
        return new
    rises = new > old
    factor = old > 0 and new >= 0 and now > 0
    drawn = now * new / old if factor else now + (new - old)
    step = 1 if rises else -1
    if isinstance(search, Choices):
        ahead = [value for value in search.values if (value - now) * step > 0]
        value = min(ahead, key=lambda choice: _distance(choice, drawn), default=now)
    else:
        # A whole number moves by a whole one at least, and a size never becomes none.
        floor = 1.0 if isinstance(now, int) and now > 0 and new > 0 else -_FAR
        low, high = (search.low, search.high) if search else (floor, _FAR)
        if isinstance(now, int) and abs(drawn - now) < 1:
            drawn = now + step
        whole = isinstance(now, int) and drawn == round(drawn)  # half of 65,536 is short enough as it is
        value = written(name, drawn, now, low, high, seq_len, 15 if whole else SIGNIFICANT_DIGITS)
    if (value - now) * step <= 0:
        raise _Stays(f"{name} can't be {'raised' if rises else 'lowered'} from {now!r} here")
    return value


def _distance(a: float, b: float) -> float:
    return abs(math.log(a / b)) if a > 0 and b > 0 else abs(a - b)


def _same(a: Any, b: Any) -> bool:
    """Equal, also where a journal has turned a tuple into a list."""
    return json.dumps(a) == json.dumps(b)


def _with_code(change: Change, source: str, backend: str, moves: Mapping[str, tuple[Any, Any]]) -> str:
    """`source` with the code of a change, and with its constants as they are carried.

    Raises:
        PatchError: it can't be applied; says why.
    """
    if change.backend != backend:
        raise PatchError(f"it was written for another backend, {change.backend or 'an unknown one'}")
    if change.before is None or change.after is None:
        raise PatchError("the train.py of that run isn't at hand")
    # With the values of here on both sides, lines of constants are found here and stay as they are.
    values = {name: constant.value for name, constant in constants(source).items()}
    before = _with_values(change.before, values)
    after = _with_values(change.after, {**values, **{name: new for name, (_, new) in moves.items()}})
    lines = difflib.unified_diff(before.split("\n"), after.split("\n"), "train.py", "train.py", lineterm="")
    return apply_patch(source, "\n".join(lines))


def _with_values(source: str, values: Mapping[str, Any]) -> str:
    """`source` with those of the values that are of its constants and of their types."""
    own = constants(source)
    fitting = {name: value for name, value in values.items() if name in own and type(own[name].value) is type(value)}
    return set_constants(source, fitting)
