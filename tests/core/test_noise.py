"""The gain of a run with its interval, from the journal's events to the numbers."""

import math

import pytest

from autoresearch.core.history import History
from autoresearch.core.interval import t_quantile
from autoresearch.core.noise import gain_interval
from autoresearch.core.view import gain_text

RUN = {"event": "run", "settings": {"rules": {"spread": 0.02, "spread_dof": 4.0}}, "comparability_key": "here"}


def experiment(n: int, verdict: str, val_bpb: float, **decided) -> list[dict]:
    hashes = {"blob": "b", "source_hash": f"s{n}", "normalized_hash": f"n{n}"}
    told = {"hypothesis": "idea", "constants": {}, "diff_lines": 1, "parent": 0 if n else None}
    result = {"status": "ok", "val_bpb": val_bpb, "seed": 1, "comparability_key": "here"}
    return [
        {"event": "proposed", "n": n, **hashes, **told},
        {"event": "started", "n": n, "k": 0, "seed": 1, "mark": "m"},
        {"event": "measured", "n": n, "k": 0, "result": result},
        {"event": "decided", "n": n, "verdict": verdict, "reason": "", "val_bpb": val_bpb, **decided},
    ]


BASELINE = experiment(0, "keep", 2.0)
KEPT = experiment(1, "keep", 1.9, value=1.92, value_n=1)


def test_the_gain_rests_on_the_values_the_spread_and_the_counts():
    history = History.from_events([RUN, *BASELINE, *KEPT])
    gain = gain_interval(history)
    assert gain.mean == pytest.approx(0.08), "the shrunk value counts, not the score that picked it"
    assert gain.half_width == pytest.approx(t_quantile(0.975, 4) * 0.02 * math.sqrt(2))
    assert gain_text(history) == "baseline 2.0000 bpb, best 1.9200: gain 0.0800 ± 0.0785 (95 %)"
    history.apply({"event": "anchored", "n": 1, "value": 1.91, "value_n": 3})
    anchored = gain_interval(history)
    assert anchored.mean == pytest.approx(0.09)
    assert anchored.half_width == pytest.approx(t_quantile(0.975, 4) * 0.02 * math.sqrt(1 + 1 / 3))
    assert gain_interval(history, confidence=0.5).half_width < anchored.half_width


def test_no_gain_is_told_where_there_is_none():
    assert gain_interval(History()) is None
    at_start = History.from_events([RUN, *BASELINE])
    assert gain_interval(at_start) is None
    assert gain_text(at_start) == "baseline 2.0000 bpb, best 2.0000: gain 0.0000"


def test_scores_of_another_machine_give_no_gain():
    resumed = {"event": "resumed", "comparability_key": "elsewhere"}
    history = History.from_events([RUN, *BASELINE, *KEPT, resumed])
    assert gain_interval(history) is None
    history.apply({"event": "anchored", "n": 1, "value": 1.5, "value_n": 1})
    assert gain_interval(history) is None, "the incumbent was measured here, the baseline was not"
    assert "no gain to tell" in gain_text(history)
