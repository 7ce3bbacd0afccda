"""Status and report of a run, from its journal alone."""

import pytest

from autoresearch.core.errors import UsageError
from autoresearch.core.history import History
from autoresearch.core.journal import Journal
from autoresearch.core.runs import SavedRun, load
from autoresearch.core.task import SETTINGS
from autoresearch.core.workspace import Workspace
from autoresearch.report import summary


def experiment(n: int, verdict: str, score: float | None, key: str = "a", category: str = "size") -> list[dict]:
    status = "ok" if score is not None else verdict
    result = {"status": status, "val_bpb": score, "comparability_key": key, "total_seconds": 1.5}
    return [
        {
            "event": "proposed",
            "n": n,
            "blob": "",
            "hypothesis": f"idea {n}",
            "category": category,
            "normalized_hash": str(n),
            "parent": None if n == 0 else 0,
        },
        {"event": "committed", "n": n, "commit": f"{n}" * 40},
        {"event": "started", "n": n, "k": 0, "seed": n},
        {"event": "measured", "n": n, "k": 0, "result": result},
        {"event": "decided", "n": n, "verdict": verdict, "reason": "why", "val_bpb": score, "value_n": 1},
    ]


RUN = {"event": "run", "comparability_key": "a", "settings": {"backend": "null", "rules": {"spread": 0.02}}}
EVENTS = [
    RUN,
    *experiment(0, "keep", 2.0),
    *experiment(1, "keep", 1.5),
    *experiment(2, "discard", 1.8),
    *experiment(3, "crash", None, category="batch"),
    {"event": "call", "id": "a", "n": 4, "agent": "claude", "worst_usd": 1.0, "time": "2026-11-30T22:00:00+00:00"},
    {"event": "charged", "id": "a", "usd": 0.25},
    {"event": "refused", "n": 4, "reason": "a duplicate of experiment 1", "cost_usd": 0.25},
]
AUDIT = ({"n": 0, "k": 0, "test_bpb": 2.1}, {"n": 1, "k": 0, "test_bpb": 9.0}, {"n": 1, "k": 0, "test_bpb": 1.7})


@pytest.fixture
def state(tmp_path):
    def build(*more: dict) -> SavedRun:
        return SavedRun("nov30", tmp_path, None, History.from_events([*EVENTS, *more]), AUDIT)

    return build


def test_status(state):
    status = summary.status(state())
    assert {name: status[name] for name in ("experiments", "measurements", "kept", "discarded", "failed")} == {
        "experiments": 3,
        "measurements": 3,
        "kept": 1,
        "discarded": 1,
        "failed": 1,
    }
    assert status["baseline"] == {"val_bpb": 2.0, "n": 1, "spread": 0.02}
    assert status["best"] == {"val_bpb": 1.5, "n": 1, "spread": 0.02, "commit": "1" * 40, "experiment": 1}
    assert (status["incumbent_commit"], status["cost_usd"], status["stop_reason"]) == ("1" * 40, 0.25, None)
    text = summary.status_text(state())
    assert "1 kept, 1 discarded, 1 failed, 1 proposals refused" in text
    assert "baseline 2.0000 bpb, best 1.5000: gain 0.5000" in text
    assert text.endswith("not stopped yet")


def test_status_before_there_is_a_baseline(tmp_path):
    status = summary.status(SavedRun("nov30", tmp_path, None, History.from_events([RUN]), ()))
    assert status["best"] is None
    assert status["baseline"] == {"val_bpb": None, "n": 0, "spread": None}
    assert "not stopped yet" in summary.status_text(SavedRun("nov30", tmp_path, None, History(), ()))


def test_report(state):
    text = summary.report_text(state())
    assert "  #1   1.5000 bpb -0.5000  idea 1" in text
    assert "by category:\n  size   -0.5000 bpb  1 of 2 kept\n  batch   0.0000 bpb  0 of 1 kept" in text
    assert "  #3   crash: idea 3: why" in text
    assert "held-out test text: baseline 2.1000, best 1.7000: gain 0.4000" in text, "the line written last counts"
    assert "show 111111111111:./train.py" in text
    rows = summary.report(state())["experiments"]
    assert [row["seconds"] for row in rows] == [1.5] * 4


def test_the_last_failures_are_told(state):
    more = [event for n in range(4, 14) for event in experiment(n, "timeout", None)]
    text = summary.report_text(state(*more))
    assert "failures, the last 10 of 11 (all of them: autoresearch report --json):" in text
    assert "crash: idea 3" not in text
    assert "  #13  timeout: idea 13: why" in text


def test_a_withdrawn_keep(state):
    withdrawn = state({"event": "withdrawn", "n": 1, "reason": "fresh seeds say 2.1"})
    assert summary.status(withdrawn)["best"]["experiment"] == 0
    assert "(withdrawn: fresh seeds say 2.1)" in summary.report_text(withdrawn)
    assert "size    0.0000 bpb  0 of 2 kept" in summary.report_text(withdrawn)


def test_near_misses_and_suspect_measurements_are_told(state):
    near = experiment(4, "discard", 1.49)
    near[-1]["near_miss"] = True
    slow = [{**near[2], "k": 1}, {**near[3], "k": 1, "result": {**near[3]["result"], "suspect": "the machine slept"}}]
    text = summary.report_text(state(*near[:4], *slow, near[4]))
    assert "near misses, no gain that was borne out alone:\n  #4   1.4900 bpb  idea 4" in text
    assert "suspect measurements, repeated:\n  #4   the machine slept" in text
    assert "near misses" not in summary.report_text(state())
    assert "suspect measurements" not in summary.report_text(state())


def test_scores_of_two_machines_are_not_held_against_each_other(state):
    """Resumed where the same source scores 0.7: that is no gain over the baseline's 2.0 on the other machine."""
    elsewhere = state(
        {"event": "resumed", "comparability_key": "b"},
        {"event": "started", "n": 1, "k": 1, "seed": 9},
        {"event": "measured", "n": 1, "k": 1, "result": {"status": "ok", "val_bpb": 0.7, "comparability_key": "b"}},
        {"event": "anchored", "n": 1, "value": 0.7, "value_n": 1},
    )
    text = summary.report_text(elsewhere)
    assert "best 0.7000 bpb; the baseline was measured on another machine" in text
    assert "gain 1.3" not in text
    assert "-1.3" not in text
    assert "held-out" in summary.report_text(state()) and "held-out" not in text, "scores of the other machine"
    status = summary.status(elsewhere)
    assert (status["baseline"]["val_bpb"], status["best"]["val_bpb"]) == (None, 0.7)


def test_which_run_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match="no workspace in "):
        load(tmp_path)
    place = Workspace.create(tmp_path / "autoresearch-lab", {"train.py": "\n", SETTINGS: ""})
    with pytest.raises(UsageError, match="has no run yet"):
        load(tmp_path)
    for tag in ("one", "two"):
        Journal(place.run_dir(tag) / "journal.jsonl").append("run", settings={})
    (tmp_path / "train.py").touch()  # something else of the user's
    assert load(tmp_path).tag == "two", "the run written to last"
    assert load(tmp_path, "one").place == place.directory
    assert load(place.directory, "one").tag == "one"
    with pytest.raises(UsageError, match="no run 'three'") as caught:
        load(tmp_path, "three")
    assert "one, two" in caught.value.hint
