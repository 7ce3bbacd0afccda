"""The rule at work in a search with invented scores: suspects, fresh measurements, withdrawals, near misses."""

import json

import pytest

from autoresearch.agent.loop import search
from autoresearch.core import decide, noise, spreads
from autoresearch.core.records import Prior
from autoresearch.core.replay import DERIVED, replay
from autoresearch.core.suspect import LASTING


def events(lab, *kinds) -> list[dict]:
    read = [json.loads(line) for line in (lab.run.folder / "journal.jsonl").read_text().splitlines()]
    return [event for event in read if event["event"] in kinds]


def told(lab) -> list[tuple]:
    """What was measured, by experiment and k."""
    return [(event["n"], event["k"]) for event in events(lab, "measured")]


def test_a_suspect_measurement_is_repeated_and_judged_on_the_repeat(lab_of, machine, listener, listed):
    machine.changes = {1: {"val_bpb": 9.0, "suspect": "the machine slept for 9 s"}}
    lab = lab_of(machine, view=listener)
    search(lab, listed(a=1.0), listener)
    assert told(lab) == [(0, 0), (1, 0), (1, 1)]
    record = lab.history.experiments[1]
    assert (record.verdict, record.val_bpb) == ("keep", 1.0), "the suspect score of 9.0 would be discarded"
    assert any("#1 once more" in note and "slept" in note for note in listener.notes)


def test_a_failure_of_the_machine_is_not_the_candidates(lab_of, machine, listener, listed):
    paused = {"status": "invalid", "val_bpb": None, "reason": "clocks differ", "suspect": "the process was paused"}
    machine.changes = {0: paused, 2: paused}
    lab = lab_of(machine)
    search(lab, listed(a=1.0), listener)
    assert {n: r.verdict for n, r in lab.history.experiments.items()} == {0: "keep", 1: "keep"}
    machine.changes = dict.fromkeys(range(4, 6), paused)
    search(lab_of(machine), listed(a=1.0, b=0.5), listener)
    last = lab_of(machine).history.experiments[2]
    assert (last.verdict, last.reason) == (
        "invalid",
        "clocks differ (suspect, also when repeated: the process was paused)",
    )


def test_a_lucky_keep_is_withdrawn_and_the_branch_goes_back(lab_of, machine, listener, listed, place):
    """Experiment 1 is as good as the baseline's 2.0 but for one lucky score; 2 is unclear against it."""
    machine.changes = {1: {"val_bpb": 1.88}}
    lab = lab_of(machine, view=listener, spread=0.03)
    search(lab, listed(a=2.01, b=1.86), listener)
    assert told(lab) == [(0, 0), (1, 0), (2, 0), (1, 1), (1, 2)], "measured freshly twice before the verdict on 2"
    assert [event["n"] for event in events(lab, "withdrawn")] == [1]
    assert lab.history.counts.kept == 1
    assert lab.history.incumbent.number == 2, "clear against the baseline, which is the incumbent again"
    assert lab.history.experiments[2].parent == 1
    assert any("#1 is withdrawn" in note and "#0 is the incumbent again" in note for note in listener.notes)
    assert place._git("rev-parse", "autoresearch/tag") == lab.history.experiments[2].commit
    assert (lab.run.folder / "results.tsv").read_text().splitlines()[2].split("\t")[3:] == ["discard", "withdrawn: a"]


def test_without_the_gate_a_suspect_score_decides(lab_of, machine, listener, listed, monkeypatch):
    monkeypatch.setattr(decide, "usable", lambda candidate: (list(candidate.scores), ""))
    machine.changes = {1: {"val_bpb": 9.0, "suspect": "the machine slept for 9 s"}}
    lab = lab_of(machine)
    search(lab, listed(a=1.0), listener)
    assert lab.history.experiments[1].verdict == "discard"


