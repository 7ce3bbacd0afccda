"""Mistakes of a model, over HTTP: each is given back or fails the round, is paid for, and spends no experiment."""

import math
import subprocess
import sys

import pytest

from autoresearch.agent.claude import Claude
from autoresearch.agent.ledger import RoundCapReached
from autoresearch.agent.prices import load_prices
from autoresearch.agent.proposer import Context, RoundFailed, Trial
from autoresearch.core import agent_settings
from autoresearch.core.agent_settings import Outages

SOURCE = "RATE = 0.3\nDEPTH = 4\n\n\ndef train(experiment):\n    return RATE, RATE\n"
QUICK = Outages(retries=3, base_seconds=0.0, max_seconds=1.0)
PRICES = load_prices()


def context_of(**more):
    baseline = Trial(0, "keep", "", 2.0, "baseline", "other", 0, {}, "c0")
    facts = {"program": "# Goal", "task": {}, "device": {}, "spread": 0.01, "origins": frozenset(), "seed": 1}
    return Context(incumbent=baseline, incumbent_source=SOURCE, history=(baseline,), **{**facts, **more})


@pytest.fixture
def claude(purse):
    """Build the agent: (Claude, Purse)."""

    def build(outages=QUICK, max_cost=0.0, call_usd=0.0, **settings):
        opened = purse(max_cost, call_usd=call_usd)
        settings = agent_settings.Claude(**{"timeout_seconds": 20.0, **settings})
        return Claude(settings, opened.ledger, outages, PRICES), opened

    return build


def cost(usage):
    """At the price table, dollars."""
    price = PRICES.of("claude-sonnet-5-5").rates
    short = usage["cache_creation"]["ephemeral_5m_input_tokens"]
    hour = usage["cache_creation"]["ephemeral_1h_input_tokens"]
    parts = (
        usage["input_tokens"] * price.input,
        usage["output_tokens"] * price.output,
        short * price.cache_write,
        hour * price.cache_write_hour,
        usage["cache_read_input_tokens"] * price.cache_read,
    )
    return math.fsum(parts) / 1e6


# What a model may do wrong


def right(api):
    """An edit and a submission."""
    return [api.edit("RATE = 0.3", "RATE = 0.5"), api.submit()]


@pytest.mark.parametrize(
    ("wrong", "given_back"),
    [
        (lambda a: a.answer(), "the answer was empty"),
        (lambda a: a.answer(a.text("  ")), "the answer was empty"),
        (lambda a: a.answer(a.thinking("hm")), "the answer was empty"),
        (lambda a: a.answer(a.text("I would raise the rate.")), "the answer was words without a tool call"),
        (lambda a: a.answer(a.text("I'd"), stop="stop_sequence"), "the answer was words without a tool call"),
        (lambda a: a.answer(a.edit("RATE", "R")), "old_str occurs 3 times, beginning in the lines 1, 6, 6"),
        (lambda a: a.answer(a.edit("LEARNING = 1", "R")), "old_str does not occur in train.py; nothing was changed."),
        (lambda a: a.answer(a.edit("DEPTH = 4", "DEPTH = (4"), a.submit()), "train.py is not valid Python: line 2"),
        (lambda a: a.answer(a.edit("x", "y", path="prepare.py")), "str_replace: path must be one of train.py"),
        (lambda a: a.answer(a.submit()), "train.py is unchanged"),
        (
            lambda a: a.answer(a.edit("RATE = 0.3", "RATE ="), stop="max_tokens", usage=USAGE),
            "the answer was cut off at 77 tokens",
        ),
    ],
)
def test_what_is_wrong_is_given_back_once_and_may_be_put_right(api, serve, claude, wrong, given_back):
    mend = [api.edit("DEPTH = (4", "DEPTH = 4")] if "syntax" in given_back or "valid" in given_back else []
    server = serve(wrong(api), api.answer(*mend, *right(api)))
    made, opened = claude()
    proposal = made.propose(context_of())
    assert proposal.source == SOURCE.replace("RATE = 0.3", "RATE = 0.5")
    (told,) = proposal.facts["given_back"]
    assert told.startswith(given_back)
    assert proposal.facts["rounds"] == len(opened.outcomes) == 2
    assert server.refused == [], "what is sent back is what the API takes"


USAGE = {"input_tokens": 100, "output_tokens": 77}


