"""A run's journal as a trajectory."""

from pathlib import Path

from autoresearch.core.history import History
from autoresearch.core.runs import SavedRun
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
