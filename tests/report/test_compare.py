"""Searches side by side: what is ranked, what is refused, and the numbers in between."""

import io
import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from autoresearch.core.history import History
from autoresearch.core.interval import t_quantile, welch
from autoresearch.core.runs import SavedRun
from autoresearch.report import compare, compare_page, compare_text
from autoresearch.report.trajectory import Row, Trajectory, of_run


def experiment(n: int, verdict: str, *scores: float | None, key: str = "k", **more) -> list[dict]:
    """The events of one; a score of None is a measurement that failed."""
    values = {"DEPTH": 8, "LR": 0.1, **more.pop("constants", {})}
    rates = more.pop("rates", [1000.0] * len(scores))
    told = {"hypothesis": f"idea {n}", "category": more.pop("category", "size"), "constants": values, "diff_lines": 2}
    events: list[dict] = [
        {"event": "proposed", "n": n, "blob": "", "normalized_hash": str(n), "parent": 0 if n else None, **told},
        {"event": "committed", "n": n, "commit": f"{n}" * 40},
    ]
    for k, score in enumerate(scores):
        status = {"status": "ok" if score is not None else verdict, "val_bpb": score, "comparability_key": key}
        speed = {"steps": 100, "tokens": 6400, "tokens_per_second": rates[k], "total_seconds": 1800.0}
        events.append({"event": "started", "n": n, "k": k, "seed": k})
        events.append({"event": "measured", "n": n, "k": k, "result": {**status, **speed}})
    worth = {"value": scores[0], "value_n": 1} if verdict == "keep" else {"value": None, "value_n": 0}
    decided = {"val_bpb": scores[0], **worth, **more}
    return [*events, {"event": "decided", "n": n, "verdict": verdict, "reason": "", **decided}]


def run_of(tag: str, *events: list[dict], key: str = "k", backend: str = "null", device: str = "cpu") -> Trajectory:
    settings = {"backend": backend, "preset": "smoke", "rules": {"spread": 0.02, "spread_dof": 4.0}}
    start = {"event": "run", "tag": tag, "comparability_key": key, "settings": settings, "device": {"name": device}}
    history = History.from_events([start, *(event for group in events for event in group)])
    return of_run(SavedRun(tag, Path(tag), None, history))


def table_of(*rows: Row, name: str = "foreign", problems: tuple[str, ...] = ()) -> Trajectory:
    return Trajectory(name, Path(name), rows, problems=problems)


BASELINE = experiment(0, "keep", 2.0)
ONE = run_of(
    "one",
    BASELINE,
    experiment(1, "keep", 1.9, constants={"LR": 0.2}, category="rate"),
    experiment(2, "discard", 2.1, constants={"DEPTH": 9}),
    experiment(3, "crash", None, constants={"DEPTH": 99}),
    [{"event": "refused", "n": 4, "reason": "a duplicate of experiment 1", "hypothesis": "again"}],
    [{"event": "failed", "n": 4, "kind": "outage", "reason": "no answer"}],
)


def test_a_search_in_numbers():
    (run,) = compare.document([ONE])["runs"]
    assert (run["experiments"], run["kept"], run["discarded"], run["failed"]) == (3, 1, 1, 1)
    assert run["rows"] == {"keep": 2, "discard": 1, "crash": 1}
    assert run["gain"] == pytest.approx(0.1)
    assert run["relative_gain"] == pytest.approx(0.05)
    half = t_quantile(0.975, 4) * 0.02 * math.sqrt(2) / 2.0
    assert run["relative_gain_interval"] == {"low": pytest.approx(0.05 - half), "high": pytest.approx(0.05 + half)}
    assert run["hours"] == pytest.approx(2.0), "four measurements of half an hour"
    assert run["gain_per_experiment"] == pytest.approx(0.05 / 3)
    assert run["gain_per_hour"] == pytest.approx(0.025)
    assert run["wasted"] == {
        "failures": {"crash": 1},
        "refused": 1,
        "duplicates": 1,
        "failed_rounds": 1,
        "hours_discarded": pytest.approx(0.5),
        "hours_failed": pytest.approx(0.5),
        "share_of_hours": pytest.approx(0.5),
    }
    assert run["throughput"]["best"]["steps"] == 100
    assert run["throughput"]["drift"] is None, "nothing was measured twice"
    assert [point["experiment"] for point in run["curve"]] == [0, 1, 3]
    assert run["curve"][-1] == {"experiment": 3, "hours": pytest.approx(2.0), "relative_gain": pytest.approx(0.05)}
    assert list(run["categories"]) == ["rate", "size"]


