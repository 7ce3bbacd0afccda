"""When a search ends by itself: checked in one place, before anything is spent."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from autoresearch.core.errors import CostCapReached
from autoresearch.core.history import History
from autoresearch.core.task import Stop, time_of_day


class Ending(NamedTuple):
    """Why a search ended."""

    reason: str
    """In words, for the journal."""
    exit_code: int = 0
    hint: str = ""
    """What to do to go on; "" where nothing is wrong."""


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
        return capped(f"{cost:.2f} dollars are spent (--max-cost)")
    return None


def capped(reason: str) -> Ending:
    """The end by a cap on cost."""
    return Ending(reason, CostCapReached.exit_code, "raise the cap to go on; the run resumes where it is")


def until_time(until: str, started: datetime) -> datetime:
    """The first HH:MM after `started`.

    Raises:
        UsageError: not a time of day.
    """
    clock = time_of_day(until)
    moment = started.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
    return moment if moment > started else moment + timedelta(days=1)
