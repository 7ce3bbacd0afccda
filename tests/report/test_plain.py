"""What a search shows, line by line."""

import io

import pytest

from autoresearch.core.view import Outcome
from autoresearch.report import plain
from autoresearch.report.plain import PlainView, outcome_line
from autoresearch.report.terminal import make_view

PROGRESS = {"event": "progress", "progress": 0.25, "step": 7, "loss": 2.5, "tokens_per_second": 12345.6}
KEEP = Outcome(12, "keep", 1.23456, -0.01, 45.04, "halve the batch: more steps")
FAILED = Outcome(3, "out_of_memory", None, None, 1.0, "a wider model", "12.0 GB were asked for")


def test_one_line_an_experiment():
    assert outcome_line(KEEP) == "#12  keep          1.2346 bpb -0.0100   45.0 s  halve the batch: more steps"
    assert outcome_line(FAILED) == (
        "#3   out of memory      - bpb            1.0 s  a wider model: 12.0 GB were asked for"
    )
    columns = {outcome_line(outcome).index(" s  ") for outcome in (KEEP, FAILED)}
    assert len(columns) == 1, "what was tried begins in the same column"


def test_a_line_is_cut_where_it_does_not_fit():
    long = Outcome(1, "keep", 1.0, -0.1, 1.0, "a hypothesis of many words " * 9)
    assert len(outcome_line(long, 100)) == 100
    assert outcome_line(long, 100).endswith("…")
    failed = Outcome(1, "crash", None, None, 1.0, "a hypothesis of many words " * 9, "ValueError: boom")
    assert outcome_line(failed, 100).endswith("…: ValueError: boom"), "why it failed is always told"
    assert outcome_line(KEEP, 100) == outcome_line(KEEP)


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(plain, "_now", lambda: now[0])
    return now


def test_plain_lines_are_rare(clock):
    stream = io.StringIO()
    view = PlainView(stream)
    view.stage("encoding", 0.5)
    view.begin("#1 an idea")
    for seconds in range(40):
        clock[0] += 1
        view.event({**PROGRESS, "step": seconds})
    view.detail("why")
    view.decided(KEEP)
    view.begin("#2 a quick one")
    view.event({"event": "clock_start"})
    view.decided(KEEP)
    assert stream.getvalue().splitlines() == [
        "  #1 an idea",
        "  training 25%, step 14, loss 2.500, 12,346 tokens/s",
        "  training 25%, step 29, loss 2.500, 12,346 tokens/s",
        outcome_line(KEEP),
        outcome_line(KEEP),
    ]


def test_verbose_plain_lines(clock):
    stream = io.StringIO()
    view = PlainView(stream, verbose=True)
    view.stage("encoding", 0.5)
    view.stage("packing", 0.0)
    view.detail("dtype float32: the only one")
    view.begin("#1 an idea")
    for event in ({"event": "started"}, {"event": "clock_start"}, PROGRESS, {"event": "rows", "rows": 3}):
        view.event(event)
    assert stream.getvalue().splitlines() == [
        "  encoding 50%",
        "  packing",
        "  dtype float32: the only one",
        "  #1 an idea",
        "  set-up",
        "  training",
        "  training 25%, step 7, loss 2.500, 12,346 tokens/s",
    ]


def test_a_halved_batch_is_always_told(clock):
    stream = io.StringIO()
    PlainView(stream).event({"event": "halved", "max_rows": 8, "reason": ""})
    assert stream.getvalue() == "  out of memory: again with 8 rows in a micro-batch, the same total batch\n"


def test_a_stream_that_is_no_terminal():
    assert isinstance(make_view(io.StringIO()), PlainView)
