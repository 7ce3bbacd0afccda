"""Faults of the server and the network, over HTTP: each attempt has its lines in the journal and its outcome."""

import json
import math

import pytest

from autoresearch.agent import claude_client
from autoresearch.agent.claude_answer import Answer
from autoresearch.agent.claude_client import LEAST_TOKENS, ClaudeClient, tokens_bound
from autoresearch.agent.ledger import Usage
from autoresearch.agent.prices import load_prices
from autoresearch.agent.proposer import RoundFailed
from autoresearch.core.agent_settings import Outages
from autoresearch.core.errors import AutoresearchError, CostCapReached

QUICK = Outages(retries=3, base_seconds=0.0, max_seconds=1.0)
PRICES = load_prices()
ASK = ([{"type": "text", "text": "be brief"}], [], [{"role": "user", "content": "hello"}], 10_000)


@pytest.fixture
def client(purse):
    """Build a bare client whose waits are written down instead of waited: (ClaudeClient, Purse, waits)."""

    def build(outages=QUICK, timeout=20.0, model="claude-sonnet-5-5", **caps):
        opened, waits = purse(**caps), []
        made = ClaudeClient(
            model, opened.ledger, PRICES, outages, timeout, wait=lambda s, why: waits.append(s), jitter=lambda: 0.0
        )
        return made, opened, waits

    return build


# Outages


def test_a_rate_limit_is_waited_out_for_as_long_as_the_server_asks(api, serve, client):
    server = serve(api.error(429, "slow down", retry_after="7"), api.answer(api.text("hello")))
    made, opened, waits = client(Outages(retries=2, base_seconds=2.0, max_seconds=300.0))
    assert made.ask(*ASK).content == [{"type": "text", "text": "hello"}]
    assert waits == [7.0]
    assert opened.outcomes == ["rate limit: 429 slow down", "end_turn"]
    assert opened.charged[0] == 0.0, "an error status is not billed"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("header", "wait"),
    [("0.5", 0.5), ("9999", 60.0), ("inf", 60.0), ("nan", 2.0), ("-4", 2.0), ("soon", 2.0), ("", 2.0)],
)
def test_a_retry_after_is_honoured_up_to_the_longest_wait(api, serve, client, header, wait):
    serve(api.error(429, retry_after=header), api.answer(api.text("hello")))
    made, _, waits = client(Outages(retries=1, base_seconds=2.0, max_seconds=60.0))
    made.ask(*ASK)
    assert waits == [wait]


def test_a_retry_after_may_be_a_date(api, serve, client):
    serve(api.error(503, retry_after="Wed, 21 Oct 2115 07:28:00 GMT"), api.answer(api.text("hello")))
    made, _, waits = client(Outages(retries=1, base_seconds=2.0, max_seconds=60.0))
    made.ask(*ASK)
    assert waits == [60.0]


@pytest.mark.parametrize("where", ["page", "stop_reason", "model", "stop_details"])
def test_a_key_that_a_server_repeats_is_shown_nowhere(api, serve, client, monkeypatch, where):
    key = "sk-ant-SECRET-" + "7" * 90
    said = {"stop_details": {"explanation": key}} if where == "stop_details" else {where: key}
    page = api.Fault(200, f"<html>{'x' * 60} Bearer {key}</html>".encode())
    serve(page if where == "page" else api.answer(**{"stop": key} if where == "stop_reason" else said))
    monkeypatch.setenv("ANTHROPIC_API_KEY", key)
    made, opened, _ = client(Outages(retries=0))
    try:
        told = repr(made.ask(*ASK))
    except RoundFailed as failed:
        told = failed.reason
    assert "SECRET" not in told + " ".join(opened.outcomes)


def test_overloaded_three_times_then_fine(api, serve, client):
    serve(*[api.error(529, "overloaded")] * 3, api.answer(api.text("hello")))
    made, opened, waits = client(Outages(retries=3, base_seconds=2.0, max_seconds=300.0))
    made.ask(*ASK)
    assert waits == [2.0, 4.0, 8.0], "doubled each time"
    assert opened.outcomes == ["overloaded: 529 overloaded"] * 3 + ["end_turn"]
    assert opened.charged[:3] == [0.0] * 3


def test_jitter_lengthens_a_wait_and_never_shortens_it(api, serve, purse):
    serve(api.error(529), api.error(429, retry_after="8"), api.answer(api.text("hello")))
    waits = []
    outages = Outages(3, 2.0, 300.0)
    made = ClaudeClient(
        "claude-sonnet-5-5",
        purse().ledger,
        PRICES,
        outages,
        20.0,
        wait=lambda s, why: waits.append(s),
        jitter=lambda: 1.0,
    )
    made.ask(*ASK)
    assert waits == [2.5, 10.0]


