"""Runs to report on: a few events by hand, and long ones in a real git repository."""

import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autoresearch.core.history import History
from autoresearch.core.runs import SavedRun, load

HOSTILE = "</script><img src=x onerror=\"document.title='broken'\"><b>'`${1}\u2028 $x_1$"
"""What nobody's texts may do anything with."""


@pytest.fixture(scope="session")
def hostile() -> str:
    return HOSTILE


@pytest.fixture(scope="session")
def long_run(tmp_path_factory) -> Callable[..., SavedRun]:
    """A run of so many experiments, see benchmarks/report.py: `long_run(700)`, `long_run(40, texts=…)`."""
    path = Path(__file__).parents[2] / "benchmarks" / "report.py"
    spec = importlib.util.spec_from_file_location("report_benchmark", path)
    module = sys.modules["report_benchmark"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    @cache
    def build(count: int, texts: str = "") -> SavedRun:
        return load(module.build(tmp_path_factory.mktemp("long") / "lab", count, texts=texts))

    return build


def life(n: int, verdict: str, score: float | None, parent: int | None = 0, **more: Any) -> list[dict[str, Any]]:
    """The events of one experiment; `more` are fields of its result, its proposal and its verdict, by their names."""
    result = {"status": "ok" if score is not None else verdict, "val_bpb": score, "comparability_key": "a"}
    result |= {"source_hash": f"s{n}", "total_seconds": 60.0, "loss_curve": [[0.5, 5.0], [1.0, 4.0]]}
    proposed = {"event": "proposed", "n": n, "blob": "", "hypothesis": f"idea {n}", "normalized_hash": f"n{n}"}
    proposed |= {"category": "size", "parent": None if n == 0 else parent}
    worth = {"value": score, "value_n": 1} if verdict == "keep" else {"value": None, "value_n": 0}
    decided = {"event": "decided", "n": n, "verdict": verdict, "reason": f"because {n}", "val_bpb": score, **worth}
    for name, value in more.items():
        for event in (proposed, decided):
            if name in event or name == "near_miss":
                event[name] = value
        if name in ("suspect", "comparability_key", "tokens_per_second", "source_hash", "log_tail", "probe_before"):
            result[name] = value
    return [
        proposed,
        {"event": "committed", "n": n, "commit": f"{n:x}".rjust(40, "c")},
        {"event": "started", "n": n, "k": 0, "seed": n},
        {"event": "measured", "n": n, "k": 0, "result": result},
        decided,
    ]


RUN = {
    "event": "run",
    "tag": "nov30",
    "comparability_key": "a",
    "settings": {"backend": "null", "preset": "p", "rules": {"spread": 0.01}},
}


@pytest.fixture
def run(tmp_path) -> Callable[..., SavedRun]:
    """A run without a repository, of lists of events: `run(life(0, "keep", 2.0), …, test={(0, 0): 2.1})`."""

    def build(*lives: list[dict[str, Any]], test: dict[tuple[int, int], float] | None = None) -> SavedRun:
        events = [RUN, *(event for events in lives for event in events)]
        audit = tuple({"n": n, "k": k, "test_bpb": score} for (n, k), score in (test or {}).items())
        return SavedRun("nov30", tmp_path, None, History.from_events(events), audit)

    return build


@pytest.fixture(scope="session")
def experiment():
    """The events of one experiment, see `life`."""
    return life
