"""The history is what the events of a journal add up to, or an error; results.tsv is its export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoresearch.core.contract import Result
from autoresearch.core.errors import DataError
from autoresearch.core.history import History
from autoresearch.core.journal import Journal, export_results


def proposed(n: int, **changes: Any) -> dict[str, Any]:
    values = {
        "event": "proposed",
        "n": n,
        "blob": f"{n:x}" * 40,
        "hypothesis": f"idea {n}",
        "category": "model",
        "proposer": "script",
        "origin": f"{n}.py",
        "source_hash": f"s{n}",
        "normalized_hash": f"n{n}",
        "constants": {"DEPTH": n},
        "diff_lines": n,
        "parent": None if n == 0 else 0,
    }
    return {**values, **changes}


def measured(
    n: int, k: int = 0, val_bpb: float | None = 1.5, status: str = "ok", memory: int = 0
) -> list[dict[str, Any]]:
    result = Result(status=status, val_bpb=val_bpb, seed=k, peak_memory_bytes=memory, loss_curve=((0.5, 2.0),))  # type: ignore[arg-type]
    return [
        {"event": "started", "n": n, "k": k, "seed": 7, "mark": "first"},
        {"event": "measured", "n": n, "k": k, "result": result.to_json()},
    ]


def life(n: int, verdict: str, val_bpb: float | None = 1.5, **changes: Any) -> list[dict[str, Any]]:
    status = "ok" if verdict in ("keep", "discard") else verdict
    return [
        proposed(n, **changes),
        {"event": "committed", "n": n, "commit": f"{n:x}" * 40},
        *measured(n, val_bpb=val_bpb, status=status, memory=(n + 1) * 2**30),
        {"event": "decided", "n": n, "verdict": verdict, "reason": f"because {n}", "val_bpb": val_bpb},
    ]


RUN = {"event": "run", "tag": "t", "settings": {"preset": "p"}, "comparability_key": "key", "device": {}}
FINISHED = [
    RUN,
    *life(0, "keep", 2.0),
    *life(1, "keep", 1.9),
    *life(2, "discard", 1.95),
    *life(3, "timeout", None),
    *life(4, "keep", 1.8),
    *life(5, "out_of_memory", None),
]


def test_history_of_a_run() -> None:
    history = History.from_events(
        [
            *FINISHED,
            {
                "event": "refused",
                "n": 6,
                "reason": "duplicate",
                "hypothesis": "again",
                "origin": "x.py",
                "cost_usd": 0.25,
            },
            {
                "event": "call",
                "id": "c",
                "n": 6,
                "agent": "claude",
                "worst_usd": 0.5,
                "time": "2026-11-30T22:00:00+00:00",
            },
            {"event": "charged", "id": "c", "usd": 0.25, "outcome": "end_turn"},
            {"event": "something of a later version", "n": 99},
            {"event": "stopped", "reason": "the proposals are used up"},
        ]
    )
    assert (history.settings, history.comparability_key) == ({"preset": "p"}, "key")
    assert history.counts == (5, 5, 2, 1, 2)
    assert history.incumbent is not None and history.incumbent.number == 4
    assert history.pending is None
    assert history.next_number == 6
    assert history.stop_reason == "the proposals are used up"
    assert history.origins == {"0.py", "1.py", "2.py", "3.py", "4.py", "5.py", "x.py"}
    assert history.refusals == [(6, "duplicate", "again", "x.py", "")]
    assert history.cost_usd == 0.25
    record = history.experiments[1]
    assert (record.blob, record.commit, record.hypothesis, record.category) == ("1" * 40, "1" * 40, "idea 1", "model")
    assert (record.proposer, record.origin, record.constants, record.parent) == ("script", "1.py", {"DEPTH": 1}, 0)
    assert (record.verdict, record.reason, record.val_bpb) == ("keep", "because 1", 1.9)
    assert record.results[0] == Result(
        status="ok", val_bpb=1.9, peak_memory_bytes=2 * 2**30, loss_curve=((0.5, 2.0),), seed=0
    )


def test_history_survives_the_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    for event in FINISHED:
        journal.append(**event)
    assert History.from_events(journal.read()).experiments == History.from_events(FINISHED).experiments


def test_a_withdrawn_keep_gives_the_place_back_to_the_one_before() -> None:
    withdrawn = {"event": "withdrawn", "n": 4, "reason": "worse with fresh seeds"}
    history = History.from_events([*FINISHED, *measured(4, k=1), withdrawn])
    assert history.incumbent is not None and history.incumbent.number == 1
    assert history.experiments[4].withdrawn == "worse with fresh seeds"
    assert history.counts == (5, 6, 1, 2, 2)
    later = History.from_events([*FINISHED, *measured(4, k=1), withdrawn, *life(6, "keep", 1.7)])
    assert later.incumbent is not None and later.incumbent.number == 6


def test_the_value_of_a_keep_is_its_score_until_something_else_is_said() -> None:
    anchored = {"event": "anchored", "n": 4, "value": 1.83, "value_n": 2}
    records = History.from_events(FINISHED).experiments
    assert (records[4].value, records[4].value_n) == (1.8, 1)
    records = History.from_events([*FINISHED, anchored]).experiments
    assert (records[4].val_bpb, records[4].value, records[4].value_n) == (1.8, 1.83, 2)


@pytest.mark.parametrize(
    ("length", "commit", "unfinished_k", "results"),
    [(1, "", None, 0), (2, "1" * 40, None, 0), (3, "1" * 40, 0, 0), (4, "1" * 40, None, 1)],
)
def test_a_pending_experiment_says_what_it_lacks(
    length: int, commit: str, unfinished_k: int | None, results: int
) -> None:
    history = History.from_events([RUN, *life(0, "keep"), *life(1, "keep")[:length]])
    pending = history.pending
    assert pending is not None and pending.number == 1
    assert pending.commit == commit
    assert (pending.unfinished.k if pending.unfinished else None) == unfinished_k
    assert len(pending.results) == results
    assert history.counts.experiments == 0
    assert history.incumbent is not None and history.incumbent.number == 0


def test_a_measurement_that_was_cut_off_starts_again_with_the_same_k() -> None:
    first, last = measured(0)
    again = {**first, "mark": "second"}
    history = History.from_events([RUN, proposed(0), first, {"event": "resumed", "comparability_key": "other"}, again])
    assert history.pending is not None and history.pending.unfinished == (0, 7, "second")
    assert history.comparability_key == "other"
    history.apply(last)
    assert len(history.experiments[0].results) == 1


def test_resuming_clears_the_stop() -> None:
    stopped = {"event": "stopped", "reason": "interrupted"}
    assert History.from_events([RUN, stopped]).stop_reason == "interrupted"
    assert History.from_events([RUN, stopped, {"event": "resumed"}]).stop_reason == ""


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (measured(0)[1:], "line 2, measured .* never proposed"),
        ([proposed(0), measured(0)[1]], "line 3, measured .* not started"),
        ([proposed(0), *measured(0), *measured(0)], "line 5, started with k = 0 .* has 1 result"),
        ([*life(0, "keep"), life(0, "keep")[-1]], "line 7, decided a second time"),
        ([proposed(0), proposed(1)], "line 3, proposed .* while experiment 0 is undecided"),
        ([*life(0, "keep"), proposed(0)], "line 7, proposed of experiment 0 after experiment 0"),
        ([*life(0, "discard"), {"event": "withdrawn", "n": 0, "reason": ""}], "line 7, withdrawn .* not kept"),
        (
            [*life(0, "keep")[:-1], {"event": "decided", "n": 0, "verdict": "maybe"}],
            "line 6, .* unknown verdict 'maybe'",
        ),
        ([{"event": "refused", "n": 0, "reason": ""}, RUN], "line 3, run comes a second time"),
        ([{"event": "proposed", "n": 0}], "line 2, proposed lacks the field 'blob'"),
        ([{"event": "committed", "n": 3, "commit": "c"}], "line 2, committed .* never proposed"),
    ],
)
def test_impossible_sequences_name_the_line(events: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        History.from_events([RUN, *events])


# results.tsv


def test_results_in_the_format_of_the_original(tmp_path: Path) -> None:
    events = [*FINISHED, {"event": "withdrawn", "n": 4, "reason": "noise"}, proposed(6)]
    path = tmp_path / "results.tsv"
    export_results(History.from_events(events), path)
    assert path.read_text().splitlines() == [
        "commit\tval_bpb\tmemory_gb\tstatus\tdescription",
        "0000000\t2.000000\t1.0\tkeep\tidea 0",
        "1111111\t1.900000\t2.0\tkeep\tidea 1",
        "2222222\t1.950000\t3.0\tdiscard\tidea 2",
        "3333333\t0.000000\t0.0\tcrash\ttimeout: idea 3",
        "4444444\t1.800000\t5.0\tdiscard\twithdrawn: idea 4",
        "5555555\t0.000000\t0.0\tcrash\tout_of_memory: idea 5",
    ]
    assert path.read_text().endswith("\n")


def test_a_description_stays_in_its_cell(tmp_path: Path) -> None:
    text = '"quoted\ttab\r\nline\u2028\x1b[31m\x00 \u202e\udc80 é中🙂  end'
    path = tmp_path / "results.tsv"
    export_results(History.from_events([RUN, *life(0, "keep", hypothesis=text)]), path)
    header, row = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert row.split("\t") == ["0000000", "1.500000", "1.0", "keep", "'quoted tab line [31m é中🙂 end"]
    assert len(row.split("\t")) == len(header.split("\t"))
