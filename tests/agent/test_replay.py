"""A search on the null backend, replayed: its measurements alone give the same verdicts, anchors and withdrawals."""

import json
from dataclasses import replace

import pytest

from autoresearch.agent.lab import Lab, Run
from autoresearch.agent.loop import search
from autoresearch.agent.proposer import Proposal
from autoresearch.core.errors import DataError
from autoresearch.core.executor import LocalExecutor, Measurement
from autoresearch.core.history import History
from autoresearch.core.replay import DERIVED, replay, step_of
from autoresearch.core.task import Limits, Rules, Settings
from autoresearch.core.workspace import Workspace

# Scores of each candidate in order, around a baseline of 1.0 with a spread of 0.01; a string makes that one suspect.
SCORES = {
    "base": [1.0],
    "clear": [0.90, 0.905, 0.91],
    "worse": [0.99],
    "unclear": [0.89, 0.87],
    "missed": [0.86, 0.90],
    "slept": ["0.99", 0.95],
    "lucky": [0.80, 0.92, 0.93],
    "doubtful": [0.785, 0.90],
}


class Planned(LocalExecutor):
    """Trains and scores for real, then puts a planned score in the place of the measured one."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self._left = {name: list(scores) for name, scores in SCORES.items()}

    def measure(self, request, dataset, log, on_event=lambda _: None) -> Measurement:
        measured = super().measure(request, dataset, log, on_event)
        assert measured.result.status == "ok", measured.result.reason
        name = request.source.splitlines()[0].removeprefix("NAME = ").strip('"')
        score = self._left[name].pop(0)
        suspect = "planned" if isinstance(score, str) else ""
        return replace(measured, result=replace(measured.result, val_bpb=float(score), suspect=suspect))


@pytest.fixture(scope="module")
def journal(tmp_path_factory, task, dataset, device, candidate):
    """The events of that search."""
    folder = tmp_path_factory.mktemp("replayed")

    def source(name: str) -> str:
        return f'NAME = "{name}"\n' + candidate()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        place = Workspace.create(folder / "lab", {"train.py": source("base"), "autoresearch.toml": ""})
        limits = Limits(setup_seconds=60, eval_seconds=60, probe_seconds=0)
        settings = Settings(
            "tinystories/smoke", task, limits, Rules(spread=0.01, keep_z=2.5, fresh_within=3), backend="null"
        )
        run = Run(place, "t", settings, device, dataset, "key", program="")
        lab = Lab(run, Planned(run.folder), Silent())
        names = iter([*list(SCORES)[1:5], "broken", *list(SCORES)[5:]])
        search(lab, InOrder(names, source), Silent())
    return [json.loads(line) for line in (run.folder / "journal.jsonl").read_text().splitlines()]


class InOrder:
    name = "in order"

    def __init__(self, names, source) -> None:
        self._names, self._source = names, source

    def propose(self, context):
        name = next(self._names, None)
        if name is None:
            return None
        return Proposal("import os\n" if name == "broken" else self._source(name), name)


class Silent:
    def __getattr__(self, name):
        return lambda *args: None


def derived(events) -> list[dict]:
    """As the journal has them, without their times and what the lint refused."""
    made = [event for event in events if event["event"] in DERIVED and not event.get("lint")]
    return [{name: value for name, value in event.items() if name != "time"} for event in made]


def test_the_search_holds_every_kind_of_step(journal):
    decided = {event["n"]: event for event in journal if event["event"] == "decided"}
    names = {event["n"]: event["hypothesis"] for event in journal if event["event"] == "proposed"}
    assert {names[n]: event["verdict"] for n, event in decided.items()} == {
        "baseline": "keep",
        "clear": "keep",
        "worse": "discard",
        "unclear": "keep",
        "missed": "discard",
        "broken": "invalid",
        "slept": "discard",
        "lucky": "keep",
        "doubtful": "keep",
    }
    assert [names[event["n"]] for event in journal if event["event"] == "withdrawn"] == ["lucky"]
    assert [names[event["n"]] for event in journal if event["event"] == "anchored"] == ["clear"]
    assert [event["near_miss"] for event in decided.values() if "near_miss" in event].count(True) == 1
    suspects = [event for event in journal if event["event"] == "measured" and event["result"]["suspect"]]
    assert [names[event["n"]] for event in suspects] == ["slept"]


def test_the_measurements_alone_give_the_same_events(journal):
    assert replay(journal) == derived(journal)
    measured = [event for event in journal if event["event"] not in DERIVED or event.get("lint")]
    following = {"event": "proposed", "n": 99, "blob": "", "hypothesis": "", "normalized_hash": ""}
    assert replay([*measured, following]) == derived(journal), "what the journal decided is not looked at"


def test_each_measurement_is_the_one_that_the_rule_asked_for(journal):
    history = History()
    for event in journal:
        if event["event"] == "started":
            assert step_of(history).number == event["n"]
        history.apply(event)


@pytest.mark.parametrize("planted", ["a changed score", "another threshold", "a suspect that counts"])
def test_a_journal_that_does_not_follow_from_its_measurements_is_seen(journal, planted):
    events = json.loads(json.dumps(journal))
    if planted == "another threshold":
        events[0]["settings"]["rules"]["keep_z"] = 9.0
    for event in events:
        if event["event"] == "measured" and planted == "a changed score" and event["n"] == 3:
            event["result"]["val_bpb"] += 0.001
        if event["event"] == "measured" and planted == "a suspect that counts":
            event["result"]["suspect"] = ""
    try:
        again = replay(events)
    except DataError:
        return
    assert again != derived(journal)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_a_journal_that_was_cut_off_replays_as_far_as_it_goes(journal, share):
    events = journal[: int(share * len(journal))]
    again, made = replay(events), derived(events)
    assert again == made
