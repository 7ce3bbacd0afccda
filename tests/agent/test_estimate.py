"""What a night is said to cost: the sizes, the number of experiments and the dollars behind the words."""

from dataclasses import replace

import pytest

from autoresearch.agent import estimate
from autoresearch.agent.estimate import Size, estimate_text, night_of, proposal_cost, size_of
from autoresearch.agent.ledger import Usage
from autoresearch.agent.prices import load_prices
from autoresearch.core.agent_settings import Caps
from autoresearch.core.amounts import dollars
from autoresearch.core.history import History
from autoresearch.core.task import Settings, Stop, Task

PRICES = load_prices()
SETTINGS = Settings("tinystories/cpu", task=Task(train_seconds=300.0))
HOUR = {"type": "ephemeral", "ttl": "1h"}
REQUEST = {
    "model": "claude-sonnet-5-5",
    "max_tokens": 16_000,
    "tools": [{"name": "view", "description": "x" * 300}],
    "system": [{"type": "text", "text": "y" * 3000, "cache_control": HOUR}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "z" * 9000, "cache_control": HOUR},
                {"type": "text", "text": "history", "cache_control": {"type": "ephemeral"}},
            ],
        }
    ],
}


def history(*seconds: float) -> History:
    """A baseline and experiments whose measurements took so long."""
    events: list[dict] = [{"event": "run"}]
    for n, total in enumerate(seconds):
        result = {"status": "ok", "val_bpb": 1.0, "total_seconds": total}
        events += [
            {"event": "proposed", "n": n, "blob": "", "hypothesis": "", "normalized_hash": str(n)},
            {"event": "started", "n": n, "k": 0, "seed": 1},
            {"event": "measured", "n": n, "k": 0, "result": result},
            {"event": "decided", "n": n, "verdict": "keep", "val_bpb": 1.0},
        ]
    return History.from_events(events)


def test_the_stable_part_of_a_prompt_reaches_to_the_last_mark_of_the_long_cache():
    size = size_of(REQUEST)
    assert size.stable == pytest.approx(12_300 / 3, rel=0.05)
    assert size.rest < 50
    plain = {**REQUEST, "system": "y" * 3000, "messages": [{"role": "user", "content": "z" * 9000}]}
    assert size_of(plain).stable == 0
    assert size_of(plain).rest == pytest.approx(12_300 / 3, rel=0.05)


def test_a_proposal_is_its_answers(monkeypatch):
    """By hand: two answers; the first writes the history to the cache, the second reads it, and writes what came."""
    monkeypatch.setattr(estimate, "ANSWERS", 2)
    monkeypatch.setattr(estimate, "OUTPUT_TOKENS", 2_000)
    monkeypatch.setattr(estimate, "RESULT_TOKENS", 100)
    by_hand = [
        Usage(output=1_000, cache_write=5_000, cache_read=10_000),
        Usage(output=1_000, cache_write=1_100, cache_read=15_000),
    ]
    expected = sum(PRICES.cost_of("claude-sonnet-5-5", usage) for usage in by_hand)
    assert proposal_cost(PRICES, "claude-sonnet-5-5", Size(10_000, 5_000)) == pytest.approx(expected)
    assert proposal_cost(PRICES, "claude-sonnet-5-5", Size(10_000, 5)) < expected, "the history is assumed to grow"


def test_the_length_of_an_experiment_is_assumed_or_measured():
    night = night_of(SETTINGS, History())
    assert (night.hours, night.measured) == (8.0, False)
    assert night.seconds == pytest.approx(1.3 * 330 + 60)
    assert night.experiments == pytest.approx(8 * 3600 / night.seconds)
    night = night_of(replace(SETTINGS, stop=Stop(max_hours=2.0, max_experiments=7)), history(100.0, 200.0))
    assert (night.hours, night.measured, night.seconds, night.experiments) == (2.0, True, 210.0, 7)


def test_the_words():
    text = estimate_text(SETTINGS, History(), REQUEST, PRICES, 0.5)
    each = proposal_cost(PRICES, "claude-sonnet-5-5", size_of(REQUEST))
    proposals = night_of(SETTINGS, History()).experiments / 2
    first = PRICES.cost_of("claude-sonnet-5-5", Usage(cache_write_hour=size_of(REQUEST).stable))
    assert f"{proposals:.0f} of them proposed by claude-sonnet-5-5" in text
    assert f"{dollars(each)} a proposal, ${first + proposals * each:.2f} a night; no cap is set" in text
    low = replace(SETTINGS, stop=Stop(max_cost=1.0), caps=Caps(day_usd=0.5))
    assert estimate_text(low, History(), REQUEST, PRICES, 1.0).endswith("; the cap of $0.50 ends it before")
    high = replace(SETTINGS, stop=Stop(max_cost=100.0))
    assert estimate_text(high, History(), REQUEST, PRICES, 1.0).endswith(" a night")
    unknown = estimate_text(SETTINGS, History(), {**REQUEST, "model": "mine"}, PRICES, 1.0)
    assert "no price is known for mine" in unknown
