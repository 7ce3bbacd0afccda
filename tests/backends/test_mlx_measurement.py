"""Real measurements of the MLX train.py: a child process, its guard, its clock and its probes."""

import mlx_harness as harness
import pytest

from autoresearch.core.constants import set_constants
from autoresearch.core.executor import LocalExecutor

TINY = {"DEPTH": 2, "ASPECT_RATIO": 32, "HEAD_DIM": 16, "TOTAL_BATCH_SIZE": 1024, "DEVICE_BATCH_ROWS": 8}


@pytest.fixture(scope="session")
def device():
    return LocalExecutor().describe("mlx", "cpu")


def source(*faults, **values):
    text = set_constants(harness.SOURCE, {**TINY, **values})
    for old, new in faults:
        assert old in text, f"the planted fault no longer fits train.py: {old!r}"
        text = text.replace(old, new)
    return text


def test_it_is_trained_and_scored(lab):
    measured = lab.measure(source(WINDOW_PATTERN="SL"))
    result = measured.result
    assert result.status == "ok", result.reason
    assert (result.steps, result.tokens) == (20, 20 * 1024)
    assert result.facts["depth"] == 2
    assert result.val_bpb < 5.0
    assert abs(measured.audit["test_bpb"] - result.val_bpb) < 0.5
    assert result.num_params > 100_000
    assert result.mfu > 0
    first, last = (loss for _, loss in (result.loss_curve[0], result.loss_curve[-1]))
    assert last < first - 0.5


@pytest.mark.parametrize(
    "fault",
    [('str = "causal"', "str | None = None"), ("(before >= 0) & (before <= window)", "abs(before) <= window")],
    ids=lambda fault: fault[1],
)
def test_a_model_that_sees_the_future_is_invalid(lab, fault):
    """No mask at all is the default of MLX's fast attention."""
    lab.fails(source(fault, WINDOW_PATTERN="S"), "invalid", "causality: later tokens change earlier scores")


def test_steps_that_are_never_evaluated_overrun_the_budget(lab, quick):
    """A lazy graph grows in no time; the clock stops when all of it is computed."""
    lazy = ("mx.async_eval(loss, state)\n            experiment.log(loss)", "experiment.log(0.0)")
    lab.fails(source(lazy), "timeout", "training took more than", train_seconds=1.0, train_steps=0)
