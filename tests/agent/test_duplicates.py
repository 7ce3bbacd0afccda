"""What was tried before, by the same words or by others: refused before any training, or told."""

import pytest

from autoresearch.agent.lab import Lab
from autoresearch.agent.loop import search
from autoresearch.agent.proposer import Proposal
from autoresearch.core.candidate import change_hash, normalized_hash
from autoresearch.core.constants import moved, written_out

BANNER = "# ----------\n# Hyper-parameters\n# ----------\n"


def source(batch: str, rate: float = 2.0, body: str = "RATE", comment: str = "") -> str:
    return f"{BANNER}RATE = {rate}{comment}\nBATCH = {batch}\n\n\ndef train(experiment):\n    return {body}\n"


def refused(lab: Lab) -> list[tuple[str, str]]:
    return [(refusal.origin, refusal.reason) for refusal in lab.history.refusals]


@pytest.fixture
def tried(lab_of, machine, listener, listed, place):
    """The refusals of a run whose baseline has the batch 2**14, where these sources are proposed in turn."""
    place.train_path.write_text(source("2**14"))

    def run(**sources: str) -> list[tuple[str, str]]:
        lab = lab_of(machine)
        search(lab, listed(**{name: Proposal(text, name, origin=name) for name, text in sources.items()}), listener)
        return refused(lab)

    return run


def test_the_same_values_by_other_words_are_refused(tried):
    assert tried(a=source("16384"), b=source("4 * 2**12", comment="  # search: 1.0..4.0")) == [
        (name, "its constants have the values of experiment 0, and all else is the same") for name in "ab"
    ]


def test_the_same_values_of_another_program_are_not(tried):
    assert tried(a=source("16384", body="RATE * 1"), b=source("16384", rate=1.5), c=source("16385")) == []


def test_of_the_same_type_only(tried):
    assert tried(a=source("16384.0")) == []


def test_also_those_of_a_discarded_experiment_on_another_incumbent(tried):
    found = tried(a=source("2**10", rate=3.0), b=source("2**14", rate=1.0), c=source("1024", rate=3.0))
    assert found == [("c", "its constants have the values of experiment 1, and all else is the same")]


def test_without_the_check_they_would_be_trained(tried, monkeypatch):
    monkeypatch.setattr(Lab, "_same_values", lambda lab, proposal: "")
    with pytest.raises(AssertionError):
        test_the_same_values_by_other_words_are_refused(tried)


def test_constants_that_can_not_be_read_are_left_to_the_lint(tried):
    assert tried(a="def train(experiment:\n", b=source("1e999"), c=source("16384", comment="  # search: what")) == []


def test_the_same_edit_of_another_incumbent_is_told(lab_of, machine, listener, listed):
    def program(rate: float, extra: str) -> str:
        return f"RATE = {rate}\n\n\ndef train(experiment):\n    {extra}return RATE\n"

    extra = "norm = 1\n    "
    proposer = listed(
        a=Proposal(program(2.5, extra), "with a norm", origin="a"),
        b=1.0,
        c=Proposal(program(1.0, extra).replace("norm = 1", "norm  =  1  # again"), "the norm again", origin="c"),
    )
    lab = lab_of(machine)
    machine.score = lambda rate: 3.0 if rate == 2.5 else rate
    search(lab, proposer, listener)
    changes = [record.change_hash for record in lab.history.experiments.values()]
    assert changes[0] == ""
    assert len(set(changes[1:])) == 3, "the first edit moved RATE too"
    assert [trial.change for trial in proposer.contexts[-1].history] == changes


# The parts


def test_a_change_is_the_same_wherever_it_is_made():
    one = "x = 1\ndef f():\n    return x\n"
    other = "y = 5\n\n\ndef g():\n    'doc'\n    return x\n"
    assert change_hash(one, one.replace("return x", "return x + 1")) == change_hash(
        other, other.replace("return x", "return (x+1)  # one more")
    )
    assert change_hash(one, one.replace("x = 1", "x = 2")) != change_hash(one, one.replace("x = 1", "x = 3"))
    assert change_hash(one, one + "# nothing\n") == ""
    assert change_hash(one, "def broken(:\n") != ""


def test_moved_constants():
    before = {"A": 1, "B": (1, 2), "C": "x", "D": 1.0}
    assert moved(before, {"A": 1, "B": [1, 2], "C": "x", "D": 1.0}) == {}
    assert moved(before, {"A": 2, "B": [1, 3], "D": 1, "E": True}) == {
        "A": (1, 2), "B": ((1, 2), [1, 3]), "D": (1.0, 1), "E": (None, True), "C": ("x", None),
    }  # fmt: skip


def test_written_out():
    text = BANNER + "A = 2**14  # search: 8192 | 16384\nB = (1, -2*3)\nC: str = 'é'\nD = f()\nA = 3 * 5\n"
    assert (
        written_out(text) == BANNER + 'A = 16384  # search: 8192 | 16384\nB = (1, -6)\nC: str = "é"\nD = f()\nA = 15\n'
    )
    assert normalized_hash(written_out("X = 1_000\n")) == normalized_hash("X = 1000\n")
