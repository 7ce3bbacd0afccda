"""What calls of models and commands cost: reserved at their worst before they begin, settled after, never above a cap.

Each call is two lines of the journal: `call` before anything is sent, `charged` after. A call that was cut off by a
kill has no second line; it counts at its worst until the next start writes one, so nothing is paid unrecorded.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, NamedTuple

from autoresearch.core.agent_settings import MOST_USD, Caps
from autoresearch.core.amounts import dollars
from autoresearch.core.errors import CostCapReached
from autoresearch.core.history import History
from autoresearch.core.records import Charge
from autoresearch.core.standing import spent_on


class Usage(NamedTuple):
    """Tokens of one call, by how they are priced."""

    input: int = 0
    """Neither written to a cache nor read from one."""
    output: int = 0
    cache_write: int = 0
    """With the five-minute lifetime."""
    cache_write_hour: int = 0
    cache_read: int = 0


@dataclass(frozen=True)
class Call:
    """One call that is under way."""

    id: str
    worst_usd: float


class RoundCapReached(Exception):
    """The next call of this proposal could take it above `[caps] call_usd`."""


class Ledger:
    """Reserves, settles and sums up what a run's calls cost.

    Args:
        log: appends an event to the journal and takes it into `history`.
        history: of the run.
        caps: per call and day.
        max_cost: of the run, US dollars; 0 is no cap.
        elsewhere: charges of the workspace's other runs.
        now: local time.
    """

    def __init__(
        self,
        log: Callable[..., None],
        history: History,
        caps: Caps,
        max_cost: float,
        elsewhere: Iterable[Charge] = (),
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._log, self._history, self._caps, self._max_cost, self._now = log, history, caps, max_cost, now
        self.elsewhere = tuple(elsewhere)
        self._round_from = 0.0
        for id in [*history.open_calls]:
            worst = history.open_calls[id].usd
            log("charged", id=id, usd=worst, outcome="unknown: cut off while it ran; charged at its worst case")
        self.begin_round()

    def begin_round(self) -> None:
        """What is charged from here on belongs to another proposal."""
        self._round_from = self._history.cost_usd

    @property
    def round_usd(self) -> float:
        """What this proposal has cost so far."""
        return round(self._history.cost_usd - self._round_from, 9)  # sums of dollars are not exact in binary

    @property
    def capped(self) -> bool:
        """Whether any cap is set: then every price must be known."""
        return bool(self._max_cost or self._caps.call_usd or self._caps.day_usd)

    def room(self) -> float | None:
        """Dollars until the nearest cap; None without caps."""
        left = min(left for left, _ in self._left())
        return None if math.isinf(left) else max(0.0, left)

    def reserve(self, worst_usd: float, *, agent: str, purpose: str, model: str = "") -> Call:
        """Write down that a call begins which may cost up to `worst_usd`.

        Args:
            agent: the proposer or "reviewer".
            purpose: e.g. "propose", "mend", "review".
            model: as the API names it.

        Raises:
            CostCapReached: it could take the run or the day above its cap.
            RoundCapReached: it could take this proposal above its cap.
        """
        for left, cap in self._left():
            if worst_usd > left + 1e-9:  # sums of prices are not exact in binary
                problem = (
                    f"the next call could cost {dollars(worst_usd)}, and {dollars(max(0.0, left))} is left ({cap})"
                )
                if cap == _CALL and self.round_usd > 0:
                    raise RoundCapReached(problem)
                if cap == _DAY:
                    raise CostCapReached(problem, "go on tomorrow, or raise the cap; the run resumes where it is")
                raise CostCapReached(problem)
        call = Call(uuid.uuid4().hex[:12], worst_usd)
        self._log(
            "call",
            id=call.id,
            n=self._history.next_number,
            agent=agent,
            purpose=purpose,
            model=model,
            worst_usd=worst_usd,
        )
        return call

    def settle(self, call: Call, usd: float, outcome: str, usage: Usage | None = None) -> None:
        """Write down how a call ended and what it cost.

        Args:
            outcome: e.g. "end_turn", "429 rate limited", "killed: silent for 300 s".
            usd: what isn't an amount of dollars, as some tools report it, counts as the worst case.
            usage: tokens, where the tool tells them.
        """
        usd = usd if 0 <= usd <= MOST_USD else call.worst_usd
        tokens: dict[str, Any] = {} if usage is None else {"tokens": usage._asdict()}
        self._log("charged", id=call.id, usd=usd, outcome=outcome, **tokens)

    def _left(self) -> list[tuple[float, str]]:
        """Dollars left of each cap, and its name."""
        caps, today = self._caps, self._now().date()
        return [
            (_left_of(self._max_cost, self._history.cost_usd), "--max-cost"),
            (_left_of(caps.day_usd, self._spent_on(today)), _DAY),
            (_left_of(caps.call_usd, self.round_usd), _CALL),
        ]

    def _spent_on(self, day: date) -> float:
        return spent_on((*self.elsewhere, *self._history.charges, *self._history.open_calls.values()), day)


_CALL = "[caps] call_usd"
_DAY = "[caps] day_usd"


def _left_of(cap: float, spent: float) -> float:
    return cap - spent if cap else math.inf
