"""Stop conditions, each and together."""

from datetime import datetime, timedelta

import pytest

from autoresearch.agent.stop import Ending, ending_of
from autoresearch.core.errors import UsageError
from autoresearch.core.history import History
from autoresearch.core.standing import until_time
from autoresearch.core.task import Stop

NOW = datetime(2025, 11, 30, 22, 30)


def history_of(experiments: int = 0, cost: float = 0.0) -> History:
    """A decided baseline of 2 bpb, and experiments of which the last one reached 1 bpb."""
    events: list[dict] = [{"event": "run"}]
    for n in range(experiments + 1):
        verdict, value = ("keep", 2.0 if n == 0 else 1.0) if n in (0, experiments) else ("crash", None)
        events += [
            {"event": "call", "id": str(n), "n": n, "worst_usd": 2 * cost, "time": NOW.isoformat()},
            {"event": "charged", "id": str(n), "usd": cost},
            {"event": "proposed", "n": n, "blob": "", "hypothesis": "", "normalized_hash": str(n)},
            {"event": "decided", "n": n, "verdict": verdict, "val_bpb": value},
        ]
    return History.from_events(events)


@pytest.mark.parametrize(
    ("stop", "history", "reason"),
    [
        (Stop(), history_of(100, 9.0), ""),
        (Stop(max_experiments=3), history_of(2), ""),
        (Stop(max_experiments=3), history_of(3), "experiments done: 3 (--max-experiments)"),
        (Stop(target=1.5), history_of(0), ""),
        (Stop(target=1.0), history_of(1), "the target of 1.0 bpb is reached (--target)"),
        (Stop(max_cost=2.0), history_of(1, 0.9), ""),
        (Stop(max_cost=2.0), history_of(1, 1.0), "$2.00 is spent (--max-cost)"),
        (Stop(max_hours=2.0), history_of(), "hours passed: 2 (--max-hours)"),
        (Stop(max_hours=2.1), history_of(), ""),
        (Stop(until="22:29"), history_of(), "it is 22:29 (--until)"),
        (Stop(until="22:31"), history_of(), ""),
        (Stop(until="07:00"), history_of(), ""),
        (Stop(max_experiments=9, target=0.5, until="22:30"), history_of(2), "it is 22:30 (--until)"),
        (Stop(max_experiments=2, max_hours=1.0), history_of(2), "experiments done: 2 (--max-experiments)"),
    ],
)
def test_endings(stop, history, reason):
    ending = ending_of(stop, history, NOW - timedelta(hours=2), NOW)
    assert (ending.reason if ending else "") == reason
    assert ending is None or ending.exit_code == (3 if "--max-cost" in reason else 0)


def test_a_call_under_way_counts_at_its_worst():
    """So the stop condition says the same as the ledger, which would refuse another call."""
    history = history_of(1, 0.5)
    history.apply({"event": "call", "id": "open", "n": 2, "worst_usd": 1.0, "time": NOW.isoformat()})
    assert isinstance(ending_of(Stop(max_cost=2.0), history, NOW, NOW), Ending)
    assert ending_of(Stop(max_cost=2.1), history, NOW, NOW) is None


def test_a_target_is_not_reached_without_an_incumbent():
    assert ending_of(Stop(target=5.0), History(), NOW, NOW) is None


@pytest.mark.parametrize(
    ("until", "started", "expected"),
    [
        ("07:30", NOW, datetime(2025, 12, 1, 7, 30)),
        ("22:31", NOW, datetime(2025, 11, 30, 22, 31)),
        ("22:30", NOW, datetime(2025, 12, 1, 22, 30)),
        ("00:00", NOW, datetime(2025, 12, 1)),
    ],
)
def test_until_is_the_next_such_time(until, started, expected):
    assert until_time(until, started) == expected


@pytest.mark.parametrize("until", ["24:00", "7", "07:60", "seven", "07:30:00", "-1:00"])
def test_wrong_times(until):
    with pytest.raises(UsageError, match="--until must be HH:MM"):
        Stop(until=until)
