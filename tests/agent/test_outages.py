"""Rounds that give no proposal: journaled, waited out, and no experiment is used up; after too many a clean stop."""

import time
from dataclasses import replace

import pytest

from autoresearch.agent import loop, stop
from autoresearch.agent.ledger import RoundCapReached
from autoresearch.agent.loop import PAID_REFUSALS_IN_A_ROW, search
from autoresearch.agent.proposer import Proposal, RoundFailed
from autoresearch.core.agent_settings import Outages
from autoresearch.core.errors import CostCapReached
from autoresearch.core.history import History
from autoresearch.core.journal import Journal

SOURCE = "RATE = {}\n\n\ndef train(experiment):\n    return RATE\n"


class Planned:
    """Fails or proposes as planned, then has nothing left; a number is a rate."""

    name = "planned"
    paid = True

    def __init__(self, *plan) -> None:
        self._plan = [*plan]
        self.calls = 0
        self.contexts = []

    def propose(self, context):
        self.calls += 1
        self.contexts.append(context)
        step = self._plan.pop(0) if self._plan else None
        if isinstance(step, BaseException):
            raise step
        return Proposal(SOURCE.format(step), f"rate {step}") if isinstance(step, float) else step


OVERLOADED = RoundFailed("overloaded", "529 as planned,\nfive tries")


@pytest.fixture
def patient(lab_of, machine, listener):
    """A lab whose pauses are short: `patient(rounds=3)`."""

    def build(until=(), **outages):
        lab = lab_of(machine, view=listener, **dict(until))
        given = Outages(**{"pause_seconds": 0.001, "max_seconds": 0.002, **outages})
        lab.run = replace(lab.run, settings=replace(lab.run.settings, outages=given))
        return lab

    return build


def failed(lab) -> list[tuple]:
    events = Journal(lab.run.folder / "journal.jsonl").read()
    return [(e["n"], e["kind"], e["reason"], e["proposer"]) for e in events if e["event"] == "failed"]


def test_a_failed_round_uses_up_no_experiment(patient, listener):
    lab = patient()
    ending = search(lab, Planned(OVERLOADED, OVERLOADED, 1.0, RoundCapReached("0.2 dollars"), 0.5), listener)
    assert ending == ("no proposals are left (planned)", 0, "")
    assert [*lab.history.experiments] == [0, 1, 2]
    assert failed(lab) == [
        (1, "overloaded", "529 as planned, five tries", "planned"),
        (1, "overloaded", "529 as planned, five tries", "planned"),
        (2, "cap", "0.2 dollars", "planned"),
    ]
    said = [note for note in listener.notes if "no proposal" in note]
    assert "overloaded: 529 as planned, five tries; trying again in 0 s (failed round 1 of 5)" in said[0]
    assert "failed round 2 of 5" in said[1]
    assert "failed round 1 of 5" in said[2], "an experiment between them begins the count anew"


def test_too_many_failed_rounds_in_a_row_stop_the_search(patient, listener):
    lab = patient(rounds=3)
    proposer = Planned(1.0, *[OVERLOADED] * 9)
    reason, code, hint = search(lab, proposer, listener)
    assert (reason, code) == ("3 rounds in a row gave no proposal: overloaded: 529 as planned, five tries", 1)
    assert "run the same command again" in hint
    assert (proposer.calls, len(failed(lab))) == (4, 3)
    assert lab.history.stop_reason == reason


def test_a_search_that_is_resumed_has_all_its_tries_again(patient, listener):
    search(patient(rounds=2), Planned(*[OVERLOADED] * 9), listener)
    lab = patient(rounds=2)
    proposer = Planned(OVERLOADED, 1.0)
    assert search(lab, proposer, listener).exit_code == 0
    assert lab.history.experiments[1].verdict == "keep"


def test_a_kill_does_not_reset_the_breaker(patient, listener):
    """So that whatever restarts a search doesn't hammer a server that is down."""
    lab = patient(rounds=3)
    search(lab, Planned(*[OVERLOADED] * 9), listener)
    path = lab.run.folder / "journal.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert '"stopped"' in lines[-1]
    path.write_text("".join(lines[:-2]))  # killed in the third round, before its line
    proposer = Planned(*[OVERLOADED] * 9)
    assert search(patient(rounds=3), proposer, listener).exit_code == 1
    assert proposer.calls == 1


