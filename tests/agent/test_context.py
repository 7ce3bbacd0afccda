"""What a proposer is told: plain data without secrets; crashes to mend, what was refused, what people wrote."""

import json
import os
from dataclasses import replace

import pytest

from autoresearch.agent import loop
from autoresearch.agent.context import BOLD_AFTER, crash_to_mend, guidance_of
from autoresearch.agent.instructions import KNOWLEDGE_CHARACTERS, Instructions
from autoresearch.agent.ledger import Ledger
from autoresearch.agent.loop import search
from autoresearch.agent.proposer import Context, Proposal
from autoresearch.agent.quoting import quoted
from autoresearch.core.agent_settings import Caps
from autoresearch.core.history import History
from autoresearch.core.journal import Journal

SOURCE = "RATE = {}\n\n\ndef train(experiment):\n    return RATE\n"
SECRET = "sk-ant-a-secret-that-nobody-is-told"


class Paid:
    """Proposes these rates, one after the other."""

    paid = True

    def __init__(self, *rates: float, name: str = "claude", **facts) -> None:
        self.name, self._rates, self._facts = name, [*rates], facts
        self.contexts: list[Context] = []

    def propose(self, context):
        self.contexts.append(context)
        if not self._rates:
            return None
        rate = self._rates.pop(0)
        return Proposal(SOURCE.format(rate), f"rate {rate}", facts=self._facts)


@pytest.fixture
def crashing(machine):
    """A machine on which rates above 10 fail with the status that their first digit stands for."""
    statuses = {"1": "crash", "2": "timeout", "3": "invalid", "4": "diverged", "5": "out_of_memory"}

    def measure(request, dataset, log, on_event):
        rate = float(request.source.split()[2])
        machine.status = statuses[str(rate)[0]] if rate > 10 else "ok"
        return type(machine).measure(machine, request, dataset, log, on_event)

    machine.measure = measure
    return machine


# Data, and no secrets


def assert_public(context: Context, monkeypatched: list[str]) -> None:
    told = json.dumps(context.to_json(), allow_nan=False)
    assert json.loads(told)["incumbent"]["number"] == context.incumbent.number
    for secret in monkeypatched:
        assert secret not in told


def contexts_of(lab_of, machine, listener, monkeypatch) -> tuple[list[Context], list[str]]:
    """Of a search with failures and keeps, in an environment with keys; and all that they must not hold."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "HF_TOKEN"):
        monkeypatch.setenv(name, f"{SECRET}-{name}")
    # The test split scores otherwise than val, so that its numbers are told apart.
    measure = machine.measure

    def audited(*given):
        measured = measure(*given)
        return replace(measured, audit={k: v + 0.123456 for k, v in measured.audit.items()})

    machine.measure = audited
    proposer = Paid(1.0, 11.0, 1.5, 0.5)
    lab = lab_of(machine)
    search(lab, proposer, listener)
    audit = Journal(lab.run.folder / "audit.jsonl").read()
    assert len(audit) >= 4
    numbers = [str(entry["test_bpb"]) for entry in audit]
    return proposer.contexts, [SECRET, "test_bpb", *numbers]


def test_a_context_is_json_without_secrets(lab_of, crashing, listener, monkeypatch):
    contexts, secrets = contexts_of(lab_of, crashing, listener, monkeypatch)
    assert len(contexts[-1].history) == 5
    for context in contexts:
        assert_public(context, secrets)


@pytest.mark.parametrize("planted", ["a key", "a number of the test split"])
def test_a_leak_is_seen(planted, lab_of, crashing, listener, monkeypatch):
    contexts, secrets = contexts_of(lab_of, crashing, listener, monkeypatch)
    leak = f"{SECRET}-HF_TOKEN" if planted == "a key" else secrets[-1]
    with pytest.raises(AssertionError):
        assert_public(replace(contexts[-1], guidance=f"see {leak}"), secrets)


def test_the_budget_is_what_the_caps_leave(lab_of, machine, listener):
    lab = lab_of(machine)
    ledger = Ledger(lab.log, lab.history, Caps(call_usd=0.4), 0.5)

    class Spending(Paid):
        def propose(self, context):
            call = ledger.reserve(0.2, agent="claude", purpose="propose")
            ledger.settle(call, 0.2, "ok")
            return super().propose(context)

    proposer = Spending(1.0, 0.9)
    ending = search(lab, proposer, listener, ledger)
    assert [context.budget_usd for context in proposer.contexts] == pytest.approx([0.4, 0.3])
    assert (ending.exit_code, ending.reason.count("--max-cost")) == (3, 1)
    proposed = [e for e in Journal(lab.run.folder / "journal.jsonl").read() if e["event"] == "proposed"]
    assert [event["cost_usd"] for event in proposed] == pytest.approx([0.0, 0.2, 0.2]), "as the ledger says"
    assert [outcome.cost_usd for outcome in lab._view.outcomes] == pytest.approx([0.0, 0.2, 0.2])


# Crashes to mend


def test_a_crash_may_be_mended_twice_by_who_made_it(lab_of, crashing, listener):
    proposer = Paid(11.0, 12.0, 13.0, 14.0, 1.0)
    lab = lab_of(crashing)
    search(lab, proposer, listener)
    mends = [context.mend.number if context.mend else None for context in proposer.contexts]
    assert mends == [None, 1, 2, None, 4, None], "two tries of one idea; the next idea has its own"
    assert proposer.contexts[1].mend_source == SOURCE.format(11.0)
    assert proposer.contexts[1].incumbent_source == SOURCE.format(2.0)
    assert [record.facts.get("mend_of") for record in lab.history.experiments.values()] == [None, None, 1, 1, None, 4]


def test_more_mends_than_two_are_seen(lab_of, crashing, listener, monkeypatch):
    monkeypatch.setattr("autoresearch.agent.context.MENDS", 3)
    with pytest.raises(AssertionError):
        test_a_crash_may_be_mended_twice_by_who_made_it(lab_of, crashing, listener)


@pytest.mark.parametrize("rate", [21.0, 31.0, 41.0, 51.0])
def test_only_a_crash_is_mended(rate, lab_of, crashing, listener):
    """A timeout, a broken contract, a diverged or too large run is the idea's own fault."""
    proposer = Paid(rate, 1.0)
    search(lab_of(crashing), proposer, listener)
    assert [context.mend for context in proposer.contexts] == [None] * 3


