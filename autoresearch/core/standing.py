"""Where a search stands, as plain data for whoever shows it; built from its history, so that any process can."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, TypeVar

from autoresearch.core import noise
from autoresearch.core.agent_settings import Caps
from autoresearch.core.history import History
from autoresearch.core.interval import Interval
from autoresearch.core.records import Charge, Counts
from autoresearch.core.task import Stop, time_of_day
from autoresearch.core.view import Outcome, outcome_of

LAST = 5
"""Outcomes that a view is handed when it begins to look."""

T = TypeVar("T")


@dataclass(frozen=True)
class Limit:
    """A stop condition or a cap, and what is left of it."""

    name: str
    """As people set it: `--max-cost`, `--until 07:30`, `[caps] day_usd`."""
    unit: Literal["experiments", "dollars", "bpb", "seconds"]
    left: float
    """In that unit, 0 or more, at the moment of the standing."""
    ends_at: datetime | None
    """With a time zone: exactly then where time itself is the limit, else at the pace of this search so far; None where
    there is no pace yet."""


@dataclass(frozen=True)
class Standing:
    """Where a search stands. Scores and gains are in bits per byte."""

    counts: Counts
    baseline: float | None = None
    """None where it isn't decided, or was measured under other conditions than the incumbent."""
    best: float | None = None
    """Value of the incumbent."""
    best_number: int = 0
    gain: Interval | None = None
    """From the baseline to the incumbent, with its 95 % interval; None where there is none to tell."""
    best_so_far: tuple[float, ...] = ()
    """Value of the incumbent after each decided experiment, the baseline first; keeps that were withdrawn left out."""
    last: tuple[Outcome, ...] = ()
    """At most LAST decided experiments, in order."""
    cost_usd: float = 0.0
    limits: tuple[Limit, ...] = ()
    stop_reason: str = ""


def standing_of(
    history: History,
    stop: Stop,
    caps: Caps,
    began: datetime,
    elsewhere: Iterable[Charge] = (),
    now: datetime | None = None,
) -> Standing:
    """Where the search of a history stands.

    Args:
        stop, caps: of the search.
        began: when its process began to search; without a time zone it is local time.
        elsewhere: charges of the workspace's other runs, which count towards the cap of a day.
        now: None is the present.
    """
    baseline, best = history.baseline, history.incumbent
    decided = [record for record in history.experiments.values() if record.verdict is not None]
    comparable = baseline is not None and history.current(baseline)
    return Standing(
        counts=history.counts,
        baseline=baseline.value if baseline is not None and comparable else None,
        best=best.value if best else None,
        best_number=best.number if best else 0,
        gain=noise.gain_interval(history),
        best_so_far=tuple(_best_so_far(history)),
        last=tuple(
            outcome_of(record, _change(record.number, history), history.cost_of(record.number))
            for record in decided[-LAST:]
        ),
        cost_usd=history.cost_usd,
        limits=tuple(_limits(history, stop, caps, began.astimezone(), elsewhere, now or datetime.now(UTC))),
        stop_reason=history.stop_reason,
    )


def session_of(history: History) -> tuple[Stop, Caps, datetime]:
    """Stop conditions, caps and the start of the latest search of a run, as its journal tells them."""
    began = history.session.get("time")
    settings = {**history.settings, **history.session}
    return (
        _known(Stop, settings.get("stop", {})),
        _known(Caps, settings.get("caps", {})),
        datetime.fromisoformat(began) if began else datetime.now(UTC),
    )


def until_time(until: str, started: datetime) -> datetime:
    """The first HH:MM after `started`, in its time zone.

    Raises:
        UsageError: not a time of day.
    """
    clock = time_of_day(until)
    moment = started.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
    return moment if moment > started else moment + timedelta(days=1)


def spent_on(charges: Iterable[Charge], day: date) -> float:
    """US dollars that were charged on a day, local time."""
    return math.fsum(charge.usd for charge in charges if charge.time.astimezone().date() == day)


def _known(kind: type[T], values: Mapping[str, Any]) -> T:
    """Settings from a journal, which may hold those of a later version."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in known})


def _best_so_far(history: History) -> Iterator[float]:
    best = None
    for record in history.experiments.values():
        if record.verdict is None:
            continue
        if record.kept and history.current(record):
            best = record.value
        if best is not None:
            yield best


def _change(number: int, history: History) -> float | None:
    """Of a decided experiment against the incumbent that it was made from, by what that one is worth now."""
    record = history.experiments[number]
    parent = history.experiments.get(-1 if record.parent is None else record.parent)
    if parent is None or parent.value is None or record.val_bpb is None or parent.value_key != record.decided_key:
        return None
    return record.val_bpb - parent.value


def _limits(
    history: History, stop: Stop, caps: Caps, began: datetime, elsewhere: Iterable[Charge], now: datetime
) -> Iterator[Limit]:
    passed = (now - began).total_seconds()
    charges = (*history.charges, *history.open_calls.values())

    def at_pace(left: float, done: float) -> datetime | None:
        """When it is used up if it goes on as it did since this search began."""
        if left <= 0:
            return now
        seconds = left * passed / done if done > 0 else math.inf
        return now + timedelta(seconds=seconds) if seconds < 1e9 else None

    if stop.max_experiments:
        left = max(0, stop.max_experiments - history.counts.experiments)
        moments = (record.decided_at for record in history.experiments.values() if record.number)
        done = sum(moment is not None and moment >= began for moment in moments)
        yield Limit("--max-experiments", "experiments", left, at_pace(left, done))
    if stop.max_hours:
        end = began + timedelta(hours=stop.max_hours)
        yield Limit("--max-hours", "seconds", _seconds(end, now), end)
    if stop.until:
        end = until_time(stop.until, began.replace(tzinfo=None)).astimezone()  # an hour may be skipped meanwhile
        yield Limit(f"--until {stop.until}", "seconds", _seconds(end, now), end)
    spent = math.fsum(charge.usd for charge in charges if charge.time >= began)
    if stop.max_cost:
        usd = max(0.0, stop.max_cost - history.cost_usd)
        yield Limit("--max-cost", "dollars", usd, at_pace(usd, spent))
    if caps.day_usd:
        usd = max(0.0, caps.day_usd - spent_on((*elsewhere, *charges), now.astimezone().date()))
        yield Limit("[caps] day_usd", "dollars", usd, at_pace(usd, spent))
    if stop.target and history.incumbent is not None and history.incumbent.value is not None:
        yield Limit(f"--target {stop.target:g}", "bpb", max(0.0, history.incumbent.value - stop.target), None)


def _seconds(end: datetime, now: datetime) -> float:
    return max(0.0, (end - now).total_seconds())
