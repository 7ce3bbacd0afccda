"""A mix of proposers: shares, parts that fall out or fail, and no memory of its own."""

import random
from collections import Counter
from itertools import pairwise

import pytest

from autoresearch.agent.hybrid import Hybrid
from autoresearch.agent.ledger import RoundCapReached
from autoresearch.agent.loop import search
from autoresearch.agent.proposer import Context, Proposal, RoundFailed, Trial
from autoresearch.core.errors import CostCapReached, UsageError
from autoresearch.core.records import Outage, Refusal

BASELINE = Trial(0, "keep", "", 2.0, "baseline", "baseline", 0, {}, "c0")


class Part:
    """Proposes what `answer` gives, a failure included."""

    def __init__(self, name: str, answer=None, paid: bool = False) -> None:
        self.name, self.paid = name, paid
        self.answer = answer or (lambda context: Proposal(f"x = {len(context.history)}", f"{name} says"))
        self.contexts: list[Context] = []

    def propose(self, context: Context) -> Proposal | None:
        self.contexts.append(context)
        answer = self.answer(context)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Run:
    """The state of a run, as far as a mix looks at it; every proposal is a new mix's, as after a restart."""

    def __init__(self, *parts: tuple[Part, float], earlier: str = "") -> None:
        self.parts = parts
        self.trials, self.refusals, self.outages = [BASELINE], [], []
        for name in earlier:
            self._try(name)

    def _try(self, name: str) -> None:
        n = len(self.trials)
        self.trials.append(Trial(n, "discard", "", 2.1, "", "other", 0, {}, f"c{n}", proposer=name))

    def context(self, **more) -> Context:
        facts = {"refusals": tuple(self.refusals), "outages": tuple(self.outages), **more}
        return Context("", BASELINE, "", {}, {}, 0.01, tuple(self.trials), frozenset(), 1, **facts)

    def go_on(self, refused: float = 0.0, rng: random.Random | None = None) -> str:
        """One round; who proposed, "" where the round failed."""
        try:
            proposal = Hybrid(self.parts).propose(self.context())
        except RoundFailed as failure:
            self.outages.append(Outage(len(self.trials), failure.kind, failure.reason, failure.proposer))
            return ""
        assert proposal is not None
        self.outages += proposal.outages
        if rng is not None and rng.random() < refused:
            self.refusals.append(Refusal(len(self.trials), "a duplicate", "", "", proposal.proposer))
        else:
            self._try(proposal.proposer)
        return proposal.proposer


@pytest.mark.parametrize("shares", [(2, 1), (1, 1), (3, 2), (10, 1), (0.7, 0.3)])
@pytest.mark.parametrize("refused", [0.0, 0.3])
def test_each_part_has_its_share(shares, refused):
    run, rng = Run((Part("a"), shares[0]), (Part("b"), shares[1])), random.Random(0)
    turns = [run.go_on(refused, rng) for _ in range(220)]
    assert Counter(turns)["b"] == pytest.approx(220 * shares[1] / sum(shares), abs=2)
    for start in range(0, 200, 20):
        expected = 20 * shares[1] / sum(shares)
        assert abs(turns[start : start + 20].count("b") - expected) <= 1, "at all times, not only in the end"


def test_three_parts():
    run = Run((Part("a"), 3), (Part("b"), 2), (Part("c"), 1))
    assert Counter(run.go_on() for _ in range(60)) == {"a": 30, "b": 20, "c": 10}


def test_without_its_shares_the_test_of_shares_would_fail(monkeypatch):
    monkeypatch.setattr(Hybrid, "_turns", lambda mix, context: [])
    with pytest.raises(AssertionError):
        test_each_part_has_its_share((2, 1), 0.0)


def test_nobody_catches_up_with_what_was_there_before_the_mix():
    run = Run((Part("a"), 1), (Part("b"), 1), earlier="a" * 50)
    turns = [run.go_on() for _ in range(10)]
    assert turns.count("a") >= 3
    assert turns[0] == "b"


def test_a_part_that_has_nothing_left_falls_out():
    used_up = Part("a", lambda context: None)
    run = Run((used_up, 9), (Part("b"), 1))
    assert [run.go_on() for _ in range(5)] == ["b"] * 5
    assert Hybrid([(used_up, 1), (Part("b", lambda context: None), 1)]).propose(run.context()) is None


