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


def test_another_formatting_is_a_duplicate_and_another_value_is_neither(lab):
    same = SOURCE.format(shift="") + "\n# a note\n"
    assert lab.problem(Proposal(same, "note")) == "a duplicate of experiment 0"
    assert lab.problem(Proposal(same.replace("2.0", "1.0"), "half")) == ""


def test_without_the_gate_it_would_be_measured(lab, monkeypatch):
    monkeypatch.setattr(candidate, "without_seeds", lambda tree: tree)
    assert lab.problem(Proposal(SOURCE.format(shift=" + 1"), "luck")) == ""
