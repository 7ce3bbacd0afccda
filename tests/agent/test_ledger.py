"""What calls cost: reserved at their worst, settled at what it was, never above a cap, never forgotten."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearch.agent.ledger import Ledger, RoundCapReached, Usage
from autoresearch.agent.loop import search
from autoresearch.agent.night import ledger_of
from autoresearch.agent.prices import load_prices
from autoresearch.core.agent_settings import Caps
from autoresearch.core.errors import CostCapReached
from autoresearch.core.history import History
from autoresearch.core.journal import Journal
from autoresearch.core.records import Charge
from autoresearch.core.runs import charges_elsewhere

NOW = datetime(2026, 11, 30, 22, 30).astimezone()


def spend(ledger: Ledger, worst: float, usd: float | None = None) -> None:
    call = ledger.reserve(worst, agent="claude", purpose="propose", model="m")
    ledger.settle(call, worst if usd is None else usd, "end_turn")


def test_a_call_is_two_lines(purse):
    purse = purse()
    call = purse.ledger.reserve(0.3, agent="claude", purpose="mend", model="claude-x")
    assert purse.history.cost_usd == 0.3, "at its worst while it is under way"
    purse.ledger.settle(call, 0.1, "tool_use", Usage(input=5, cache_write_hour=2))
    assert purse.history.cost_usd == 0.1
    before, after = purse.events
    assert before == {
        "event": "call", "time": before["time"], "id": call.id, "n": 0, "agent": "claude", "purpose": "mend",
        "model": "claude-x", "worst_usd": 0.3,
    }  # fmt: skip
    assert after == {
        "event": "charged", "time": after["time"], "id": call.id, "usd": 0.1, "outcome": "tool_use",
        "tokens": {"input": 5, "output": 0, "cache_write": 0, "cache_write_hour": 2, "cache_read": 0},
    }  # fmt: skip


def test_no_call_may_pass_the_cap_of_the_run(purse):
    purse = purse(max_cost=0.5)
    spend(purse.ledger, 0.3, 0.1)
    spend(purse.ledger, 0.4)
    lines = len(purse.events)
    with pytest.raises(CostCapReached, match=r"could cost \$0\.01, and \$0\.00 is left \(--max-cost\)"):
        purse.ledger.reserve(0.01, agent="claude", purpose="propose")
    assert len(purse.events) == lines, "what was refused was never begun"
    assert purse.history.cost_usd == 0.5


def test_a_call_under_way_is_reserved(purse):
    purse = purse(max_cost=0.5)
    purse.ledger.reserve(0.3, agent="claude", purpose="propose")
    assert purse.ledger.room() == pytest.approx(0.2)
    with pytest.raises(CostCapReached):
        purse.ledger.reserve(0.3, agent="reviewer", purpose="review")


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 0.4), st.floats(0, 1)), max_size=12))
def test_whatever_calls_cost_the_cap_holds(calls):
    history = History()
    ledger = Ledger(lambda event, **data: history.apply(entry(event, **data)), history, Caps(), 0.5)
    for worst, share in calls:
        try:
            call = ledger.reserve(worst, agent="a", purpose="p")
        except CostCapReached:
            continue
        assert history.cost_usd <= 0.5 + 1e-8, "also with this call under way"
        ledger.settle(call, worst * share, "ok")
    assert history.cost_usd <= 0.5 + 1e-8


def entry(event: str, time: datetime = NOW, **data) -> dict:
    return {"event": event, "time": time.isoformat(), **data}


def test_a_reservation_that_is_left_out_passes_the_cap(monkeypatch):
    """The property above has teeth."""
    monkeypatch.setattr(Ledger, "_left", lambda self: [(1e9, "--max-cost")])
    with pytest.raises(AssertionError):
        test_whatever_calls_cost_the_cap_holds()


def test_the_cap_of_a_proposal(purse):
    purse = purse(call_usd=0.2)
    spend(purse.ledger, 0.15)
    with pytest.raises(RoundCapReached, match="call_usd"):
        purse.ledger.reserve(0.1, agent="claude", purpose="propose")
    purse.ledger.begin_round()
    assert (purse.ledger.round_usd, purse.ledger.room()) == (0.0, 0.2)
    spend(purse.ledger, 0.15)
    purse.ledger.begin_round()
    with pytest.raises(CostCapReached):  # the first call of a proposal: no other proposal would fit either
        purse.ledger.reserve(0.3, agent="claude", purpose="propose")


def test_the_cap_of_a_day_counts_all_runs_of_the_workspace_by_local_time(purse):
    yesterday = NOW.replace(hour=0, minute=0) - timedelta(seconds=1)
    elsewhere = [Charge(NOW.astimezone(UTC), 0.3, "claude", 1), Charge(yesterday, 5.0, "claude", 1)]
    history = History()
    ledger = Ledger(
        lambda event, **data: history.apply(entry(event, **data)),
        history,
        Caps(day_usd=0.5),
        0.0,
        elsewhere,
        now=lambda: NOW.replace(tzinfo=None),
    )
    assert ledger.room() == pytest.approx(0.2)
    spend(ledger, 0.2)
    with pytest.raises(CostCapReached, match="day_usd") as cap:
        ledger.reserve(0.01, agent="claude", purpose="propose")
    assert cap.value.hint.startswith("go on tomorrow, or raise the cap")
    tomorrow = Ledger(
        ledger._log,
        history,
        Caps(day_usd=0.5),
        0.0,
        elsewhere,
        now=lambda: NOW.replace(tzinfo=None) + timedelta(days=1),
    )
    assert tomorrow.room() == 0.5


def test_without_caps_there_is_no_limit(purse):
    purse = purse()
    assert purse.ledger.room() is None
    assert not purse.ledger.capped
    spend(purse.ledger, 1e6)


@pytest.mark.parametrize("told", [float("nan"), float("inf"), -1.0, 1e308])
def test_what_is_no_amount_counts_as_the_worst_case(told, purse):
    purse = purse()
    spend(purse.ledger, 0.3, told)
    assert purse.charged == [0.3]


def test_a_call_that_a_kill_cut_off_is_charged_once_at_its_worst(lab_of, machine, listener, listed):
    lab = lab_of(machine)
    lab.begin()
    Ledger(lab.log, lab.history, Caps(), 0.0).reserve(0.3, agent="claude", purpose="propose")
    # Killed here. Whoever looks at the journal meanwhile sees the worst case.
    assert lab_of(machine).history.cost_usd == 0.3
    for _ in range(2):
        lab = lab_of(machine)
        search(lab, listed(a=1.0), listener, ledger_of(lab.run, lab))
    charged = [event for event in Journal(lab.run.folder / "journal.jsonl").read() if event["event"] == "charged"]
    assert [(event["usd"], event["outcome"]) for event in charged] == [
        (0.3, "unknown: cut off while it ran; charged at its worst case")
    ]
    assert (lab.history.cost_usd, lab.history.open_calls) == (0.3, {})


def test_other_runs_of_the_workspace_count_towards_the_day(lab_of, machine, place):
    Journal(place.run_dir("other") / "journal.jsonl").append("run", settings={})
    other = Journal(place.run_dir("other") / "journal.jsonl")
    other.append("call", id="a", n=1, worst_usd=0.4)
    other.append("charged", id="a", usd=0.1)
    other.append("call", id="b", n=1, worst_usd=0.2)
    lab = lab_of(machine)
    assert sum(charge.usd for charge in charges_elsewhere(place, "tag")) == pytest.approx(0.3)
    run = replace(lab.run, settings=replace(lab.run.settings, caps=Caps(day_usd=1.0)))
    assert ledger_of(run, lab).room() == pytest.approx(0.7)


@given(st.lists(st.builds(Usage, *[st.integers(0, 50_000)] * 5), max_size=60))
@settings(max_examples=50)
def test_the_sum_is_exact_to_the_cent(usages):
    prices, history = load_prices(), History()
    ledger = Ledger(lambda event, **data: history.apply(entry(event, **data)), history, Caps(), 0.0)
    exact = Decimal(0)
    for usage in usages:
        spend(ledger, 1.0, prices.cost_of("claude-sonnet-5-5", usage))
        rates = prices.of("claude-sonnet-5-5").rates
        exact += sum(n * Decimal(str(getattr(rates, kind))) for kind, n in usage._asdict().items()) / 10**6
    assert abs(Decimal(history.cost_usd) - exact) < Decimal("1e-9")
    assert round(Decimal(history.cost_usd), 2) == round(exact, 2) or abs(exact * 100 % 1 - Decimal("0.5")) < Decimal(
        "1e-6"
    )


def test_costs_belong_to_the_experiment_they_were_to_propose():
    history = History()
    for n, (id, usd) in enumerate([("a", 0.1), ("b", 0.2), ("c", 0.4)]):
        history.apply(entry("call", id=id, n=n // 2, worst_usd=1.0, agent="claude"))
        history.apply(entry("charged", id=id, usd=usd))
    assert history.cost_of(0) == pytest.approx(0.3)
    assert history.cost_of(1) == 0.4
    assert history.cost_of(7) == 0.0
