"""Another run's experiments here: in order, judged anew, each once, and what can't be carried said."""

import json
from dataclasses import replace

import pytest

from autoresearch.agent.agents import check_ready, make_proposer
from autoresearch.agent.loop import REFUSALS_IN_A_ROW, search
from autoresearch.agent.proposer import Proposal
from autoresearch.agent.replay_of import ReplayOf, run_to_replay
from autoresearch.core.errors import DataError, UsageError
from autoresearch.core.history import History
from autoresearch.core.runs import SavedRun, find
from autoresearch.core.task import Settings
from autoresearch.core.workspace import Workspace

# The machine of the tests reads the rate alone, so code that only multiplies it is free of consequences.
CODE = "\n\n\ndef train(experiment):\n    return RATE{}\n"


def source_of(rate: float, code: str = "") -> str:
    return f"RATE = {rate}{CODE.format(code)}"


@pytest.fixture
def there(tmp_path, place) -> Workspace:
    """Of the run that is replayed; it begins from another rate than that of `place`."""
    return Workspace.create(tmp_path / "there", {"train.py": source_of(4.0), "autoresearch.toml": ""})


@pytest.fixture
def replayed(lab_of, there, machine, listener, listed) -> SavedRun:
    """Four experiments: kept, discarded, kept with its code, invalid."""
    proposals = {
        "lower": Proposal(source_of(3.0), "lower", "learning rate", origin="lower"),
        "higher": Proposal(source_of(6.0), "higher", "learning rate", origin="higher"),
        "code": Proposal(source_of(1.5, " * 1"), "half, and code", "other", origin="code"),
        "clock": Proposal("import time\n" + source_of(1.0), "a clock", origin="clock"),
    }
    lab = lab_of(machine, where=there)
    search(lab, listed(**proposals), listener)
    assert [record.verdict for record in lab.history.experiments.values()] == [
        *("keep", "keep", "discard", "keep", "invalid")
    ]
    return find("tag", there.directory)


def proposals_of(lab):
    return [(record.number, record.verdict, record.hypothesis) for record in lab.history.experiments.values()][1:]


def test_experiments_come_in_order_and_are_judged_anew(replayed, lab_of, machine, listener, place):
    machine.score = lambda rate: 10 - rate  # here a higher rate is better
    lab = lab_of(machine)
    reason, *_ = search(lab, ReplayOf(replayed), listener)
    assert reason == "no proposals are left (replay:tag)"
    assert listener.notes == []
    assert proposals_of(lab) == [
        (1, "discard", "replay of #1 of tag (kept there, -0.9998; here RATE 2.0 → 1.5): lower"),
        (2, "keep", "replay of #2 of tag (discard there, +2.9998; here RATE 2.0 → 4.0): higher"),
        (3, "discard", "replay of #3 of tag (kept there, -1.5001; here RATE 4.0 → 2.0): half, and code"),
    ]
    records = lab.history.experiments
    assert place.read(records[3].commit) == source_of(2.0, " * 1"), "the code with the constants of here"
    assert [record.category for record in records.values()] == ["baseline", "learning rate", "learning rate", "other"]
    assert {record.proposer for record in records.values()} == {"", "replay:tag"}
    facts = records[2].facts["replay_of"]
    assert facts.pop("effect") == pytest.approx(-1.0, abs=1e-3)
    assert len(facts.pop("id")) == 8
    assert facts == {"run": "tag", "experiment": 2, "hypothesis": "higher", "verdict": "discard", "left_out": []}
    assert records[2].origin.startswith("replay:tag-")


def test_the_same_start_gives_the_same_candidates(replayed, lab_of, machine, listener, there, tmp_path):
    twin = Workspace.create(tmp_path / "twin", {"train.py": source_of(4.0), "autoresearch.toml": ""})
    lab = lab_of(machine, where=twin)
    search(lab, ReplayOf(replayed), listener)
    assert [twin.read(record.commit) for record in lab.history.experiments.values()] == [
        there.read(record.commit) for record in replayed.history.experiments.values() if record.verdict != "invalid"
    ]
    assert all("; here" not in hypothesis for _, _, hypothesis in proposals_of(lab))


def test_a_replay_goes_on_where_it_was(replayed, lab_of, machine, listener):
    search(lab_of(machine, max_experiments=1), ReplayOf(replayed), listener)
    lab = lab_of(machine)
    search(lab, ReplayOf(find("tag", replayed.place)), listener)
    origins = [record.origin.rpartition("#")[2] for record in lab.history.experiments.values()]
    assert origins == ["", "1", "2", "3"]


def test_runs_of_one_tag_are_told_apart(replayed, lab_of, machine, listener):
    search(lab_of(machine), ReplayOf(replayed), listener)
    other = replace(replayed, history=History())
    other.history.__dict__.update(replayed.history.__dict__)
    other.history.run = {**replayed.history.run, "time": "another day"}
    lab = lab_of(machine)
    search(lab, ReplayOf(other), listener)
    again = [refusal.reason for refusal in lab.history.refusals]
    assert len(lab.history.experiments) - 1 + len(again) == 6, "asked for again, under names of its own"


def test_a_withdrawn_keep_and_failures_are_tried(replayed, lab_of, machine, listener):
    records = replayed.history.experiments
    records[1] = replace(records[1], withdrawn="no better")
    records[2] = replace(records[2], verdict="out_of_memory", val_bpb=None, value=None)
    lab = lab_of(machine)
    search(lab, ReplayOf(replayed), listener)
    told = [hypothesis for _, _, hypothesis in proposals_of(lab)]
    assert told[0].startswith("replay of #1 of tag (withdrawn there, -0.9998;")
    assert told[1].startswith("replay of #2 of tag (out_of_memory there;")
    assert lab.history.experiments[2].facts["replay_of"]["effect"] is None


