"""What became of replayed experiments: where they helped, how far the effects agree, and what was not carried."""

from dataclasses import replace
from pathlib import Path

import pytest

from autoresearch.core.history import History
from autoresearch.core.runs import SavedRun
from autoresearch.report import compare, compare_text
from autoresearch.report.trajectory import Trajectory, of_run
from autoresearch.report.transfer import helped, transfers

SETTINGS = {"backend": "null", "preset": "smoke", "rules": {"spread": 0.01, "spread_dof": 4.0}}


def experiment(n: int, verdict: str, score: float | None, **more) -> list[dict]:
    values = {"LR": 0.1 + n / 100, **more.pop("constants", {})}
    result = {"status": "ok" if score is not None else verdict, "val_bpb": score, "comparability_key": "k"}
    told = {"hypothesis": f"idea {n}", "constants": values, "diff_lines": 2, **more}
    value = {"value": score, "value_n": 1} if verdict == "keep" else {}
    return [
        {"event": "proposed", "n": n, "blob": "", "normalized_hash": str(n), "parent": 0 if n else None, **told},
        {"event": "started", "n": n, "k": 0, "seed": 0},
        {"event": "measured", "n": n, "k": 0, "result": result},
        {"event": "decided", "n": n, "verdict": verdict, "val_bpb": score, **value},
    ]


def run_of(tag: str, *events: list[dict], time: str = "2026-03-08T10:00:00+00:00") -> Trajectory:
    start = {"event": "run", "time": time, "tag": tag, "comparability_key": "k", "settings": SETTINGS}
    history = History.from_events([start, *(event for group in events for event in group)])
    return of_run(SavedRun(tag, Path(tag), None, history))


# Better there: 1 (kept), 2 (kept, withdrawn), 5 (kept). Worse: 3. Failed: 4.
THERE = run_of(
    "h100",
    experiment(0, "keep", 2.0),
    experiment(1, "keep", 1.9),
    experiment(2, "keep", 1.96),
    experiment(3, "discard", 2.2),
    experiment(4, "crash", None),
    experiment(5, "keep", 1.8),
    [{"event": "withdrawn", "n": 2, "reason": "no better"}],
)


def replayed(n: int, number: int, verdict: str, score: float | None, left_out=(), there=()) -> list[dict]:
    facts = {"run": "h100", "id": THERE.saved.identity, "experiment": number, "hypothesis": f"idea {number}"}
    row = next(row for row in THERE.rows if row.number == number)
    effect = None if row.gain is None else row.gain / 2.0
    facts = {**facts, "verdict": row.outcome, "effect": effect, "left_out": list(left_out), **dict(there)}
    text = f"replay of #{number} of h100 (kept there, -0.1000): idea {number}"
    return experiment(n, verdict, score, hypothesis=text, facts={"replay_of": facts})


def refused(n: int, number: int, reason: str, of: str = "h100") -> list[dict]:
    origin = f"replay:{of}-{THERE.saved.identity}#{number}"
    hypothesis = f"replay of #{number} of {of} (kept there, -0.1000): idea {number}"
    return [{"event": "refused", "n": n, "reason": reason, "origin": origin, "hypothesis": hypothesis}]


HERE = run_of(
    "mac",
    experiment(0, "keep", 3.0),
    replayed(1, 1, "discard", 3.3),
    replayed(2, 2, "keep", 2.9),
    replayed(3, 3, "discard", 3.2),
    refused(4, 4, "not carried: its code: it was written for another backend, cuda"),
    replayed(4, 5, "keep", 2.8, left_out=["its code: no"]),
    experiment(5, "keep", 2.7),
)


def one(*trajectories: Trajectory) -> dict:
    (found,) = transfers(trajectories, [t.name for t in trajectories])
    return found


