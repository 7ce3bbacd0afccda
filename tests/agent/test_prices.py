"""What tokens cost: to the cent, by the exact model, in the package's table or the user's."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearch.agent.ledger import Usage
from autoresearch.agent.prices import Rates, load_prices
from autoresearch.core.agent_settings import Claude
from autoresearch.core.errors import UsageError

PRICES = load_prices()


def test_the_published_prices():
    assert PRICES.of("claude-sonnet-5-5").rates == Rates(2.0, 10.0, 2.5, 4.0, 0.1)
    assert PRICES.of("claude-opus-5-5").rates.cache_read == 0.2, "a twentieth of the input, not the usual tenth"
    for model, price in PRICES.by_model.items():
        rates = price.rates
        assert rates.cache_write == pytest.approx(1.25 * rates.input), model
        assert rates.cache_write_hour == pytest.approx(2 * rates.input), model
        assert rates.cache_read <= 0.1 * rates.input + 1e-9, model
        assert rates.output == 5 * rates.input, model


def test_the_default_model_has_a_price():
    assert PRICES.of(Claude().model) is not None


def test_each_kind_of_token_has_its_price():
    million = 10**6
    kinds = {
        Usage(input=million): 2.0,
        Usage(output=million): 10.0,
        Usage(cache_write=million): 2.5,
        Usage(cache_write_hour=million): 4.0,
        Usage(cache_read=million): 0.1,
    }
    assert {usage: PRICES.cost_of("claude-sonnet-5-5", usage) for usage in kinds} == kinds


def test_a_long_prompt_has_another_price_cached_or_not():
    assert PRICES.cost_of("claude-haiku-5-5", Usage(100_000, 1000)) == pytest.approx(0.0105)
    assert PRICES.cost_of("claude-haiku-5-5", Usage(1, 1000, cache_read=100_000)) == pytest.approx(0.0075005)
    assert PRICES.worst_of("claude-haiku-5-5", 100_001, 1000) == pytest.approx(0.102501)


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("claude-sonnet-5-5", True),
        ("claude-sonnet-5-5-20260928", True),
        ("claude-haiku-4-5-20251001", True),
        ("claude-sonnet-5-6", False),
        ("claude-sonnet-5-5-latest", False),
        ("claude-sonnet-5-5-2026", False),
        ("claude-sonnet", False),
        ("Claude-Sonnet-5-5", False),
        ("anthropic.claude-sonnet-5-5", False),
        ("", False),
    ],
)
def test_a_model_is_matched_exactly_or_with_a_date(model, known):
    assert (PRICES.of(model) is not None) is known
    if not known:
        with pytest.raises(UsageError, match="no price is known for the model"):
            PRICES.check(model)
        assert PRICES.cost_of(model, Usage(10**6, 10**6)) == 0.0


TOKENS = st.integers(0, 300_000)


@given(st.sampled_from(sorted(PRICES.by_model)), st.builds(Usage, TOKENS, TOKENS, TOKENS, TOKENS, TOKENS))
def test_no_usage_costs_more_than_its_worst_case(model, usage):
    prompt = usage.input + usage.cache_write + usage.cache_write_hour + usage.cache_read
    assert PRICES.cost_of(model, usage) <= PRICES.worst_of(model, prompt, usage.output) + 1e-9


@given(st.sampled_from(sorted(PRICES.by_model)), st.builds(Usage, TOKENS, TOKENS, TOKENS, TOKENS, TOKENS))
def test_a_cost_is_the_decimal_product(model, usage):
    price = PRICES.of(model)
    rates = price.at(usage.input + usage.cache_write + usage.cache_write_hour + usage.cache_read)
    exact = sum(n * Decimal(str(getattr(rates, kind))) for kind, n in usage._asdict().items()) / 10**6
    assert Decimal(repr(PRICES.cost_of(model, usage))) == exact.normalize()


def test_a_file_of_ones_own_goes_over_the_table(tmp_path):
    (tmp_path / "mine.toml").write_text(
        "[my-model]\ninput = 1\noutput = 2\ncache_write = 1\ncache_write_hour = 1\ncache_read = 0\n"
        "[claude-opus-5]\ninput = 9\noutput = 9\ncache_write = 9\ncache_write_hour = 9\ncache_read = 9\n"
    )
    prices = load_prices("mine.toml", tmp_path)
    assert prices.of("my-model").rates == Rates(1.0, 2.0, 1.0, 1.0, 0.0)
    assert prices.of("claude-opus-5").rates.input == 9.0
    assert prices.of("claude-sonnet-5-5") == PRICES.of("claude-sonnet-5-5")


WHOLE = "input = 1\noutput = 2\ncache_write = 1\ncache_write_hour = 1\ncache_read = 0\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (WHOLE.replace("output = 2\n", ""), "output must be dollars per million tokens, received None"),
        (WHOLE.replace("= 2", "= -2"), "output must be dollars"),
        (WHOLE.replace("= 2", "= nan"), "output must be dollars"),
        (WHOLE.replace("= 2", "= inf"), "output must be dollars"),
        (WHOLE.replace("= 2", "= true"), "output must be dollars"),
        (WHOLE + "cache_reads = 1\n", "has no key 'cache_reads'"),
        (WHOLE + "long = 5\n", "long must be a table with `above`"),
        (WHOLE + "long = { above = 5, input = 1 }\n", "long must be|output must be dollars"),
    ],
)
def test_a_file_that_is_no_table_of_prices(text, problem, tmp_path):
    (tmp_path / "mine.toml").write_text(f"[my-model]\n{text}")
    with pytest.raises(UsageError, match=problem):
        load_prices("mine.toml", tmp_path)
    with pytest.raises(UsageError, match=r"gone\.toml can't be read"):
        load_prices("gone.toml", tmp_path)
