"""When a search ends by itself: checked in one place, before anything is spent and while something is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from autoresearch.core.amounts import dollars
from autoresearch.core.errors import CostCapReached
from autoresearch.core.history import History
from autoresearch.core.standing import until_time
from autoresearch.core.task import Stop

LOOK_SECONDS = 0.5
"""Between two looks at the stop conditions while a search pauses."""


class Ending(NamedTuple):
    """Why a search ended."""

    reason: str
    """In words, for the journal."""
    exit_code: int = 0
    hint: str = ""
    """What to do to go on; "" where nothing is wrong."""


class Stopped(Exception):
    """A stop condition was met in the midst of a proposal, while it waited; nothing of the proposal comes back."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.reason)
        self.ending = ending


class Stops:
    """The stop conditions of one process's part of a search, and pauses that heed them.

    Args:
        stop: conditions; 0 or "" is none.
        history: of the run, as it grows.
        note: takes a line for the user.
    """

    def __init__(self, stop: Stop, history: History, note: Callable[[str], None] = lambda _: None) -> None:
        self._stop, self._history, self._note = stop, history, note
        self.started = datetime.now()
        """Local time."""

    def met(self) -> Ending | None:
        """The stop condition that is met now; None where none is."""
        return ending_of(self._stop, self._history, self.started, datetime.now())

    def pause(self, seconds: float) -> Ending | None:
        """Wait; the stop condition that ended it before its time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if (ending := self.met()) is not None:
                return ending
            time.sleep(min(left, LOOK_SECONDS))
        return None

    def wait(self, seconds: float, why: str) -> None:
        """The same for a proposer that waits, e.g. before it sends a request again.

        Raises:
            Stopped: a stop condition is met.
        """
        self._note(f"  {why}; trying again in {seconds:.0f} s")
        if (ending := self.pause(seconds)) is not None:
            raise Stopped(ending)


def ending_of(stop: Stop, history: History, started: datetime, now: datetime) -> Ending | None:
    """The stop condition that is met; None where none is.

    Args:
        stop: conditions; 0 or "" is none.
        history: of the run.
        started: when this process began to search, local time.
        now: local time.
    """
    counts, incumbent = history.counts, history.incumbent
    if stop.max_experiments and counts.experiments >= stop.max_experiments:
        return Ending(f"experiments done: {counts.experiments} (--max-experiments)")
    if stop.target and incumbent is not None and incumbent.value is not None and incumbent.value <= stop.target:
        return Ending(f"the target of {stop.target} bpb is reached (--target)")
    if stop.max_hours and now - started >= timedelta(hours=stop.max_hours):
        return Ending(f"hours passed: {stop.max_hours:g} (--max-hours)")
    if stop.until and now >= until_time(stop.until, started):
        return Ending(f"it is {stop.until} (--until)")
    if stop.max_cost and (cost := history.cost_usd) >= stop.max_cost:
        return capped(CostCapReached(f"{dollars(cost)} is spent (--max-cost)"))
    return None


def capped(cap: CostCapReached) -> Ending:
    """The end by a cap on cost."""
    return Ending(cap.message, cap.exit_code, cap.hint)