def test_a_journal_without_its_repository_gives_the_constants(replayed, lab_of, machine, listener, tmp_path):
    (tmp_path / "carried.jsonl").write_bytes((replayed.folder / "journal.jsonl").read_bytes())
    saved = run_to_replay(str(tmp_path / "carried.jsonl"), tmp_path)
    lab = lab_of(machine)
    search(lab, ReplayOf(saved), listener)
    last = lab.history.experiments[3]
    assert last.hypothesis == (
        "replay of #3 of tag (kept there, -1.5001; here RATE 1.5 → 0.75; without: its code: the train.py of that run "
        "isn't at hand): half, and code"
    )
    assert last.facts["replay_of"]["left_out"] == ["its code: the train.py of that run isn't at hand"]


def synthetic(backend: str, changes: int) -> SavedRun:
    """A run of changes of code, then one of a constant."""
    events = [
        {"event": "run", "tag": "far", "settings": {"backend": backend}, "comparability_key": "far"},
        *(
            event
            for n in range(changes + 2)
            for event in (
                {
                    **{"event": "proposed", "n": n, "blob": "", "hypothesis": f"idea {n}", "normalized_hash": str(n)},
                    **{"parent": 0 if n else None, "diff_lines": 2, "constants": {"RATE": 4.0 - (n == changes + 1)}},
                },
                {"event": "decided", "n": n, "verdict": "discard" if n else "keep", "val_bpb": 4.0 + n},
            )
        ),
    ]
    return SavedRun("far", None, None, History.from_events(events))


def test_code_for_another_backend_is_listed_and_never_ends_the_replay(lab_of, machine, listener):
    changes = REFUSALS_IN_A_ROW + 5
    lab = lab_of(machine)
    search(lab, ReplayOf(synthetic("cuda", changes)), listener)
    reasons = {refusal.reason for refusal in lab.history.refusals}
    assert reasons == {"not carried: its code: it was written for another backend, cuda"}
    assert len(lab.history.refusals) == changes
    assert lab.history.refusals[3].hypothesis == "replay of #4 of far (discard there, +4.0000): idea 4"
    assert [hypothesis.rpartition(": ")[2] for *_, hypothesis in proposals_of(lab)] == [f"idea {changes + 1}"]


def test_a_replayed_candidate_takes_the_ordinary_path(replayed, lab_of, machine, listener):
    """A journal from elsewhere may claim that anything was kept."""
    records = replayed.history.experiments
    records[4] = replace(records[4], verdict="keep", val_bpb=0.1)
    lab = lab_of(machine)
    search(lab, ReplayOf(replayed), listener)
    last = lab.history.experiments[4]
    assert (last.verdict, last.results) == ("invalid", ())
    assert "time" in last.reason


SETTINGS = Settings("tinystories/smoke", backend="null")


def test_a_run_is_found_from_the_workspace_and_from_the_current_directory(replayed, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("there", "../there", str(replayed.folder), str(replayed.folder / "journal.jsonl")):
        check_ready(replace(SETTINGS, agent=f"replay:{name}"), place.directory)
    proposer, notes = make_proposer(replace(SETTINGS, agent="replay:../there"), place.directory, None, None)
    assert proposer.name == "replay:tag"
    assert notes == [
        f"proposals: replay of run tag in {replayed.place}: 3 experiments, null on a processor, tinystories/smoke"
    ]


@pytest.mark.parametrize(
    ("name", "error", "problem"),
    [
        ("nov31", UsageError, "no run 'nov31'"),
        ("results.tsv", UsageError, "a table of results holds no change"),
        ("fresh.jsonl", UsageError, "has no experiment yet"),
        ("damaged.jsonl", DataError, "line 2 is not an event"),
    ],
)
def test_what_cannot_be_replayed_is_an_error_before_anything_is_made(name, error, problem, place, tmp_path):
    (place.directory / "results.tsv").write_text("commit\tval_bpb\tmemory_gb\tstatus\tdescription\n")
    run = json.dumps({"event": "run", "time": "2026-03-08T10:00:00+00:00", "tag": "far"})
    (place.directory / "fresh.jsonl").write_text(run + "\n")
    (place.directory / "damaged.jsonl").write_text(f"{run}\nrubbish\n{run}\n")
    with pytest.raises(error, match=problem):
        check_ready(replace(SETTINGS, agent=f"replay:{name}"), place.directory)


def test_a_run_does_not_replay_itself(lab_of, machine, listener, listed, place):
    search(lab_of(machine), listed(a=1.0), listener)
    for name in ("tag", str(place.directory)):
        with pytest.raises(UsageError, match="is this run itself"):
            check_ready(replace(SETTINGS, agent=f"replay:{name}"), place.directory, "tag")
        check_ready(replace(SETTINGS, agent=f"replay:{name}"), place.directory, "another")


def test_in_a_mix_each_takes_its_turn(replayed, lab_of, machine, listener, place):
    settings = replace(SETTINGS, agent=f"replay:{replayed.place},random@1")
    lab = lab_of(machine, max_experiments=4)
    proposer, notes = make_proposer(settings, place.directory, None, None)
    search(lab, proposer, listener)
    assert len(notes) == 1
    assert [record.proposer for record in lab.history.experiments.values()][1:] == ["replay:tag", "random"] * 2
