"""Seed-only edits are refused before any training, by name."""

import pytest

from autoresearch.agent.proposer import Proposal
from autoresearch.core import candidate

SOURCE = "RATE = 2.0\n\n\ndef train(experiment):\n    return RATE, experiment.seed{shift}\n"


@pytest.fixture
def lab(place, machine, lab_of):
    place.train_path.write_text(SOURCE.format(shift=""))
    lab = lab_of(machine)
    lab.begin()
    return lab


@pytest.mark.parametrize("shift", [" + 1", " * 31 + 7", " ^ 0xFF"])
def test_a_seed_only_edit_is_refused_by_name(lab, shift):
    assert lab.problem(Proposal(SOURCE.format(shift=shift), "luck")) == "a seed-only edit of experiment 0"


@pytest.mark.parametrize(
    "statement",
    ["torch.manual_seed(experiment.seed + 1)", "mx.random.seed(3 * experiment.seed)", "torch.cuda.manual_seed_all(7)"],
)
def test_a_statement_that_only_seeds_a_framework_is_one_too(lab, statement):
    seeded = SOURCE.format(shift="").replace("    return", f"    {statement}\n    return")
    assert lab.problem(Proposal(seeded, "luck")) == "a seed-only edit of experiment 0"
    inside = seeded.replace(statement, f"if RATE:\n        {statement}")
    assert lab.problem(Proposal(inside, "another program")) == ""


def test_a_call_of_that_name_with_anything_else_is_another_program(lab):
    other = SOURCE.format(shift="").replace("    return", "    model.seed(experiment.vocab_size)\n    return")
    assert lab.problem(Proposal(other, "not a seed")) == ""


def test_another_formatting_is_a_duplicate_and_another_value_is_neither(lab):
    same = SOURCE.format(shift="") + "\n# a note\n"
    assert lab.problem(Proposal(same, "note")) == "a duplicate of experiment 0"
    assert lab.problem(Proposal(same.replace("2.0", "1.0"), "half")) == ""


def test_without_the_gate_it_would_be_measured(lab, monkeypatch):
    monkeypatch.setattr(candidate, "without_seeds", lambda tree: tree)
    assert lab.problem(Proposal(SOURCE.format(shift=" + 1"), "luck")) == ""
