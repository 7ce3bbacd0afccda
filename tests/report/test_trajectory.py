"""A run's journal as a trajectory."""

from pathlib import Path

from autoresearch.core.history import History
from autoresearch.core.runs import SavedRun
from autoresearch.core.suspect import LASTING
from autoresearch.report.audit import along
from autoresearch.report.trajectory import of_run


def experiment(n: int, verdict: str, score: float | None, **decided) -> list[dict]:
    """Its events as the loop writes them: a discard has no value of its own."""
    result = {"status": "ok" if score is not None else verdict, "val_bpb": score, "comparability_key": "a"}
    proposed = {"event": "proposed", "n": n, "blob": "", "hypothesis": f"idea {n}", "normalized_hash": str(n)}
    worth = {"value": score, "value_n": 1} if verdict == "keep" else {"value": None, "value_n": 0}
    return [
        {**proposed, "parent": None if n == 0 else 0},
        {"event": "started", "n": n, "k": 0, "seed": n},
        {"event": "measured", "n": n, "k": 0, "result": result},
        {"event": "decided", "n": n, "verdict": verdict, "val_bpb": score, **worth, **decided},
    ]


RUN = {"event": "run", "comparability_key": "a", "settings": {}}


def trajectory(*events: dict):
    return of_run(SavedRun("t", Path("t"), None, History.from_events([RUN, *events])))


def test_a_discard_is_worth_its_score():
    found = trajectory(*experiment(0, "keep", 2.0), *experiment(1, "discard", 2.25), *experiment(2, "crash", None))
    assert [(row.value, row.value_n, row.gain) for row in found.rows] == [
        (2.0, 1, None),
        (2.25, 1, -0.25),
        (None, 1, None),
    ]
    elsewhere = {"event": "resumed", "comparability_key": "b"}
    assert trajectory(*experiment(0, "keep", 2.0), *experiment(1, "discard", 2.25), elsewhere).rows[1].value is None


def measured(n: int, k: int, suspect: str = "") -> list[dict]:
    result = {"status": "ok", "val_bpb": 2.0, "comparability_key": "a", "suspect": suspect}
    return [{"event": "started", "n": n, "k": k, "seed": k}, {"event": "measured", "n": n, "k": k, "result": result}]


def test_held_out_scores_are_those_that_are_comparable_and_clean():
    """Of the baseline: before the machine changed for good 9.0, after it one suspect score of 5.0 and a clean one."""
    slower = [event for k in range(1, 1 + LASTING) for event in measured(0, k, "slower")]
    after = [*measured(0, 1 + LASTING, "busy"), *measured(0, 2 + LASTING)]
    events = [RUN, *experiment(0, "keep", 2.0), *slower, *after]
    tests = {0: 9.0, **dict.fromkeys(range(1, 1 + LASTING), 8.0), 1 + LASTING: 5.0, 2 + LASTING: 2.5}
    audit = tuple({"n": 0, "k": k, "test_bpb": bpb} for k, bpb in tests.items())
    saved = SavedRun("t", Path("t"), None, History.from_events(events), audit)
    assert of_run(saved).rows[0].test_bpb == 2.5
    assert [row["test_bpb"] for row in along(saved)["experiments"]] == [2.5]
    only_suspect = SavedRun("t", Path("t"), None, History.from_events(events[:-2]), audit)
    assert of_run(only_suspect).rows[0].test_bpb == 5.0