def test_the_others_go_on_while_a_part_fails_and_it_rests_longer_and_longer():
    failing = Part("claude", lambda context: RoundFailed("overloaded", "529"), paid=True)
    run = Run((Part("optimizer"), 1), (failing, 1))
    assert {run.go_on() for _ in range(100)} == {"optimizer"}
    assert {(outage.proposer, outage.kind, outage.reason) for outage in run.outages} == {
        ("claude", "overloaded", "529")
    }
    numbers = [outage.number for outage in run.outages]
    assert [b - a for a, b in pairwise(numbers)] == [1, 2, 4, 8, 16, 32, 32]
    failing.answer = lambda context: Proposal("y = 1", "back")
    turns = [run.go_on() for _ in range(80)]
    assert "".join(turn[0] for turn in turns[-10:]) in ("oc" * 5, "co" * 5), "once it answers, it is as before"


def test_where_all_fail_the_round_has_failed():
    parts = [(Part(name, lambda context: RoundFailed("timeout", "no answer")), 1) for name in ("a", "b")]
    with pytest.raises(RoundFailed) as caught:
        Hybrid(parts).propose(Run(*parts).context())
    assert (caught.value.kind, caught.value.proposer) == ("timeout", "a")
    assert caught.value.reason == "a: no answer; b: no answer"


def test_where_one_fails_and_the_others_have_nothing_left_the_run_is_not_at_its_end():
    parts = [(Part("a", lambda context: None), 1), (Part("b", lambda context: RoundFailed("timeout", "")), 1)]
    run = Run(*parts)
    assert [run.go_on() for _ in range(3)] == ["", "", ""]
    assert len(parts[1][0].contexts) == 3, "it is asked though it rests, as nobody else is left"


def test_a_cap_of_one_proposal_is_a_failure_of_that_part():
    mix = Hybrid([(Part("a", lambda context: RoundCapReached("0.01 are left")), 1), (Part("b"), 1)])
    proposal = mix.propose(Run().context())
    assert proposal.proposer == "b"
    assert proposal.outages == (Outage(1, "cap", "0.01 are left", "a"),)


def test_a_cap_of_the_run_ends_the_mix_too():
    mix = Hybrid([(Part("a", lambda context: CostCapReached("0.01 are left")), 1), (Part("b"), 1)])
    with pytest.raises(CostCapReached):
        mix.propose(Run().context())


def test_a_crash_is_mended_by_the_part_whose_it_is():
    parts = Part("a"), Part("b", paid=True)
    crash = Trial(1, "crash", "", None, "", "other", 0, {}, "c1", proposer="b")
    context = Run().context(mend=crash, mend_source="broken")
    mix = Hybrid([(part, 1) for part in parts])
    assert mix.propose(context).proposer == "b"
    parts[1].answer = lambda context: None
    assert mix.propose(context).proposer == "a"
    assert parts[1].contexts[-1].mend is crash
    assert (parts[0].contexts[-1].mend, parts[0].contexts[-1].mend_source) == (None, "")


def test_names():
    mix = Hybrid([(Part("optimizer"), 2.0), (Part("claude", paid=True), 1)])
    assert (mix.name, mix.paid) == ("optimizer@2,claude@1", True)
    assert [part.name for part in mix.parts] == ["optimizer", "claude"]
    with pytest.raises(UsageError, match="'a'"):
        Hybrid([(Part("a"), 1), (Part("a"), 2)])


def test_a_search_journals_who_proposed_and_who_failed(lab_of, machine, listener, listed):
    def fail_once(context):
        return RoundFailed("overloaded", "529") if not context.outages else Proposal(source(1.5), "mine", origin="mine")

    def source(rate):
        return f"RATE = {rate}\n\n\ndef train(experiment):\n    return RATE\n"

    lab = lab_of(machine, max_experiments=3)
    search(lab, Hybrid([(Part("claude", fail_once, paid=True), 1), (listed(a=1.9, b=1.7), 1)]), listener)
    assert [record.proposer for record in lab.history.experiments.values()][1:] == ["listed", "claude", "listed"]
    assert [outage[:] for outage in lab.history.outages] == [(1, "overloaded", "529", "claude")]
    assert lab.history.failed_rounds == 0
    assert any("claude: no proposal: overloaded: 529; another agent goes on" in note for note in listener.notes)
