"""The rows at the foot of a terminal, for every size of it."""

from datetime import UTC, datetime, timedelta

import pytest
from rich.cells import cell_len

from autoresearch.core.interval import Interval
from autoresearch.core.records import Counts
from autoresearch.core.standing import Limit, Standing
from autoresearch.report.panel import ASCII, UNICODE, Doing, duration, flow, measuring, rows, sparkline

STEP = {
    "event": "progress",
    "progress": 0.25,
    "step": 231,
    "loss": 3.1234,
    "tokens_per_second": 45678.2,
    "seconds": 100.0,
}
DOING = measuring(
    STEP, "#13 halve the batch: more steps in the same time, and wide characters: 学习率减半 " + "x" * 300
)


def standing(**changes) -> Standing:
    now = datetime.now(UTC)
    limits = (
        Limit("--max-experiments", "experiments", 8, now + timedelta(minutes=40, seconds=5)),
        Limit("--max-hours", "seconds", 0, now + timedelta(minutes=72, seconds=5)),
        Limit("--until 07:30", "seconds", 0, now + timedelta(hours=6, seconds=5)),
        Limit("--max-cost", "dollars", 3.77, now + timedelta(hours=2, seconds=5)),
        Limit("[caps] day_usd", "dollars", 1.77, None),
        Limit("--target 1.1", "bpb", 0.0924, None),
    )
    gain = Interval(0.0809, 0.0509, 0.1109, 4)
    counts = Counts(12, 14, 4, 7, 1)
    values = {"best_so_far": (1.27, 1.25, 1.2, 1.19), "cost_usd": 1.23, "limits": limits, "gain": gain}
    return Standing(**{"counts": counts, "baseline": 1.2733, "best": 1.1924, "best_number": 8, **values, **changes})


def shown(width: int, height: int, doing=DOING, at=None, signs=UNICODE) -> list[str]:
    return [row.plain for row in rows(doing, at or standing(), width, height, signs)]


@pytest.mark.parametrize("width", [1, 8, 20, 40, 61, 80, 120, 400])
@pytest.mark.parametrize("height", [1, 3, 10, 24, 60])
def test_it_fits_whatever_the_size(width, height):
    for doing in (None, DOING, Doing("waiting", 3.0)):
        found = shown(width, height, doing)
        assert len(found) <= max(1, height // 2), "the lines above keep half of the terminal"
        assert all(cell_len(row) <= max(8, width) for row in found)
        assert not any("\n" in row or "\r" in row for row in found)


def test_everything_is_there_where_there_is_room():
    assert shown(100, 40, measuring(STEP, "#13 an idea")) == [
        "⠋ #13 an idea",
        "━━━━╌╌╌╌╌╌╌╌╌╌╌╌ 25% · 5 min left · step 231 · loss 3.123 · 45,678 tokens/s",
        "best 1.1924 bpb (#8) · gain 0.0809 ± 0.0300 (95 %) · baseline 1.2733 · █▆▂▁",
        "12 experiments · 4 kept · 7 discarded · 1 failed · $1.23 spent",
        "8 experiments left, ~40 min · 1 h 12 min left (--max-hours) · 6 h left (--until 07:30)",
        "$3.77 left (--max-cost), ~2 h · $1.77 left ([caps] day_usd) · 0.0924 bpb to --target 1.1",
    ]


def test_what_matters_most_stays_on_a_small_terminal():
    text = "\n".join(shown(40, 10))
    assert "25%" in text
    assert "5 min left" in text
    assert "45,678 tokens/s" in text
    assert "best 1.1924 bpb (#8)" in text
    assert "gain 0.0809 ± 0.0300 (95 %)" in text
    assert "experiments left" not in text
    assert "#13 halve the batch" in "\n".join(shown(40, 24))


def test_signs_of_a_terminal_without_unicode():
    assert "".join(shown(100, 40, measuring(STEP, "#13 an idea"), signs=ASCII)).isascii()


def test_what_is_known_of_a_measurement():
    assert measuring({}, "t").facts == measuring({"event": "started"}, "t").facts == ("set-up",)
    assert measuring({"event": "clock_start"}, "t") == Doing("t", share=0.0, facts=("training",))
    assert measuring({"event": "clock_stop"}, "t") == Doing("t", share=1.0, facts=("scoring",))
    assert measuring({**STEP, "progress": 0.0}, "t").facts[0] == "step 231", "no time is told from nothing"
    assert measuring({**STEP, "progress": 1.7}, "t").share == 1.0
    assert shown(60, 40, Doing("t", 75.0, None, ("set-up",)))[1] == "set-up · 75 s"


def test_where_there_is_nothing_to_compare():
    assert "best 1.2733 bpb, the baseline" in shown(60, 40, at=standing(best=1.2733, best_number=0, gain=None))
    text = "\n".join(shown(80, 40, at=standing(baseline=None, gain=None)))
    assert "the baseline is another machine's" in text
    assert "gain" not in text
    assert not any("best" in row for row in shown(60, 40, at=standing(best=None)))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (99, "99 s"),
        (100, "2 min"),
        (3590, "1 h"),
        (3900, "1 h 5 min"),
        (172800, "2 d 0 h"),
        (1e6, "11 d 13 h"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_sparklines():
    assert sparkline([], 10, "_#") == ""
    assert sparkline([3.0], 10, "_#") == "_"
    assert sparkline([3.0, 3.0], 10, "_#") == "__"
    assert sparkline([2.0, 1.5, 1.0], 10, "_-#") == "#-_"
    many = [2.0 - n / 5000 for n in range(5000)]
    assert sparkline(many, 8, "▁▂▃▄▅▆▇█") == "█▇▆▅▄▃▂▁"
    assert len(sparkline(many, 7, "_#")) == 7
    assert sparkline([2.0] * 99 + [1.0], 10, "_#") == "#########_", "the last value is always shown"


def test_facts_flow():
    assert flow(["aa", "bb", "cc"], 9, UNICODE) == ["aa · bb", "cc"]
    assert flow(["a" * 20, "b"], 8, UNICODE) == ["aaaaaaa…", "b"]
    assert flow(["学习率减半"], 6, UNICODE) == ["学习…"]
    assert flow([], 8, UNICODE) == []
