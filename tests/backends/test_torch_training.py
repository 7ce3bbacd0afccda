"""The PyTorch train.py under the real harness: what changes its loss trace, and what must not."""

import contextlib
import gc
import re
import shutil

import numpy as np
import pytest
import torch_harness as harness

from autoresearch.backends import cuda_torch
from autoresearch.core import task
from autoresearch.core.candidate import lint
from autoresearch.core.constants import Choices, Range, constants, set_constants

WARM_UP = "take_step(1, 0.0, *experiment.dummy_batch(rows, accumulation))"
# Another value for each constant; the batch shape has a test of its own.
OTHER = {
    "DEPTH": 3,
    "ASPECT_RATIO": 24,
    "HEAD_DIM": 32,
    "KV_GROUP": 2,
    "WINDOW_PATTERN": "L",
    "SHORT_WINDOW_DIVISOR": 8,
    "ROTARY_BASE": 1000,
    "SOFTCAP": 5.0,
    "NORM_EPS": 1e-2,
    "INIT_SCALE": 0.7,
    "X0_LAMBDA_INIT": 0.2,
    "TOTAL_BATCH_SIZE": 4 * harness.SEQ_LEN,
    "EMBEDDING_LR": 0.3,
    "EMBEDDING_DECAY": 0.1,
    "VALUE_EMBEDDING_LR": 0.3,
    "VALUE_EMBEDDING_DECAY": 0.1,
    "HEAD_LR": 0.002,
    "HEAD_DECAY": 0.1,
    "MATRIX_LR": 0.02,
    "MATRIX_DECAY": 0.1,
    "SCALAR_LR": 0.25,
    "ADAM_BETA1": 0.7,
    "ADAM_BETA2": 0.9,
    "X0_BETA1": 0.9,
    "MUON_BETA2": 0.9,
    "WARMDOWN_RATIO": 0.9,
    "FINAL_LR_FRAC": 0.2,
    "MOMENTUM_RAMP_STEPS": 5,
}


@pytest.fixture(scope="module")
def trace():
    return harness.train(harness.load())[0]


def dead_constants(names, *faults):
    """Constants whose change leaves the trace as it was."""
    before = harness.train(harness.load(*faults))[0]
    changed = {name: harness.train(harness.load(*faults, **{name: OTHER[name]}))[0] for name in names}
    return {name for name, trace in changed.items() if np.abs(trace - before).max() < 1e-6}


def test_every_constant_changes_the_trace():
    assert OTHER.keys() == constants(harness.SOURCE).keys() - {"DEVICE_BATCH_ROWS"}
    assert dead_constants(OTHER) == set()


def test_dead_constants_are_seen():
    """A schedule that is defined and never called, and a decay that nobody reads."""
    faults = [
        ("group.lr * lr_scale(progress)", "group.lr"),
        ("EMBEDDING_LR * scale, EMBEDDING_DECAY", "EMBEDDING_LR * scale, 0.0"),
    ]
    names = ["WARMDOWN_RATIO", "FINAL_LR_FRAC", "EMBEDDING_DECAY", "HEAD_LR"]
    assert dead_constants(names, *faults) == set(names[:3])


def test_the_trace_depends_on_the_seed_alone(trace):
    np.testing.assert_array_equal(harness.train(harness.load())[0], trace)
    assert np.abs(harness.train(harness.load(), seed=1)[0] - trace).max() > 1e-3


def test_it_learns():
    losses, _, run = harness.train(harness.load(), steps=60)
    assert losses[0] == pytest.approx(np.log(harness.VOCAB), abs=0.05)
    assert losses[-5:].mean() < 3.0
    assert run.facts["depth"] == 4
    assert run.tokens == 60 * 8 * harness.SEQ_LEN


def test_bfloat16_follows_float32(trace):
    losses = harness.train(harness.load(), info=harness.device_info("bfloat16"))[0]
    np.testing.assert_allclose(losses, trace, rtol=0.02)