def test_without_the_gate_a_lucky_keep_stays(lab_of, machine, listener, listed, monkeypatch):
    monkeypatch.setattr(decide, "_settle", lambda incumbent, former: None)
    machine.changes = {1: {"val_bpb": 1.88}}
    lab = lab_of(machine, spread=0.03)
    search(lab, listed(a=2.01, b=1.86), listener)
    assert lab.history.experiments[1].kept


def test_between_withdrawal_and_the_next_keep_the_branch_is_at_the_former_incumbent(
    lab_of, machine, listener, listed, place
):
    machine.changes = {1: {"val_bpb": 1.88}}
    lab = lab_of(machine, spread=0.03)
    search(lab, listed(a=2.01, **{f"x{i}": 2.5 + i for i in range(8)}, last=2.6), listener)
    assert told(lab)[-4:] == [(9, 0), (1, 1), (1, 2), (10, 0)], "due after eight experiments"
    assert place._git("rev-parse", "autoresearch/tag") == lab.history.experiments[0].commit
    assert lab.history.experiments[10].parent == 0


def test_nothing_is_measured_for_the_rule_once_the_search_is_over(lab_of, machine, listener, listed):
    lab = lab_of(machine, max_experiments=9)
    search(lab, listed(a=1.0, **{f"x{i}": 2.5 + i for i in range(9)}), listener)
    assert told(lab)[-1] == (9, 0)


def test_a_proposer_is_told_of_near_misses_and_withdrawals(lab_of, machine, listener, listed):
    machine.changes = {1: {"val_bpb": 1.97}}
    proposer = listed(a=2.01, b=3.0)
    lab = lab_of(machine, spread=0.03)
    search(lab, proposer, listener)
    assert [trial.number for trial in proposer.contexts[-1].near_misses] == [1]
    assert [record.number for record in lab.history.near_misses] == [1]
    assert proposer.contexts[1].near_misses == proposer.contexts[-1].near_misses


def test_a_strict_search_confirms_every_gain(lab_of, machine, listener, listed):
    machine.changes = {4: {"val_bpb": 0.5}}
    lab = lab_of(machine, strict=True)
    search(lab, listed(a=1.0, b=1.01), listener)
    assert told(lab) == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    assert [r.verdict for r in lab.history.experiments.values()] == ["keep", "keep", "discard"]


def test_what_an_earlier_run_measured_is_the_prior_of_this_key_alone(lab_of, machine, listener, listed, place):
    spreads.add(place.run_dir("tag").parent, "a", Prior(0.4, 10))
    lab = lab_of(machine, "a", spread=0.01)
    search(lab, listed(a=1.9), listener)
    expected = ((4 * 0.01**2 + 0.4) / 14) ** 0.5
    assert events(lab, "run")[0]["prior"] == {"square": 0.4, "dof": 10}
    assert events(lab, "decided")[-1]["spread"] == pytest.approx(expected)
    spreads.add(place.run_dir("tag").parent, "a", Prior(0.4, 10))
    search(lab_of(machine, "a"), listed(a=1.9, b=3.0), listener)
    assert events(lab, "decided")[-1]["spread"] == pytest.approx(expected), "the journal alone replays"
    search(lab_of(machine, "b"), listed(a=1.9, b=3.0, c=3.1), listener)
    assert events(lab, "decided")[-1]["spread"] == pytest.approx(0.01)


FASTER = 1.5
"""Score of every candidate after the machine became faster; 2.0 before."""


@pytest.fixture
def faster(machine):
    """A machine that becomes faster for good after three measurements; none of the ideas does anything."""
    machine.score = lambda rate: FASTER if len(machine.measured) > 3 else 2.0
    machine.changes = {number: {"suspect": "the device ran twice as fast"} for number in range(3, 3 + LASTING)}
    return machine


IDLE = {f"idle{number}": 10.0 + number for number in range(8)}


