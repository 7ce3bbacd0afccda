"""Where a search stands: what a journal's events add up to for those who look on."""

from datetime import UTC, datetime, timedelta

import pytest

from autoresearch.core.agent_settings import Caps
from autoresearch.core.history import History
from autoresearch.core.records import Charge
from autoresearch.core.standing import session_of, standing_of
from autoresearch.core.task import Stop

BEGAN = datetime(2026, 11, 30, 20, 0, tzinfo=UTC)
NOW = BEGAN + timedelta(minutes=60)
SETTINGS = {"rules": {"spread": 0.02}, "stop": {"max_experiments": 9}, "caps": {"day_usd": 5.0, "later": 1}}


def at(minutes: float) -> str:
    return (BEGAN + timedelta(minutes=minutes)).isoformat()


RUN = {"event": "run", "settings": SETTINGS, "comparability_key": "here", "time": at(0)}


def experiment(n: int, verdict: str, val_bpb: float | None, minutes: float = 10.0, **decided) -> list[dict]:
    hashes = {"blob": "b", "source_hash": f"s{n}", "normalized_hash": f"n{n}"}
    told = {"hypothesis": f"idea {n}", "constants": {}, "diff_lines": 1, "parent": 0 if n else None}
    verdict_of = {"verdict": verdict, "reason": "why", "val_bpb": val_bpb, "value_n": 1, **decided}
    return [
        {"event": "proposed", "n": n, **hashes, **told},
        {"event": "decided", "n": n, **verdict_of, "time": at(minutes)},
    ]


def paid(id: str, usd: float, minutes: float) -> list[dict]:
    return [
        {"event": "call", "id": id, "n": 1, "agent": "claude", "worst_usd": 9.0, "time": at(minutes)},
        {"event": "charged", "id": id, "usd": usd},
    ]


EVENTS = [
    RUN,
    *experiment(0, "keep", 2.0),
    *experiment(1, "keep", 1.9),
    *experiment(2, "discard", 1.95),
    *experiment(3, "crash", None),
    *experiment(4, "keep", 1.7),
    {"event": "withdrawn", "n": 4, "reason": "lucky"},
]


def standing(*more: dict, stop: Stop = Stop(), caps: Caps = Caps(), **given):
    return standing_of(History.from_events([*EVENTS, *more]), stop, caps, BEGAN, now=NOW, **given)


def test_what_was_reached():
    found = standing()
    assert (found.baseline, found.best, found.best_number) == (2.0, 1.9, 1)
    assert found.gain.mean == pytest.approx(0.1)
    assert found.best_so_far == (2.0, 1.9, 1.9, 1.9, 1.9), "a keep that was withdrawn is no best"
    assert (found.counts.experiments, found.counts.kept, found.counts.failed) == (4, 1, 1)
    assert [(outcome.number, outcome.verdict) for outcome in found.last][-2:] == [(3, "crash"), (4, "keep")]
    assert found.last[2].change == pytest.approx(-0.05)
    assert (found.last[0].verdict, found.last[0].change, found.last[3].change) == ("baseline", None, None)
    many = [event for n in range(5, 12) for event in experiment(n, "discard", 2.0)]
    assert [outcome.number for outcome in standing(*many).last] == [7, 8, 9, 10, 11]


def test_another_machine_has_no_baseline_to_compare_with():
    found = standing({"event": "resumed", "comparability_key": "elsewhere"})
    assert (found.baseline, found.gain, found.best_so_far) == (None, None, ())


def test_time_limits_end_exactly_then():
    by_hours, by_clock = standing(stop=Stop(max_hours=1.5, until="23:15")).limits
    assert (by_hours.ends_at, by_hours.left) == (BEGAN + timedelta(hours=1.5), 1800)
    local = by_clock.ends_at.astimezone()
    assert (local.hour, local.minute) == (23, 15)
    assert timedelta(0) < by_clock.ends_at - BEGAN <= timedelta(days=1)


def test_other_limits_end_at_the_pace_of_this_search():
    (limit,) = standing(stop=Stop(max_experiments=6)).limits
    assert (limit.left, limit.ends_at) == (2, NOW + timedelta(minutes=30)), "four took an hour"
    calls = paid("a", 3.0, 30)
    cost, day = standing(*calls, stop=Stop(max_cost=4.0), caps=Caps(day_usd=9.0)).limits
    assert (cost.left, cost.ends_at) == (1.0, NOW + timedelta(minutes=20)), "three dollars took an hour"
    assert day.left == 6.0
    other = [Charge(NOW, 2.5, "claude", 0), Charge(NOW - timedelta(days=2), 9.0, "claude", 0)]
    (day,) = standing(*calls, caps=Caps(day_usd=9.0), elsewhere=other).limits
    assert day.left == 3.5, "other runs of the same day count"
    (target,) = standing(stop=Stop(target=1.5)).limits
    assert (target.left, target.ends_at) == (pytest.approx(0.4), None)


def test_what_earlier_searches_of_the_run_took_is_no_pace():
    later = NOW - timedelta(minutes=1)
    history = History.from_events([*EVENTS, *paid("a", 3.0, 30)])
    limits = standing_of(history, Stop(max_experiments=6, max_cost=4.0), Caps(), later, now=NOW).limits
    assert [limit.ends_at for limit in limits] == [None, None]
    passed = standing_of(history, Stop(max_experiments=2, max_cost=2.0), Caps(), later, now=NOW).limits
    assert [(limit.left, limit.ends_at) for limit in passed] == [(0, NOW), (0, NOW)]


def test_the_settings_of_the_latest_search_are_told_by_the_journal():
    history = History.from_events([RUN])
    assert session_of(history) == (Stop(max_experiments=9), Caps(day_usd=5.0), BEGAN)
    history.apply({"event": "resumed", "time": at(30), "stop": {"max_hours": 2.0}, "caps": {}})
    assert session_of(history) == (Stop(max_hours=2.0), Caps(), BEGAN + timedelta(minutes=30))
    history.apply({"event": "resumed", "time": at(31)})
    assert session_of(history)[:2] == (Stop(max_experiments=9), Caps(day_usd=5.0)), "as an earlier version wrote it"
