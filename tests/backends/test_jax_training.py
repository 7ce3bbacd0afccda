"""The JAX train.py under the real harness: what compiles when, several devices, and whole measurements."""

import re
from dataclasses import replace

import jax
import jax_harness as harness
import numpy as np
import pytest

from autoresearch.core.constants import set_constants
from autoresearch.core.executor import LocalExecutor
from autoresearch.core.experiment import ExperimentRun

SMALL = {
    "DEPTH": 2,
    "ASPECT_RATIO": 16,
    "HEAD_DIM": 16,
    "WINDOW_PATTERN": "SL",
    "TOTAL_BATCH_SIZE": 16 * 64,
    "DEVICE_BATCH_ROWS": 8,
}


@pytest.fixture(scope="module")
def trace():
    return harness.train(harness.load())[0]


def compiled_on_the_clock(monkeypatch, *faults):
    """Names of what was compiled after the first real batch was drawn."""
    found = []
    run = []

    def note(event, seconds, **facts):
        if event.endswith("/backend_compile_duration") and run and run[0].clock.started:
            found.append(facts.get("fun_name", event))

    original = ExperimentRun.batches

    def batches(self, *args):
        run.append(self)
        return original(self, *args)

    monkeypatch.setattr(ExperimentRun, "batches", batches)
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        harness.train(harness.load(*faults), steps=4)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert run
    return found


def test_nothing_compiles_on_the_clock(monkeypatch):
    assert compiled_on_the_clock(monkeypatch) == []


def test_a_step_that_compiles_again_is_seen(monkeypatch):
    """A start of weak type, which a step makes strong."""
    again = compiled_on_the_clock(monkeypatch, ("X0_LAMBDA_INIT, jnp.float32)", "X0_LAMBDA_INIT)"))
    assert again == ["jit(take_step)"]


def test_rows_that_do_not_divide_are_computed_on_every_device(trace):
    losses = harness.train(harness.load(DEVICE_BATCH_ROWS=2), info=harness.device_info(count=4))[0]
    np.testing.assert_allclose(losses, trace, rtol=1e-4)


def test_the_shares_of_all_devices_are_trained_on(trace):
    """A gradient of one device's rows alone, the fault of data parallelism."""
    fault = ("loss_and_grads(params, *batch)", "loss_and_grads(params, *(x[:1] for x in batch))")
    losses = harness.train(harness.load(fault))[0]
    assert np.abs(losses / trace - 1).max() > 1e-3


@pytest.fixture(scope="module")
def cpu():
    """What describe finds for two devices; one child process for all tests."""
    return LocalExecutor().describe("jax", "cpu")


@pytest.fixture
def jax_lab(lab, cpu, monkeypatch):
    """Real measurements with the JAX backend, compiled quickly rather than well, on a given number of devices."""

    def on(devices, executor=None):
        flags = f"--xla_backend_optimization_level=0 --xla_force_host_platform_device_count={devices}"
        monkeypatch.setenv("XLA_FLAGS", flags)
        lab._device = replace(cpu, count=devices)
        lab.executor = executor or LocalExecutor()
        return lab

    return on


SOURCE = set_constants(harness.SOURCE, SMALL)


def test_four_devices_train_as_one_does(jax_lab):
    """Whole measurements in processes of their own."""
    one, four = (jax_lab(devices).result(SOURCE) for devices in (1, 4))
    assert one.status == four.status == "ok", (one.reason, four.reason)
    losses = [np.array([loss for _, loss in result.loss_curve]) for result in (one, four)]
    assert len(losses[0]) == 20
    assert losses[0][-1] < losses[0][0] - 0.3
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert four.val_bpb == pytest.approx(one.val_bpb, rel=1e-4)
    assert one.num_params == four.num_params
    assert one.facts["depth"] == 2


def test_a_second_measurement_finds_what_the_first_compiled(jax_lab, tmp_path):
    """In the run's folder, where the guard lets the framework write, and the candidate not."""
    lab = jax_lab(1, LocalExecutor(tmp_path / "run"))
    kept = tmp_path / "run" / "compile" / "jax"
    assert lab.result(SOURCE).status == "ok"
    first = sorted(path.name for path in kept.iterdir())
    assert any("take_step" in name for name in first)
    other = SOURCE.replace("MATRIX_LR = 0.04", "MATRIX_LR = 0.02")
    assert other != SOURCE
    assert lab.result(other, seed=2).status == "ok"
    assert sorted(path.name for path in kept.iterdir()) == first


def test_a_model_that_sees_the_future_is_caught(jax_lab):
    call = "attend(q, k, v, window)"
    assert call in SOURCE
    leaky = SOURCE.replace(call, "jax.nn.dot_product_attention(q, k, v)")
    jax_lab(1).fails(leaky, "invalid", "causality: later tokens change earlier scores")


def test_an_error_names_the_line_of_the_candidate(jax_lab):
    broken = SOURCE.replace("x + mlp(", "x @ mlp(")
    line = next(n for n, text in enumerate(broken.splitlines(), 1) if "x @ mlp(" in text)
    jax_lab(1).fails(broken, "crash", re.escape(f"(train.py line {line})"))