def pauses(monkeypatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(stop.Stops, "pause", lambda self, seconds: slept.append(seconds))
    return slept


def test_pauses_double_with_jitter_up_to_a_limit(patient, listener, monkeypatch):
    slept = pauses(monkeypatch)
    lab = patient(rounds=8, pause_seconds=10.0, max_seconds=100.0)
    search(lab, Planned(*[OVERLOADED] * 8), listener)
    assert len(slept) == 7, "none after the last"
    for seconds, most in zip(slept, [10, 20, 40, 80, 100, 100, 100], strict=True):
        assert 0.75 * most <= seconds <= most
    assert len({seconds / most for seconds, most in zip(slept, [10, 20, 40, 80, 100, 100, 100], strict=True)}) > 1


def test_patience_without_end(patient, listener, monkeypatch):
    """The doubling of more than a thousand pauses is no number any more."""
    slept = pauses(monkeypatch)
    search(patient(rounds=1100, pause_seconds=0.01, max_seconds=0.02), Planned(*[OVERLOADED] * 1100), listener)
    assert len(slept) == 1099 and max(slept) <= 0.02


def test_a_pause_heeds_stop_conditions(patient, listener, monkeypatch):
    monkeypatch.setattr(stop, "LOOK_SECONDS", 0.01)
    lab = patient(until={"max_hours": 0.1 / 3600}, pause_seconds=60.0, max_seconds=60.0)
    began = time.monotonic()
    ending = search(lab, Planned(OVERLOADED), listener)
    assert ending.reason.endswith("(--max-hours)")
    assert time.monotonic() - began < 30


def test_a_pause_is_interrupted_by_ctrl_c(patient, listener, monkeypatch):
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stop.time, "sleep", interrupt)
    lab = patient()
    with pytest.raises(KeyboardInterrupt):
        search(lab, Planned(OVERLOADED), listener)
    assert lab.history.stop_reason == "interrupted"


def test_a_cap_ends_the_search_and_it_can_be_resumed(patient, listener):
    lab = patient()
    reason, code, hint = search(lab, Planned(1.0, CostCapReached("0.01 dollars are left (--max-cost)")), listener)
    assert (reason, code) == ("0.01 dollars are left (--max-cost)", 3)
    assert "raise the cap" in hint
    assert lab.history.stop_reason == reason
    lab = patient()
    search(lab, Planned(0.5), listener)
    assert [*lab.history.experiments] == [0, 1, 2]


def test_a_paid_proposer_that_repeats_itself_is_given_up_soon(patient, listener):
    """A refused proposal costs as much as a good one; five in a row are a failed round, and rounds add up."""
    lab = patient(rounds=2)
    same = Proposal(SOURCE.format(2.0), "the same again")
    proposer = Planned(*[same] * 99)
    reason, code, _ = search(lab, proposer, listener)
    assert code == 1
    assert "refused: 5 proposals in a row; the last: a duplicate of experiment 0" in reason
    assert proposer.calls == 2 * PAID_REFUSALS_IN_A_ROW
    assert "refused before any training" in proposer.contexts[1].guidance
    assert "a duplicate of experiment 0" in proposer.contexts[1].guidance
    assert proposer.contexts[0].guidance == ""


def test_an_experiment_between_them_begins_the_refusals_anew(patient, listener):
    same = Proposal(SOURCE.format(2.0), "the same again")
    lab = patient()
    search(lab, Planned(*[same] * 4, 1.0, *[same] * 4, 0.5), listener)
    assert failed(lab) == []
    assert [*lab.history.experiments] == [0, 1, 2]


@pytest.mark.parametrize("planted", ["uses up a number", "not journaled", "never stops"])
def test_the_breaker_is_needed(planted, patient, listener, monkeypatch):
    """Each property above fails where its part of the loop is taken out."""

    def forgetful(self, kind, reason, proposer=""):
        return None

    def endless(self, event):
        self.failed_rounds = 1

    def wasteful(self, kind, reason, proposer=""):
        self._lab.finish(self._lab.record(Proposal("broken(", "no proposal"), "planned"))

    if planted == "never stops":
        monkeypatch.setattr(History, "_failed_round", endless)
        with pytest.raises(AssertionError):
            test_too_many_failed_rounds_in_a_row_stop_the_search(patient, listener)
        return
    monkeypatch.setattr(loop._Search, "_failed", wasteful if planted == "uses up a number" else forgetful)
    with pytest.raises(AssertionError):
        test_a_failed_round_uses_up_no_experiment(patient, listener)
