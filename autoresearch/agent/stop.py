"""When a search ends by itself: checked in one place, before anything is spent."""

from __future__ import annotations

from datetime import datetime, timedelta

from autoresearch.core.history import History
from autoresearch.core.task import Stop, time_of_day


def stop_reason(stop: Stop, history: History, started: datetime, now: datetime) -> str:
    """The stop condition that is met, in words; "" where none is.

    Args:
        stop: conditions; 0 or "" is none.
        history: of the run.
        started: when this process began to search, local time.
        now: local time.
    """
    counts, incumbent = history.counts, history.incumbent
    if stop.max_experiments and counts.experiments >= stop.max_experiments:
        return f"experiments done: {counts.experiments} (--max-experiments)"
    if stop.target and incumbent is not None and incumbent.value is not None and incumbent.value <= stop.target:
        return f"the target of {stop.target} bpb is reached (--target)"
    if stop.max_hours and now - started >= timedelta(hours=stop.max_hours):
        return f"hours passed: {stop.max_hours:g} (--max-hours)"
    if stop.until and now >= until_time(stop.until, started):
        return f"it is {stop.until} (--until)"
    if stop.max_cost and history.cost_usd >= stop.max_cost:
        return f"{history.cost_usd:.2f} dollars are spent (--max-cost)"
    return ""


def until_time(until: str, started: datetime) -> datetime:
    """The first HH:MM after `started`.

    Raises:
        UsageError: not a time of day.
    """
    clock = time_of_day(until)
    moment = started.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
    return moment if moment > started else moment + timedelta(days=1)
