"""What is MLX's own in training: bfloat16 tables, a lazy graph that fits in memory, compiled steps, the collector."""

import contextlib
import gc
import shutil

import mlx_harness as harness
import numpy as np
import pytest

mx = harness.mx


def test_moments_are_float32():
    module = harness.load()
    gpt = harness.model(module, dtype="bfloat16")
    moments = module.MuonAdamW(gpt, harness.device_info("bfloat16")).moments
    assert {m.dtype for group in moments for pair in group for m in pair} == {mx.float32}


def lost_gradient(module, tokens=4096):
    """Error of the gradient of a bfloat16 table whose one row is taken `tokens` times, relative."""
    table = mx.zeros((2, 4), mx.bfloat16)
    taken = mx.zeros((1, tokens), mx.int32)
    grad = mx.grad(lambda table: module.embedding(taken, table).astype(mx.float32).sum())(table)
    assert grad.dtype == mx.bfloat16
    return abs(float(grad[0, 0].astype(mx.float32)) - tokens) / tokens


def test_the_gradient_of_a_frequent_token_adds_up_in_bfloat16_tables():
    assert lost_gradient(harness.load()) < 0.01
    assert lost_gradient(harness.load(("table.astype(mx.float32)[tokens]", "table[tokens]"))) > 0.5


@pytest.mark.parametrize("fault", [[], [("rates(step, experiment.progress)", "rates(1 // step, 0.0)")]])
def test_the_garbage_collector_is_put_back(fault):
    """Also after a crash in the first real step, whose number is 0."""
    with pytest.raises(ZeroDivisionError) if fault else contextlib.nullcontext():
        harness.train(harness.load(*fault), steps=2)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def peak_memory(module, rows):
    """Peak of MLX's allocations in two steps of 32 rows, as a share of that with all rows at once."""
    peaks = []
    for size in (32, rows):
        module.DEVICE_BATCH_ROWS = size
        mx.reset_peak_memory()
        held = mx.get_active_memory()
        harness.train(module, steps=2)
        peaks.append(mx.get_peak_memory() - held)
    return peaks[1] / peaks[0]


def test_smaller_micro_batches_take_less_memory():
    total = {"TOTAL_BATCH_SIZE": 32 * harness.SEQ_LEN}
    assert peak_memory(harness.load(**total), 4) < 0.4
    together = ("mx.depends(x, list(grads.values()))", "x")
    assert peak_memory(harness.load(together, **total), 4) > 0.6


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="MLX compiles for a processor with g++")
def test_compiled_equals_eager_and_is_traced_once(monkeypatch, tmp_path):
    """Also without state as inputs and outputs, which would be the weights of the first step for ever."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    small = {"DEPTH": 1, "TOTAL_BATCH_SIZE": 4 * harness.SEQ_LEN}
    eager = harness.train(harness.load(**small))[0]
    module, traced = harness.load(**small), []
    mean_loss = module.mean_loss
    module.mean_loss = lambda *args: traced.append(args) or mean_loss(*args)
    losses = harness.train(module, info=harness.device_info(compile=True))[0]
    np.testing.assert_allclose(losses, eager, rtol=1e-4)
    assert len(traced) == 1, "in the warm-up"
