"""When a search ends by itself: checked in one place, before anything is spent."""

from __future__ import annotations

from datetime import datetime, timedelta

from autoresearch.core.errors import UsageError
from autoresearch.core.history import History
from autoresearch.core.task import Stop


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
        return f"{counts.experiments} experiments are done (--max-experiments)"
    if stop.target and incumbent is not None and incumbent.value is not None and incumbent.value <= stop.target:
        return f"the target of {stop.target} bpb is reached (--target)"
    if stop.max_hours and now - started >= timedelta(hours=stop.max_hours):
        return f"{stop.max_hours:g} hours have passed (--max-hours)"
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
    try:
        clock = datetime.strptime(until, "%H:%M").time()
    except ValueError as error:
        raise UsageError(f"--until must be HH:MM, received {until!r}", "for example --until 07:30") from error
    moment = started.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
    return moment if moment > started else moment + timedelta(days=1)