def test_after_a_lasting_change_of_the_machine_the_incumbent_is_measured_first(lab_of, faster, listener, listed):
    lab = lab_of(faster, view=listener)
    search(lab, listed(**IDLE), listener)
    assert lab.history.counts.kept == 0
    assert lab.history.incumbent.number == 0
    assert (lab.history.incumbent.val_bpb, lab.history.incumbent.value) == (2.0, FASTER)
    assert "measured again" in next(note for note in listener.notes if "at another speed" in note)
    again = lab_of(faster, view=listener)
    assert again.history.experiments == lab.history.experiments
    assert again.history.conditions == lab.history.conditions == f"a since measurement {3 + LASTING}"
    journal = lab._journal.read()
    derived = [event | {"time": ""} for event in journal if event["event"] in DERIVED]
    assert [event | {"time": ""} for event in replay(journal)] == derived


def test_without_it_the_machine_is_kept_in_the_candidates_name(lab_of, faster, listener, listed, monkeypatch):
    monkeypatch.setattr("autoresearch.core.history.LASTING", 99)
    lab = lab_of(faster, view=listener)
    search(lab, listed(**IDLE), listener)
    assert lab.history.counts.kept == 1


def test_a_candidate_in_the_middle_of_that_change_is_judged_anew(lab_of, faster, listener, listed):
    faster.changes = {number: {"suspect": "fast"} for number in range(2, 2 + LASTING)}
    faster.score = lambda rate: (FASTER if len(faster.measured) > 2 else 2.0) - (rate == 13.0)
    lab = lab_of(faster, view=listener)
    search(lab, listed(**IDLE), listener)
    kept = lab.history.incumbent
    assert (kept.hypothesis, kept.value) == ("idle3", pytest.approx(FASTER - 1.0, abs=0.01))
    assert lab.history.counts.kept == 1


def test_what_was_measured_of_the_spread_outlasts_the_machines_speed(lab_of, faster, listener, listed):
    lab = lab_of(faster, view=listener)
    lab.begin()
    lab.measure(0, "again")
    lab.measure(0, "again")
    lab.settle()
    before = noise.spread_of(lab.history, lab.history.rules)
    assert before.measured == 2
    search(lab_of(faster, view=listener), listed(**IDLE), listener)
    after = noise.spread_of(lab_of(faster).history, lab.history.rules)
    assert after.measured >= 2


def test_no_candidate_gains_by_a_disturbed_baseline(lab_of, machine, listener, listed):
    machine.changes = {number: {"val_bpb": 3.0, "suspect": "busy"} for number in (0, 1)}
    machine.score = lambda rate: 2.0
    lab = lab_of(machine, view=listener)
    search(lab, listed(idle=10.0), listener)
    assert told(lab) == [(0, 0), (0, 1), (1, 0), (0, 2)], "the baseline, once more; the candidate; the baseline again"
    assert lab.history.counts.kept == 0
    assert (lab.history.baseline.value, lab.history.baseline.value_n) == (2.0, 1)
    assert decide.DOUBTFUL in listener.notes[-1]


def test_a_machine_that_stays_busy_does_not_stop_a_search(lab_of, machine, listener, listed):
    machine.changes = {number: {"val_bpb": 3.0, "suspect": "busy"} for number in (0, 1, 3, 4)}
    lab = lab_of(machine, view=listener)
    search(lab, listed(better=1.0), listener)
    assert told(lab) == [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3)]
    assert lab.history.counts.kept == 1


def test_a_disturbed_baseline_that_looks_too_good_is_measured_again_in_time(lab_of, machine, listener, listed):
    machine.changes = {number: {"val_bpb": 1.0, "suspect": "fast"} for number in (0, 1)}
    machine.score = lambda rate: rate
    lab = lab_of(machine, view=listener)
    search(lab, listed(**{f"idea{number}": 1.5 - number / 1000 for number in range(12)}), listener)
    assert lab.history.counts.kept >= 1
    assert lab.history.baseline.value == 2.0