@pytest.mark.parametrize(
    ("fault", "kind", "outcome", "billed"),
    [
        (lambda api: api.error(500, "oops"), "server error", "server error: 500 oops", False),
        (lambda api: api.error(529), "overloaded", "overloaded: 529 as scripted", False),
        (lambda api: api.error(429), "rate limit", "rate limit: 429 as scripted", False),
        (lambda api: api.error(504), "server error", "server error: 504 as scripted; perhaps billed", True),
        (lambda api: api.DROP, "connection", "connection: ", True),
        (lambda api: api.HANG, "timeout", "timeout: no answer within 0.3 s; perhaps billed", True),
        (lambda api: api.TRICKLE, "timeout", "timeout: no answer within 0.3 s; perhaps billed", True),
        (lambda api: api.GARBAGE, "malformed", "malformed: the answer is not JSON", True),
        (lambda api: api.Fault(200, b"[" * 200_000), "malformed", "malformed: the answer is not JSON", True),
        (lambda api: api.answer(api.text("half \ud83d")), "malformed", "malformed: the answer is not JSON", True),
        (lambda api: api.answer(api.use("x", y=math.inf)), "malformed", "malformed: the answer is not JSON", True),
        (lambda api: api.Fault(200, b'{"content": [], "x": 1e999}'), "malformed", "the answer is not JSON", True),
        (lambda api: api.answer(usage={"input_tokens": 10**400, "output_tokens": 1}), "malformed", "tokens 1000", True),
        (lambda api: api.Fault(200, {"content": "words"}), "malformed", "malformed: the answer is no message", True),
        (lambda api: api.Fault(200, []), "malformed", "malformed: the answer is no message", True),
        (lambda api: api.answer(api.text("hello"), usage={}), "malformed", "doesn't say how many tokens", True),
        (lambda api: api.answer(usage={"input_tokens": -1, "output_tokens": 1}), "malformed", "input_tokens -1", True),
        (lambda api: api.answer({"type": "tool_use", "input": {}}), "malformed", "without an id or a name", True),
    ],
)  # fmt: skip
def test_an_outage_that_lasts_fails_the_round_and_each_attempt_is_in_the_journal(
    api, serve, client, fault, kind, outcome, billed
):
    server = serve([fault(api)])
    made, opened, waits = client(Outages(retries=1, base_seconds=0.0, max_seconds=0.0), timeout=0.3)
    with pytest.raises(RoundFailed) as raised:
        made.ask(*ASK)
    assert raised.value.kind == kind
    assert "2 tries" in raised.value.reason
    assert len(server.requests) == len(opened.outcomes) == 2
    assert waits == [0.0]
    assert all(outcome in told for told in opened.outcomes), opened.outcomes
    worst = [event["worst_usd"] for event in opened.events if event["event"] == "call"]
    assert opened.charged == (worst if billed else [0.0, 0.0])
    assert worst[0] > 0


def test_a_server_that_is_not_there_costs_nothing(api, serve, client):
    server = serve()
    server.close()
    made, opened, _ = client(Outages(retries=1, base_seconds=0.0))
    with pytest.raises(RoundFailed) as raised:
        made.ask(*ASK)
    assert raised.value.kind == "connection"
    assert opened.charged == [0.0, 0.0], "nothing was sent"


def test_an_interrupted_request_is_charged_at_its_worst(api, serve, client, monkeypatch):
    serve(api.answer(api.text("hello")))
    made, opened, _ = client()

    def interrupted(body, sent):
        raise KeyboardInterrupt

    monkeypatch.setattr(claude_client, "read_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.ask(*ASK)
    assert opened.charged == [opened.events[0]["worst_usd"]]
    assert opened.outcomes == ["interrupted: KeyboardInterrupt; charged at its worst case"]


# Refused requests are no outages


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (400, "refused as it is"),
        (401, "set ANTHROPIC_API_KEY"),
        (402, "billing"),
        (403, "may not use the model 'claude-sonnet-5-5'"),
        (404, "[claude] model"),
        (413, "refused as it is"),
    ],
)
def test_a_refused_request_ends_the_search_and_says_what_to_do(api, serve, client, monkeypatch, status, hint):
    server = serve([api.error(status, "no, sk-ant-secret is not good")])
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    made, opened, waits = client()
    with pytest.raises(AutoresearchError) as raised:
        made.ask(*ASK)
    assert raised.value.exit_code == 1
    assert f"{status} no, … is not good" in raised.value.message
    assert hint in raised.value.hint
    assert (len(server.requests), waits) == (1, [])
    assert opened.charged == [0.0]
    assert server.headers[0].get("x-api-key", server.headers[0].get("authorization", "")).endswith("sk-ant-secret")
    assert "secret" not in json.dumps(opened.events)