@pytest.mark.parametrize(("rows", "max_rows"), [(8, 1024), (2, 1024), (1, 1024), (4, 1), (4, 3)])
def test_the_shape_of_micro_batches_does_not_matter(rows, max_rows, trace):
    losses = harness.train(harness.load(DEVICE_BATCH_ROWS=rows), max_rows=max_rows)[0]
    np.testing.assert_allclose(losses, trace, rtol=1e-4)


def test_a_loss_that_forgets_accumulation_is_seen(trace):
    fault = (" / accumulation", "")
    losses = harness.train(harness.load(fault, DEVICE_BATCH_ROWS=4))[0]
    assert np.abs(losses - trace).max() > 1.0


def test_micro_batches_keep_the_total():
    module = harness.load(TOTAL_BATCH_SIZE=6 * 32, DEVICE_BATCH_ROWS=4)
    assert module.micro_batches(32, 1024) == (3, 2)
    assert module.micro_batches(32, 2) == (2, 3)
    assert module.micro_batches(192, 1024) == (1, 1)


@pytest.mark.parametrize("seq_len", [256, 100])
def test_a_total_that_is_no_multiple_of_a_row_is_refused(seq_len):
    module = harness.load(TOTAL_BATCH_SIZE=6 * 32)
    with pytest.raises(ValueError, match=f"TOTAL_BATCH_SIZE = 192 is no multiple of the {seq_len} tokens of a row"):
        module.micro_batches(seq_len, 1024)


def test_the_warm_up_leaves_the_start_as_it_was(trace):
    np.testing.assert_array_equal(harness.train(harness.load((WARM_UP, "pass")))[0], trace)


def test_a_warm_up_that_trains_is_seen(trace):
    assert np.abs(harness.train(harness.load(("tensor.copy_(value)", "pass")))[0] - trace).max() > 1e-3


@pytest.mark.parametrize("fault", [[], [("optimizer.step(step, progress)", "optimizer.step(step, progress / step)")]])
def test_the_garbage_collector_is_put_back(fault):
    """Also after a crash in the first real step, whose number is 0."""
    with pytest.raises(ZeroDivisionError) if fault else contextlib.nullcontext():
        harness.train(harness.load(*fault), steps=2)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_the_file_passes_the_lint_and_stays_readable():
    lint(harness.SOURCE, cuda_torch.ALLOWED_IMPORTS)
    assert len(harness.SOURCE.splitlines()) <= 450
    sections = re.findall(r"^# -+\n# (.+)\n# -+$", harness.SOURCE, re.MULTILINE)
    assert sections == ["Hyper-parameters", "Model", "Optimizer", "Schedules", "Training"]


def test_every_search_range_holds_the_value_of_the_file():
    searched = {name: c for name, c in constants(harness.SOURCE).items() if c.search is not None}
    assert len(searched) >= 20
    for name, constant in searched.items():
        match constant.search:
            case Range(low, high, log, integer):
                assert low <= constant.value <= high, name
                assert type(constant.value) is (int if integer else float), name
                assert not log or low > 0
            case Choices(values):
                assert constant.value in values, name


@pytest.mark.parametrize("preset", task.preset_names())
def test_every_preset_fits_the_file(preset):
    values = task.load_preset(preset).hyperparameters
    found = constants(set_constants(harness.SOURCE, values))
    assert {name: found[name].value for name in values} == dict(values)


def test_flops_of_a_token():
    module = harness.load(WINDOW_PATTERN="SL")
    gpt = harness.model(module)
    matrices = 4 * (4 + 8) * 64 * 64 + 2 * 4 * 32 + harness.VOCAB * 64
    attention = 12 * 64 * (2 * 16 + 2 * 32)
    assert module.flops_per_token(gpt, harness.SEQ_LEN) == 6 * matrices + attention


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_equals_eager(trace, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    losses = harness.train(harness.load(), info=harness.device_info(compile=True))[0]
    np.testing.assert_allclose(losses, trace, rtol=1e-4)