def test_what_the_lint_refuses_is_not_mended(lab_of, crashing, listener, monkeypatch):
    proposer = Paid(1.0)
    monkeypatch.setattr(proposer, "propose", lambda context: proposer.contexts.append(context) or BROKEN.pop(0))
    BROKEN = [Proposal("import os\n", "reads files"), None]
    search(lab_of(crashing), proposer, listener)
    assert proposer.contexts[1].mend is None


def test_the_crash_of_another_proposer_is_not_mended(lab_of, crashing, listener, listed):
    search(lab_of(crashing), listed(a=11.0), listener)
    proposer = Paid(1.0)
    search(lab_of(crashing), proposer, listener)
    assert proposer.contexts[0].mend is None
    free = listed(a=11.0, b=12.0)
    search(lab_of(crashing), free, listener)
    assert all(context.mend is None for context in free.contexts), "one that costs nothing doesn't mend"


def test_a_proposer_may_say_that_it_mended_nothing(lab_of, crashing, listener):
    lab = lab_of(crashing)
    search(lab, Paid(11.0, 12.0, mend_of=None), listener)
    assert crash_to_mend(lab.history, ["claude"]).number == 2
    assert lab.history.experiments[2].facts["mend_of"] is None


# What is asked of a round


def test_something_bolder_is_asked_for_after_a_drought(lab_of, machine, listener, listed):
    proposer = listed(a=1.0, **{f"x{i}": 3.0 + i for i in range(BOLD_AFTER)}, b=0.5, c=4.5)
    search(lab_of(machine), proposer, listener)
    asked = [i for i, context in enumerate(proposer.contexts) if "bolder" in context.guidance]
    assert asked == [BOLD_AFTER + 1], "until something is kept again"
    assert f"The last {BOLD_AFTER} experiments gave no gain" in proposer.contexts[asked[0]].guidance


def test_a_refusal_is_told_until_there_is_an_experiment():
    refused = {"event": "refused", "n": 1, "reason": "twice\nthe same", "origin": ""}
    history = History.from_events([{"event": "run"}])
    history.apply({"event": "proposed", "n": 0, "blob": "", "hypothesis": "", "normalized_hash": "0"})
    history.apply({"event": "decided", "n": 0, "verdict": "keep", "val_bpb": 1.0})
    history.apply(refused)
    assert quoted("why", "twice the same") in guidance_of(history), "a reason may quote anybody: it is data"
    history.apply({"event": "proposed", "n": 1, "blob": "", "hypothesis": "", "normalized_hash": "1"})
    assert guidance_of(history) == ""


# What people wrote


def test_what_people_wrote_is_read_anew_before_each_proposal(lab_of, machine, listener, place):
    program, knowledge = place.directory / "program.md", place.directory / "knowledge.md"
    program.write_text("first")

    class Editing(Paid):
        def propose(self, context):
            (program if len(self.contexts) == 0 else knowledge).write_text(f"told {len(self.contexts)}")
            return super().propose(context)

    proposer = Editing(1.0, 0.9)
    lab = lab_of(machine)
    lab.run = replace(lab.run, program="first", program_path=program)
    search(lab, proposer, listener)
    assert [(context.program, context.findings) for context in proposer.contexts] == [
        ("first", ""),
        ("told 0", ""),
        ("told 0", "told 1"),
    ]


def test_a_text_that_cannot_be_read_is_noted_once_and_what_it_said_before_counts(tmp_path):
    said: list[str] = []
    program, knowledge = tmp_path / "program.md", tmp_path / "knowledge.md"
    texts = Instructions("at the start", program, knowledge, said.append)
    assert (texts.program, texts.knowledge) == ("at the start", "")
    program.write_text("now")
    knowledge.write_text("known")
    assert (texts.program, texts.knowledge) == ("now", "known")
    program.write_bytes(b"\xff")
    knowledge.unlink()
    knowledge.mkdir()
    for _ in range(3):
        assert (texts.program, texts.knowledge) == ("now", "known")
    assert len([note for note in said if "program.md can't be read" in note]) == 1
    assert len([note for note in said if "knowledge.md can't be read" in note]) == 1
    knowledge.rmdir()
    os.mkfifo(knowledge)
    assert texts.knowledge == "known", "a pipe isn't waited for"
    knowledge.unlink()
    assert texts.knowledge == "", "nobody needs a knowledge.md"
    knowledge.write_text("x" * (KNOWLEDGE_CHARACTERS + 1))
    assert len(texts.knowledge) == KNOWLEDGE_CHARACTERS
    assert "its beginning" in said[-1]


def test_a_search_that_remembers_the_texts_is_seen(lab_of, machine, listener, place, monkeypatch):
    monkeypatch.setattr(loop.Instructions, "_read", lambda self, path: self._texts.setdefault(path, "first"))
    with pytest.raises(AssertionError):
        test_what_people_wrote_is_read_anew_before_each_proposal(lab_of, machine, listener, place)
