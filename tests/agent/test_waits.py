"""While one request waits for its server, minutes perhaps, the search can still be stopped."""

import time
from datetime import timedelta
from types import SimpleNamespace

import pytest

from autoresearch.agent import stop
from autoresearch.agent.agents import make_proposer
from autoresearch.agent.ledger import Ledger
from autoresearch.agent.loop import search
from autoresearch.agent.stop import Stops
from autoresearch.core.amounts import dollars
from autoresearch.core.task import load_settings

LATER = "250"
"""Seconds that the server asks to wait; less than `[outages] max_seconds`."""


@pytest.fixture
def night(lab_of, machine, listener, monkeypatch):
    """Search with the agents of a name for an hour, which passes in the first pause: `night("claude")`."""
    pytest.importorskip("anthropic")
    monkeypatch.setattr(stop, "time", SimpleNamespace(monotonic=time.monotonic, sleep=time.sleep))

    def run(agent, reviewer="", **conditions):
        lab = lab_of(machine, view=listener, **(conditions or {"max_hours": 1.0}))
        options = {"agent": agent, "reviewer": {"model": reviewer}, "outages": {"base_seconds": 0.01}}
        settings = load_settings("tinystories/smoke", options=options)
        ledger = Ledger(lab.log, lab.history, settings.caps, 0.0)
        stops = Stops(lab.run.settings.stop, lab.history, listener.note)
        if not conditions:
            stop.time.sleep = lambda seconds: setattr(stops, "started", stops.started - timedelta(hours=1))
        directory = lab.run.workspace.directory
        proposer, _ = make_proposer(settings, directory, ledger, None, stops=stops)
        return search(lab, proposer, listener, ledger, stops), lab

    return run


def right(api):
    return api.answer(api.edit("RATE = 2.0", "RATE = 1.0"), api.submit())


@pytest.mark.parametrize("agent", ["claude", "claude@3,random"])
def test_a_wait_that_the_server_asks_for_ends_with_the_search(agent, api, serve, night, listener):
    server = serve(api.error(429, "slow down", retry_after=LATER), right(api))
    ending, lab = night(agent)
    assert ending.reason.endswith("(--max-hours)")
    assert len(server.requests) == 1, "the other part of a mix isn't asked either"
    assert [*lab.history.experiments] == [0]
    assert lab.history.failed_rounds == 0, "nothing failed: it was stopped"
    assert not lab.history.open_calls
    (said,) = (note for note in listener.notes if "trying again" in note)
    assert said.startswith("  claude-sonnet-5-5: rate limit: 429 slow down; trying again in ")


def test_so_does_the_wait_of_a_reviewer(api, serve, night):
    server = serve(right(api), api.error(429, "slow down", retry_after=LATER))
    ending, lab = night("claude", reviewer="claude-haiku-5-5")
    assert ending.reason.endswith("(--max-hours)")
    assert [request["model"] for request in server.requests] == ["claude-sonnet-5-5", "claude-haiku-5-5"]
    assert [*lab.history.experiments] == [0], "a proposal that wasn't reviewed to the end isn't trained"


def test_ctrl_c_ends_a_wait(api, serve, night, monkeypatch):
    def interrupt(seconds):
        raise KeyboardInterrupt

    serve(api.error(429, retry_after=LATER), right(api))
    monkeypatch.setattr(stop.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        night("claude", max_hours=1.0)


def test_a_wait_that_nothing_ends_is_followed_by_the_same_request(api, serve, night, monkeypatch):
    """And the conditions are what ended those above: without a look at them the search goes on."""
    monkeypatch.setattr(Stops, "wait", lambda self, seconds, why: None)
    server = serve(api.error(429, retry_after=LATER), right(api))
    ending, _ = night("claude", max_experiments=1)
    assert ending.reason == "experiments done: 1 (--max-experiments)"
    first, again = server.requests
    assert first == again


@pytest.mark.parametrize(("fault", "told"), [("DROP", "charged; trying again in"), ("busy", "529 as scripted; trying")])
def test_an_attempt_that_may_have_been_billed_says_what_is_charged(fault, told, api, serve, night, listener):
    """Else nobody would know why the first experiment cost so much more than the others."""
    serve(api.DROP if fault == "DROP" else api.error(529), right(api))
    _, lab = night("claude", max_experiments=1)
    (said,) = (note for note in listener.notes if "trying again" in note)
    assert told in said
    assert (f"perhaps billed: {dollars(lab.history.charges[0].usd)} charged" in said) is (fault == "DROP")
