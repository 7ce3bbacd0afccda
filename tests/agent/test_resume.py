"""A run taken up again: on the same machine, and on another one. What kill -9 does is in tests/cli/test_cli_kill.py."""

import json

import pytest

from autoresearch.agent.loop import search
from autoresearch.core.errors import AutoresearchError


def events(lab) -> list[dict]:
    return [json.loads(line) for line in (lab.run.folder / "journal.jsonl").read_text().splitlines()]


def test_resumed_on_the_same_machine(lab_of, machine, listener, listed):
    proposer = listed(a=1.0, b=1.5, c=0.5)
    search(lab_of(machine, max_experiments=1), proposer, listener)
    lab = lab_of(machine, max_experiments=3)
    search(lab, proposer, listener)
    assert [record.verdict for record in lab.history.experiments.values()] == ["keep", "keep", "discard", "keep"]
    assert len(machine.measured) == 4
    assert "anchored" not in {event["event"] for event in events(lab)}


def test_another_machine_measures_the_incumbent_first(lab_of, machine, listener, listed):
    """There every score is half as large: held against the old value, everything would be kept."""
    proposer = listed(a=1.0, b=1.2, c=0.9)
    search(lab_of(machine, "a", max_experiments=1), proposer, listener)
    machine.score = lambda rate: rate / 2
    lab = lab_of(machine, "b")
    search(lab, proposer, listener)
    kinds = [event["event"] for event in events(lab)]
    again = kinds[kinds.index("resumed") :]
    assert again[:4] == ["resumed", "started", "measured", "anchored"]
    assert [record.verdict for record in lab.history.experiments.values()] == ["keep", "keep", "discard", "keep"]
    assert [key for key, _ in machine.measured] == ["a", "a", "b", "b", "b"]
    anchored = next(event for event in events(lab) if event["event"] == "anchored")
    assert (anchored["n"], anchored["value"], anchored["value_n"]) == (1, 0.5, 1)


def test_back_on_the_first_machine_the_score_that_picked_it_does_not_count(lab_of, machine, listener, listed):
    proposer = listed(a=1.0, b=1.5)
    search(lab_of(machine, "a", max_experiments=1), proposer, listener)
    machine.score = lambda rate: rate / 2
    search(lab_of(machine, "b", max_experiments=1), proposer, listener)
    machine.score = lambda rate: rate
    lab = lab_of(machine, "a")
    search(lab, proposer, listener)
    assert (lab.history.experiments[1].value, lab.history.experiments[1].value_n) == (1.0, 1)
    assert lab.history.experiments[2].verdict == "discard"
    assert [key for key, _ in machine.measured] == ["a", "a", "b", "a", "a"], "a fresh one, then the next candidate"
    machine.score = lambda rate: rate / 2
    search(lab_of(machine, "b"), proposer, listener)
    assert len(machine.measured) == 5, "what was freshly measured on the other machine is not measured again"


@pytest.mark.parametrize("lines", [1, 2, 3, 4])
def test_interrupted_between_the_machines(lines, lab_of, machine, listener, listed):
    """Killed after `resumed`, `started`, `measured` or `anchored` of the incumbent's new measurement."""
    proposer = listed(a=1.0, b=1.2)
    search(lab_of(machine, "a", max_experiments=1), proposer, listener)
    machine.score = lambda rate: rate / 2
    lab = lab_of(machine, "b", max_experiments=1)
    before = len(events(lab))
    search(lab, proposer, listener)
    journal = lab.run.folder / "journal.jsonl"
    kept = journal.read_text().splitlines(keepends=True)[: before + lines]
    journal.write_text("".join(kept))
    machine.measured.clear()
    lab = lab_of(machine, "b")
    search(lab, proposer, listener)
    assert lab.history.experiments[1].value == 0.5
    assert lab.history.experiments[2].verdict == "discard"
    assert len(machine.measured) == (2 if lines < 3 else 1)
    assert [event["event"] for event in events(lab)].count("anchored") == 1


def test_a_pending_experiment_waits_for_the_incumbents_new_value(lab_of, machine, listener, listed):
    """Interrupted in the middle of an experiment, and resumed on a machine where scores are half as large."""
    proposer = listed(a=1.0, b=1.2)

    def fail(rate: float) -> float:
        if rate == 1.2:
            raise KeyboardInterrupt
        return rate

    machine.score = fail
    with pytest.raises(KeyboardInterrupt):
        search(lab_of(machine, "a"), proposer, listener)
    machine.score = lambda rate: rate / 2
    lab = lab_of(machine, "b")
    search(lab, proposer, listener)
    assert lab.history.experiments[2].verdict == "discard"
    assert lab.history.experiments[2].val_bpb == 0.6


def test_an_incumbent_that_fails_on_the_other_machine(lab_of, machine, listener, listed):
    search(lab_of(machine, "a"), listed(a=1.0), listener)
    machine.status = "out_of_memory"
    with pytest.raises(AutoresearchError, match="the incumbent can't be measured here: out_of_memory") as caught:
        search(lab_of(machine, "b"), listed(a=1.0), listener)
    assert "--tag" in caught.value.hint


def test_train_py_was_changed_before_there_was_a_baseline(lab_of, machine, listener, listed, place):
    lab = lab_of(machine)
    search(lab, listed(), listener)
    journal = lab.run.folder / "journal.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:2]))
    place.train_path.write_text(place.train_path.read_text().replace("2.0", "2.5"))
    with pytest.raises(AutoresearchError, match="was changed before run 'tag' had its baseline"):
        search(lab_of(machine), listed(), listener)