def test_without_a_key_and_a_server_of_ones_own_no_request_is_sent(client, monkeypatch, tmp_path):
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    made, opened, _ = client()
    with pytest.raises(AutoresearchError) as raised:
        made.ask(*ASK)
    assert "set ANTHROPIC_API_KEY" in raised.value.hint
    assert opened.charged == [0.0]


def test_a_server_of_ones_own_needs_no_key(api, serve, client):
    server = serve(api.answer(api.text("hello")))
    client()[0].ask(*ASK)
    assert server.headers[0]["authorization"] == "Bearer none"


def test_an_auth_token_is_sent_as_the_sdk_does(api, serve, client, monkeypatch):
    server = serve(api.answer(api.text("hello")))
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "a-token")
    client()[0].ask(*ASK)
    assert server.headers[0]["authorization"] == "Bearer a-token"


# Caps


def test_an_answer_is_shortened_to_what_a_cap_leaves_but_not_to_nothing(api, serve, client):
    server = serve([api.answer(api.text("hello"))])
    worst = PRICES.worst_of("claude-sonnet-5-5", tokens_bound(*ASK[:3]), 7_000)
    made, opened, _ = client(max_cost=worst)
    made.ask(*ASK)
    assert server.requests[0]["max_tokens"] == 7_000
    assert opened.events[0]["worst_usd"] == pytest.approx(worst)
    made, opened, _ = client(max_cost=worst, call_usd=worst / 3)
    with pytest.raises(CostCapReached, match="call_usd"):
        made.ask(*ASK)
    assert len(server.requests) == 1
    assert opened.events == []


def test_a_cap_is_never_passed_however_long_the_answers_are(api, serve, client):
    """Each answer is as long and as dear as it may be."""

    def longest(request):
        bound = tokens_bound(request["system"], [], request["messages"])
        hour = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": bound}
        usage = {"input_tokens": 0, "output_tokens": request["max_tokens"]}
        usage |= {"cache_creation_input_tokens": bound, "cache_creation": hour}
        return api.answer(api.text("hello"), usage=usage)

    server = serve([longest])
    made, opened, _ = client(max_cost=0.5)
    with pytest.raises(CostCapReached):
        while True:
            made.ask(*ASK)
    assert 0.4 < math.fsum(opened.charged) <= 0.5
    assert [request["max_tokens"] for request in server.requests] == [10_000] * 4 + [server.requests[-1]["max_tokens"]]
    assert LEAST_TOKENS <= server.requests[-1]["max_tokens"] < 10_000


def test_lifetimes_that_are_not_told_apart_count_as_the_dearer_one(api, serve, client):
    usage = {
        "input_tokens": 10,
        "output_tokens": 20,
        "cache_creation_input_tokens": 300,
        "cache_read_input_tokens": None,
    }
    serve(api.answer(api.text("hello"), usage=usage))
    made, opened, _ = client()
    assert made.ask(*ASK).usage == (10, 20, 0, 300, 0)
    assert opened.charged == [pytest.approx((10 * 2 + 20 * 10 + 300 * 4) / 1e6)]


def test_the_bound_of_a_requests_tokens_holds_and_becomes_tight(api):
    system, tools = [api.text("é" * 1_000)], [{"name": "view", "input_schema": {}}]
    messages = [{"role": "user", "content": "hello"}]
    first = tokens_bound(system, tools, messages)
    assert first > 2_000, "a token for each byte"
    answer = Answer([api.text("x" * 900)], "end_turn", Usage(400, 225), "m", sent=1)
    longer = [*messages, {"role": "assistant", "content": answer.content}, {"role": "user", "content": "go on"}]
    assert 400 + 225 < tokens_bound(system, tools, longer, answer) < first
    unsent = [*messages, {"role": "user", "content": "y" * 5_000}]
    assert tokens_bound(system, tools, unsent, answer) > 5_000, "an answer that isn't sent back hides nothing"


def test_a_key_that_no_header_may_hold_is_never_shown(api, serve, client, monkeypatch):
    server = serve(api.answer(api.text("hello")))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret\r")
    made, opened, waits = client()
    with pytest.raises(AutoresearchError, match="the key can't be sent") as raised:
        made.ask(*ASK)
    assert (server.requests, waits, opened.charged) == ([], [], [0.0])
    assert "secret" not in json.dumps(opened.events) + str(raised.value) + raised.value.hint


def test_a_wait_has_no_number_of_tries_that_is_too_many(client):
    assert client()[0]._pause(100_000, None) == 0.0