def test_the_drift_of_equal_sources():
    slower = run_of("slower", experiment(0, "keep", 2.0, 2.0, 2.0, rates=[1000, 1200, 900], value_n=3))
    (run,) = compare.document([slower])["runs"]
    assert run["throughput"]["drift"] == {
        "experiments": 1,
        "median": pytest.approx(-0.1),
        "largest": pytest.approx(-0.1),
    }


def test_different_keys_are_never_ranked():
    other = run_of("two", experiment(0, "keep", 1.0, key="other"), key="other", device="gpu")
    foreign = table_of(Row(0, "keep", "baseline", 0.5, True, 0.5))
    found = compare.document([ONE, other, foreign])
    assert found["rankings"] == []
    reasons = {tuple(pair["runs"]): pair["why"] for pair in found["not_ranked"]}
    assert reasons["one", "two"] == ("their comparability keys differ: k and other")
    assert "on what foreign was measured isn't known" in reasons["two", "foreign"]
    text = compare_text.text(compare_text.sections(found))
    assert "not ranked\nforeign, with any: on what it was measured isn't known" in text
    assert "one and two: their comparability keys differ" in text
    assert "is better than" not in text
    alike = run_of("three", BASELINE)
    assert compare.document([ONE, alike])["not_ranked"] == [], "of one key they are"


def test_what_differs_is_named():
    machines = ("t1/cuda/H100 x1", "v1"), ("t1/cuda/A100 x1", "v1"), ("t2/cuda/H100 x1", "v2")
    keys = [f"{machine}/torch 2.9/bfloat16/{version}" for machine, version in machines]
    runs = [run_of(str(n), experiment(0, "keep", 2.0, key=key), key=key) for n, key in enumerate(keys)]
    reasons = {tuple(pair["runs"]): pair["why"] for pair in compare.document(runs)["not_ranked"]}
    assert reasons["0", "1"] == "their comparability keys differ: device H100 x1 and A100 x1"
    assert reasons["0", "2"] == "their comparability keys differ: task t1 and t2, version of the measurement v1 and v2"


def test_two_foreign_tables_are_not_ranked_either():
    rows = (Row(0, "keep", "baseline", 0.5, True, 0.5),)
    found = compare.document([table_of(*rows), table_of(*rows)])
    assert found["rankings"] == [] and len(found["not_ranked"]) == 1
    assert [run["name"] for run in found["runs"]] == ["foreign", "foreign (2)"]


def test_one_key_is_ranked_with_an_interval():
    better = run_of("better", BASELINE, experiment(1, "keep", 1.6))
    (ranking,) = compare.document([ONE, better])["rankings"]
    assert [place["name"] for place in ranking["order"]] == ["better", "one"]
    (step,) = ranking["steps"]
    assert step["lead"]["bpb"] == pytest.approx(0.3)
    # The stated prior's four degrees of freedom count once: neither run measured anything twice.
    assert step["lead"]["dof"] == 4
    assert step["lead"]["low"] == pytest.approx(0.3 - t_quantile(0.975, 4) * 0.02 * math.sqrt(2))
    assert step["clear"] and "n 1 and 1" in step["method"]
    close = run_of("close", BASELINE, experiment(1, "keep", 1.89))
    (ranking,) = compare.document([ONE, close])["rankings"]
    assert not ranking["steps"][0]["clear"]
    assert "close and one can't be told apart" in compare_text.conclusion(compare.document([ONE, close]))[-1]


