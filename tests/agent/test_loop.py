"""The loop with invented scores: what is proposed, refused, kept and recorded."""

import pytest

from autoresearch.agent.loop import REFUSALS_IN_A_ROW, search
from autoresearch.agent.proposer import Proposal
from autoresearch.core.errors import AutoresearchError, DataError


def verdicts(lab) -> dict[int, str]:
    return {n: record.verdict for n, record in lab.history.experiments.items()}


def test_the_branch_follows_what_is_kept(lab_of, machine, listener, listed, place):
    lab = lab_of(machine, view=listener)
    reason, code, _ = search(lab, listed(a=1.0, b=1.5, c=0.5), listener)
    assert (reason, code) == ("no proposals are left (listed)", 0)
    assert verdicts(lab) == {0: "keep", 1: "keep", 2: "discard", 3: "keep"}
    commits = [record.commit for record in lab.history.experiments.values()]
    branch = place._git("rev-parse", "autoresearch/tag")
    assert branch == commits[3]
    assert place._git("rev-parse", f"{branch}^") == commits[1], "a candidate's parent is the incumbent"
    assert [outcome.verdict for outcome in listener.outcomes] == ["baseline", "keep", "discard", "keep"]
    assert listener.outcomes[2].change == pytest.approx(1.5 - lab.history.experiments[1].value)
    assert lab.history.stop_reason == reason


def test_each_seed_is_fresh(lab_of, machine, listener, listed):
    search(lab_of(machine, spread=0.3), listed(a=1.5, b=1.45), listener)
    seeds = [seed for _, seed in machine.measured]
    assert len(set(seeds)) == len(seeds) == 4, "a baseline, a candidate with a retest, a clear discard"


def test_a_proposer_is_told_what_was_tried(lab_of, machine, listener, listed):
    proposer = listed(a=1.0, b=3.0)
    search(lab_of(machine), proposer, listener)
    last = proposer.contexts[-1]
    assert [(trial.number, trial.verdict) for trial in last.history] == [(0, "keep"), (1, "keep"), (2, "discard")]
    assert last.incumbent.number == 1
    assert "RATE = 1.0" in last.incumbent_source
    assert last.origins == {"a", "b"}
    assert len({context.seed for context in proposer.contexts}) == 3
    assert "test_bpb" not in repr(last)


def test_duplicates_and_unusable_proposals_are_refused(lab_of, machine, listener, listed):
    same = Proposal("# the same\nRATE = 1.0\ndef train(experiment):\n    return RATE\n", "same", origin="b")
    broken = Proposal("", "broken", origin="c", problem="does not apply")
    lab = lab_of(machine)
    search(lab, listed(a=1.0, b=same, c=broken, d=0.9), listener)
    assert [(r.origin, r.reason) for r in lab.history.refusals] == [
        ("b", "a duplicate of experiment 1"),
        ("c", "does not apply"),
    ]
    assert verdicts(lab) == {0: "keep", 1: "keep", 2: "keep"}


def test_a_proposer_without_anything_new_ends_the_search(lab_of, machine, listener):
    class Stuck:
        name = "stuck"
        calls = 0

        def propose(self, context):
            self.calls += 1
            return Proposal(context.incumbent_source, "the same again")

    stuck = Stuck()
    assert search(lab_of(machine, max_experiments=3), stuck, listener).reason == "no proposals are left (stuck)"
    assert stuck.calls == REFUSALS_IN_A_ROW


def test_a_failing_baseline_ends_the_search(lab_of, machine, listener, listed):
    machine.status = "crash"
    lab = lab_of(machine)
    with pytest.raises(AutoresearchError, match="the baseline failed: crash: as planned"):
        search(lab, listed(a=1.0), listener)
    assert lab.history.stop_reason.startswith("the baseline failed")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DataError("gone"), ZeroDivisionError()])
def test_every_end_is_recorded(error, lab_of, machine, listener, listed):
    lab = lab_of(machine)

    def fail(rate: float) -> float:
        if rate < 2.0:
            raise error
        return rate

    machine.score = fail
    with pytest.raises(type(error)):
        search(lab, listed(a=1.0), listener)
    said = {KeyboardInterrupt: "interrupted", DataError: "gone", ZeroDivisionError: "a defect of autoresearch"}
    assert lab.history.stop_reason == said[type(error)]


def test_a_candidate_that_the_lint_refuses_is_not_measured(lab_of, machine, listener, listed):
    lab = lab_of(machine)
    search(lab, listed(a=Proposal("import os\n", "reads files", origin="a"), b=1.0), listener)
    assert verdicts(lab) == {0: "keep", 1: "invalid", 2: "keep"}
    assert len(machine.measured) == 2
    assert lab.history.experiments[1].val_bpb is None