def test_each_carried_experiment_is_told_with_both_sides():
    found = one(HERE)
    assert (found["from"], found["to"], found["in_part"]) == ("h100", "mac", 1)
    told = [(row["there"], row["here"], row["helped_there"], row["helped_here"]) for row in found["experiments"]]
    assert told == [(1, 1, True, False), (2, 2, False, True), (3, 3, False, False), (5, 4, True, True)]
    assert found["counts"] == {"both": 0, "there_alone": 1, "here_alone": 1, "neither": 1}, "whole ones alone"
    first = found["experiments"][0]
    assert (first["verdict_there"], first["verdict_here"], first["hypothesis"]) == ("keep", "discard", "idea 1")
    assert first["effect_there"] == pytest.approx(0.05)
    assert first["effect_here"] == pytest.approx(-0.1)
    assert found["not_carried"] == [
        {
            "there": 4,
            "verdict_there": "",
            "hypothesis": "idea 4",
            "reason": "its code: it was written for another backend, cuda",
        }
    ]


def test_effects_agree_by_sign_and_rank_over_the_whole_ones():
    found = one(HERE)
    assert (found["signs"]["same"], found["signs"]["n"]) == (2, 3)  # #2 and #3
    assert found["ranks"]["n"] == 3
    assert found["ranks"]["rho"] == pytest.approx(-0.5)
    few = one(run_of("mac", experiment(0, "keep", 3.0), replayed(1, 1, "discard", 3.3)))
    assert (few["signs"], few["ranks"]) == (None, None)


def test_the_run_itself_knows_better_where_it_is_at_hand():
    stale = run_of("mac", experiment(0, "keep", 3.0), replayed(1, 2, "keep", 2.9, there={"verdict": "keep"}))
    assert one(stale)["experiments"][0]["helped_there"]
    (row,) = one(THERE, stale)["experiments"]
    assert (row["verdict_there"], row["helped_there"]) == ("withdrawn", False)
    assert row["effect_there"] == pytest.approx(0.02)
    failed = run_of("mac", experiment(0, "keep", 3.0), refused(1, 4, "not carried: x"))
    assert one(THERE, failed)["not_carried"][0]["verdict_there"] == "crash"
    # Another run of the same tag is not asked.
    twin = run_of("h100", experiment(0, "keep", 2.0), experiment(2, "keep", 1.0), time="2027-03-08T10:00:00+00:00")
    assert one(twin, stale)["experiments"][0]["helped_there"]


def test_names_of_the_comparison_are_used():
    found = transfers([THERE, HERE], ["h100 (1)", "mac (2)"])
    assert [(one["from"], one["to"]) for one in found] == [("h100 (1)", "mac (2)")]
    assert transfers([THERE], ["h100"]) == [], "it replayed nothing"


def test_helped_is_kept_or_better_by_more_than_noise():
    rows = {row.number: row for row in THERE.rows}
    assert [helped(rows[n], THERE) for n in range(1, 6)] == [True, False, False, False, True]
    # Two standard errors of a difference are 0.028 bpb.
    for score, clear in ((1.99, False), (1.96, True)):
        run = run_of("x", experiment(0, "keep", 2.0), experiment(1, "discard", score))
        assert helped(run.rows[1], run) is clear
        assert not helped(run.rows[1], replace(run, spread=None))


def test_the_comparison_prints_the_table():
    text = compare_text.text(compare_text.sections(compare.document([THERE, HERE])))
    _, _, part = text.partition("carried over from h100 to mac\n")
    lines = part.splitlines()
    assert lines[:4] == [
        "4 of 5 experiments were carried over, 1 of them only in part: these are not counted below",
        "helped (kept, or better by more than noise) on both 0, on h100 alone 1, on mac alone 1, on neither 1",
        "the same sign in 2 of 3 (sign test, p 1)",
        "rank correlation of the effects -0.50 (n 3, p 1, all orders)",
    ]
    assert [line.split() for line in lines[4:7]] == [
        "h100 verdict effect mac verdict effect helped on what was tried".split(),
        "#1 keep +5.00 % #1 discard -10.00 % h100 idea 1".split(),
        "#2 withdrawn +2.00 % #2 keep +3.33 % mac idea 2".split(),
    ]
    assert "in part" in lines[8]
    assert lines[9:13] == [
        "",
        "not carried over from h100 to mac",
        "    verdict  what was tried  why not",
        "#4  crash    idea 4          its code: it was written for another backend, cuda",
    ]


def test_a_search_without_replays_prints_none():
    assert "carried over" not in compare_text.text(compare_text.sections(compare.document([THERE])))