def test_the_spread_is_that_of_both_runs_together():
    """(4·0.02² + 0.0032 + 0.0128) / (4 + 1 + 1), by the squares of each run's repeated baseline."""
    one = run_of("one", experiment(0, "keep", 2.0, 2.08, value=2.04, value_n=2))
    two = run_of("two", experiment(0, "keep", 1.6, 1.44, value=1.52, value_n=2))
    lead = compare.document([one, two])["rankings"][0]["steps"][0]["lead"]
    spread = math.sqrt((4 * 0.02**2 + 0.0032 + 0.0128) / 6)
    assert lead["bpb"] == pytest.approx(0.52)
    assert lead["dof"] == 6
    assert lead["high"] - lead["bpb"] == pytest.approx(t_quantile(0.975, 6) * spread)  # n 2 and 2: s·√(1/2 + 1/2)


def test_fresh_measurements_of_both_are_compared_by_welch():
    first = [1.90, 1.91, 1.89, 1.92, 1.90, 1.91]
    second = [1.80, 1.81, 1.85, 1.78, 1.80, 1.82]
    one = run_of("one", BASELINE, experiment(1, "keep", 1.5, *first, value=1.905, value_n=6))
    two = run_of("two", BASELINE, experiment(1, "keep", 1.5, *second, value=1.81, value_n=6))
    (ranking,) = compare.document([one, two])["rankings"]
    expected = welch(first, second)
    lead = ranking["steps"][0]["lead"]
    assert ranking["steps"][0]["method"] == "Welch, 6 and 6 fresh measurements", (
        "the score that picked it doesn't count"
    )
    assert (lead["bpb"], lead["low"], lead["high"]) == pytest.approx((expected.mean, expected.low, expected.high))
    fewer = run_of("fewer", BASELINE, experiment(1, "keep", 1.5, *second[:5], value=1.81, value_n=5))
    assert "Welch" not in compare.document([one, fewer])["rankings"][0]["steps"][0]["method"]


def test_constants_and_moves_beside_each_other():
    gpu = {"key": "g"}
    other = run_of(
        "two",
        experiment(0, "keep", 4.0, **gpu),
        experiment(1, "discard", 4.4, constants={"LR": 0.3}, **gpu),
        experiment(2, "keep", 3.8, constants={"DEPTH": 10}, **gpu),
        key="g",
    )
    found = compare.document([ONE, other])
    assert found["constants"]["LR"]["one"]["from"] == 0.1 and found["constants"]["LR"]["one"]["to"] == 0.2
    assert found["constants"]["LR"]["two"]["to"] == 0.1
    assert [move["move"] for move in found["constants"]["DEPTH"]["one"]["moves"]] == ["DEPTH up"]
    (pair,) = found["agreement"]
    assert (pair["n"], pair["note"]) == (2, "n too small: below 3 shared moves nothing is said")
    assert pair["signs"] is None and pair["ranks"] is None
    effects = {move["move"]: (move["first"]["effect"], move["second"]["effect"]) for move in pair["moves"]}
    assert effects == {"LR up": pytest.approx((0.05, -0.1)), "DEPTH up": pytest.approx((-0.05, 0.05))}
    assert all(move["opposed"] for move in pair["moves"])
    text = compare_text.text(compare_text.sections(found))
    assert "0.1 → 0.2, ×2 (up 1/1)" in text
    assert "2 shared: n too small" in text