@pytest.mark.parametrize(
    ("wrong", "kind", "reason", "answers"),
    [
        (lambda a: a.answer(), "empty", "the answer was empty", 2),
        (lambda a: a.answer(a.text("Let me think.")), "no edit", "words without a tool call", 2),
        (lambda a: a.answer(a.edit("RATE", "R"), stop="max_tokens"), "max_tokens", "the answer was cut off", 2),
        (lambda a: a.answer(a.edit("RATE", "R")), "no edit", "4 edits or submissions failed, the last: old_str", 4),
        (lambda a: a.answer(a.submit()), "no edit", "4 edits or submissions failed, the last: train.py is unch", 4),
        (lambda a: a.answer(a.use("bash", command="ls")), "no edit", "6 answers, and train.py was never edited", 6),
        (lambda a: a.answer(a.text(""), stop="pause_turn"), "empty", "the answer was empty", 2),
        (
            lambda a: a.answer(
                stop="refusal", stop_details={"type": "refusal", "category": "frontier_llm", "explanation": "no"}
            ),
            "refusal",
            "the model declined to answer frontier_llm: no",
            1,
        ),
        (lambda a: a.answer(a.text("I can't"), stop="refusal"), "refusal", "the model declined to answer", 1),
        (lambda a: a.answer(stop="model_context_window_exceeded"), "context window", "longer than the model can", 1),
        (lambda a: a.answer(*right(a), stop="a_new_one"), "unknown stop", "isn't known: a_new_one", 1),
    ],
)
def test_a_round_that_comes_to_nothing_is_a_failed_round(api, serve, claude, wrong, kind, reason, answers):
    server = serve([lambda request: wrong(api)])
    made, opened = claude(tool_rounds=6)
    with pytest.raises(RoundFailed) as raised:
        made.propose(context_of())
    assert (raised.value.kind, reason in raised.value.reason) == (kind, True), raised.value.reason
    assert len(opened.outcomes) == answers, "each answer is charged"
    assert len(server.requests) == answers
    assert server.refused == []
    assert math.fsum(opened.charged) == pytest.approx(math.fsum(map(cost, server.usages)))


def test_without_repairs_the_first_fault_fails_the_round(api, serve, claude):
    serve([lambda request: api.answer(api.text("Let me think."))])
    made, opened = claude(repairs=0)
    with pytest.raises(RoundFailed):
        made.propose(context_of())
    assert len(opened.outcomes) == 1


def test_an_edited_file_that_is_never_submitted_is_said(api, serve, claude):
    serve(api.answer(right(api)[0]), [lambda request: api.answer(api.use("view"))])
    made, _ = claude(tool_rounds=3)
    with pytest.raises(RoundFailed, match=r"3 answers, and train\.py was edited and never submitted"):
        made.propose(context_of())


def test_a_cut_off_answer_is_never_carried_out(api, serve, claude):
    """Its last edit may be half of one; here it would even be taken."""
    serve(api.answer(*right(api), stop="max_tokens"), api.answer(api.edit("DEPTH = 4", "DEPTH = 5"), api.submit()))
    made, _ = claude()
    assert made.propose(context_of()).source == SOURCE.replace("DEPTH = 4", "DEPTH = 5")


def test_a_paused_answer_is_sent_back_to_be_gone_on_with(api, serve, claude):
    said = api.answer(api.text("a long thought"), stop="pause_turn")
    server = serve(said, api.answer(*right(api)))
    made, _ = claude()
    made.propose(context_of())
    assert server.requests[1]["messages"][-1] == {"role": "assistant", "content": said["content"]}
    assert server.refused == []


def test_an_unknown_tool_is_answered_with_what_there_is(api, serve, claude):
    server = serve(api.answer(api.use("bash", command="ls")), api.answer(*right(api)))
    made, _ = claude()
    proposal = made.propose(context_of())
    (result,) = server.requests[1]["messages"][-1]["content"]
    assert result["is_error"]
    assert "there is no tool 'bash'" in result["content"]
    assert "given_back" not in proposal.facts


def test_an_overload_in_the_middle_of_a_conversation_loses_nothing_of_it(api, serve, claude):
    first = right(api)[0]
    server = serve(api.answer(first), api.error(529), api.DROP, api.answer(api.submit()))
    made, opened = claude()
    assert made.propose(context_of()).source == SOURCE.replace("RATE = 0.3", "RATE = 0.5")
    assert [outcome.split(":")[0] for outcome in opened.outcomes] == [
        "tool_use",
        "overloaded",
        "connection",
        "tool_use",
    ]
    assert server.requests[1] == server.requests[2] == server.requests[3]


# The cap of a proposal, and the SDK


def test_a_proposal_that_reaches_its_own_cap_ends_as_a_round(api, serve, claude):
    usage = {"input_tokens": 1_000, "output_tokens": 3_000}
    serve([lambda request: api.answer(api.use("view"), usage=usage)])
    made, opened = claude(call_usd=0.12)
    with pytest.raises(RoundCapReached):
        made.propose(context_of())
    assert 0 < math.fsum(opened.charged) <= 0.12


def test_the_sdk_loads_with_the_first_request_only():
    code = "import sys, autoresearch.agent.claude, autoresearch.agent.agents; print('anthropic' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "False"