def test_moves_that_help_here_and_hurt_there():
    def search(tag: str, *gains: float) -> Trajectory:
        moved = [{"DEPTH": 9}, {"LR": 0.2}, {"LR": 0.05}, {"DEPTH": 7}]
        tried = [experiment(n, "discard", 2.0 - gain, constants=moved[n - 1]) for n, gain in enumerate(gains, 1)]
        return run_of(tag, BASELINE, *tried)

    found = compare.document([search("here", 0.3, 0.3, -0.3, 0.001), search("there", -0.3, 0.2, -0.1, -0.001)])
    (pair,) = found["agreement"]
    assert pair["signs"] == {"same": 2, "n": 4, "p": 1.0}
    assert pair["ranks"]["n"] == 4 and pair["ranks"]["exact"]
    assert pair["ranks"]["rho"] == pytest.approx(0.5 / math.sqrt(4.5 * 5)), "ranks 3.5 3.5 1 2, 1 4 2 3"
    assert {move["move"]: (move["opposed"], move["clear"]) for move in pair["moves"]} == {
        "DEPTH up": (True, True),
        "LR up": (False, True),
        "LR down": (False, True),
        "DEPTH down": (True, False),
    }
    text = compare_text.text(compare_text.sections(found))
    assert "the same sign in 2 of 4 (sign test, p 1)" in text
    assert "helped on here, hurt on there\n" in text, "more than two standard errors on both"
    assert "helped on here, hurt on there, within noise\n" in text


def test_hours_by_time_stamps():
    start = datetime(2026, 3, 8, tzinfo=UTC)
    rows = [
        Row(n, "keep", "", 1.0 - n / 10, n == 0, 1.0 - n / 10, decided_at=start + timedelta(hours=n)) for n in range(3)
    ]
    (run,) = compare.document([table_of(*rows)])["runs"]
    assert (run["hours"], [point["hours"] for point in run["curve"]]) == (2.0, [0.0, 1.0, 2.0])
    assert run["gain_per_hour"] == pytest.approx(0.1)


EVIL = "</script><img src=x onerror=alert(1)>[bold red]\x1b[31m"


def evil() -> Trajectory:
    rows = (
        Row(0, "keep", "baseline", 1.0, True, 1.0),
        Row(1, "keep", EVIL, 0.9, value=0.9, gain=0.1, category=EVIL, parent=0),
    )
    return table_of(*rows, name=EVIL, problems=(f"line 7: unknown status {EVIL!r}",))


def test_the_page_escapes_everything():
    page = compare_page.html(compare.document([evil(), ONE]))
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    data = page.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    traces = json.loads(data)["figures"]["experiment"]["traces"]
    assert [trace["x"] for trace in traces] == [[0, 1], [0, 1, 3]]
    assert traces[1]["y"] == [0.0, pytest.approx(5.0), pytest.approx(5.0)]
    assert "<" not in traces[0]["name"], "legends read markup"
    hours = json.loads(data)["figures"]["hours"]["traces"]
    assert [trace["name"] for trace in hours] == ["one"], "of the table no times are known"


@pytest.mark.parametrize("count", [0, 1, 2])
def test_searches_that_have_hardly_begun(count):
    """Nothing decided, a baseline alone, a baseline that crashed."""
    events = [[], [BASELINE], [experiment(0, "crash", None)]][count]
    found = compare.document([run_of("young", *events), ONE])
    json.dumps(found, allow_nan=False)
    text = compare_text.text(compare_text.sections(found))
    assert ("no baseline to measure a gain from" in text) == (count != 1)
    assert ("nothing beat the baseline's 2.000000 bpb in 0 experiments" in text) == (count == 1)
    assert compare_page.html(found)


def test_a_terminal_shows_tables_and_a_pipe_lines():
    parts = compare_text.sections(compare.document([evil(), ONE]))
    pipe = io.StringIO()
    compare_text.show(parts, pipe)
    assert "\r" not in pipe.getvalue()
    assert pipe.getvalue() == compare_text.text(parts) + "\n"
    lines = compare_text.text(parts).splitlines()
    start = lines.index("side by side") + 1
    assert len({len(line[: line.index("null")]) for line in lines[start : start + 20] if line.endswith("null")}) == 1


def test_markup_in_a_terminal_stays_text(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = Terminal()
    assert Console(file=screen).is_terminal
    compare_text.show(compare_text.sections(compare.document([evil()])), screen)
    assert "[bold" in screen.getvalue(), "no style, but what the table says"
    assert "\x1b[31m" not in screen.getvalue()
