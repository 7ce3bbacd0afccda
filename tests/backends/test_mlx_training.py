"""The MLX train.py: its model against NumPy, and under the real harness what changes its loss trace."""

import contextlib
import gc
import re
import shutil

import mlx_harness as harness
import numpy as np
import pytest
import reference_numpy as reference
import test_torch_training

from autoresearch.backends import mlx as facts
from autoresearch.backends.mlx import device
from autoresearch.core import task
from autoresearch.core.candidate import lint
from autoresearch.core.constants import constants, set_constants
from autoresearch.core.contract import Trained

mx = harness.mx
OTHER = test_torch_training.OTHER
WARM_UP = "mx.eval(step_on(*experiment.dummy_batch(rows, accumulation), optimizer.rates(1, 0.0)), state)"


@pytest.fixture(scope="module")
def trace():
    return harness.train(harness.load())[0]


def forward_error(module, seq_len=16, windows_of=None):
    gpt = harness.model(module, seq_len=seq_len)
    tokens = np.random.default_rng(1).integers(0, harness.VOCAB, (2, seq_len)).astype(np.int32)
    windows = (windows_of or module).attention_windows(seq_len)
    config = reference.Config(module.HEAD_DIM, tuple(windows), module.ROTARY_BASE)
    got = device.logits(Trained(lambda params, x: params(x), gpt), mx.array(tokens), 2)
    want = reference.forward(harness.arrays(gpt), tokens, config)
    return np.abs(got - want).max() / np.abs(want).max()


@pytest.mark.parametrize("pattern", ["L", "S", "SSSL"])
@pytest.mark.parametrize("kv_group", [1, 2])
def test_forward_equals_numpy(pattern, kv_group):
    assert forward_error(harness.load(WINDOW_PATTERN=pattern, KV_GROUP=kv_group)) < 1e-5


@pytest.mark.parametrize(
    "fault",
    [
        ('str = "causal"', "str | None = None"),
        ("before <= window", "before < window"),
        ("(before >= 0) & ", ""),
        ("scale=HEAD_DIM**-0.5", "scale=1.0"),
        ("[i] * x0", "[0] * x0"),
    ],
    ids=lambda fault: fault[1],
)
def test_forward_sees_a_planted_fault(fault):
    assert forward_error(harness.load(fault, WINDOW_PATTERN="S")) > 1e-4


def residual_dtypes(module):
    """Dtype of the residual after each block, in a bfloat16 model."""
    seen = []

    class Watched(module.Block):
        def __call__(self, *args):
            out = super().__call__(*args)
            seen.append(out.dtype)
            return out

    module.Block = Watched
    logits = harness.model(module, dtype="bfloat16")(mx.zeros((1, harness.SEQ_LEN), mx.int32))
    assert logits.dtype == mx.float32
    return seen


def test_the_residual_stays_bfloat16():
    assert residual_dtypes(harness.load()) == [mx.bfloat16] * 4


def test_a_promoted_residual_is_seen():
    fault = ("self.resid_lambda.astype(x.dtype)", "self.resid_lambda")
    assert mx.float32 in residual_dtypes(harness.load(fault))


def test_dtypes_of_parameters_and_moments():
    module = harness.load()
    gpt = harness.model(module, dtype="bfloat16")
    half = {name for name, p in harness.named(gpt).items() if p.dtype == mx.bfloat16}
    assert half == {"wte", "value_embeddings.1", "value_embeddings.3"}
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


def dead_constants(names, *faults):
    """Constants whose change leaves the trace as it was."""
    before = harness.train(harness.load(*faults))[0]
    changed = {name: harness.train(harness.load(*faults, **{name: OTHER[name]}))[0] for name in names}
    return {name for name, trace in changed.items() if np.abs(trace - before).max() < 1e-6}


def test_every_constant_changes_the_trace():
    assert OTHER.keys() == constants(harness.SOURCE).keys() - {"DEVICE_BATCH_ROWS"}
    assert dead_constants(OTHER) == set()


def test_dead_constants_are_seen():
    fault = ("group.lr * lr_scale(progress)", "group.lr")
    assert dead_constants(["WARMDOWN_RATIO", "FINAL_LR_FRAC", "HEAD_LR"], fault) == {"WARMDOWN_RATIO", "FINAL_LR_FRAC"}


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


@pytest.mark.parametrize(("rows", "max_rows"), [(8, 1024), (2, 1024), (4, 1), (4, 3)])
def test_the_shape_of_micro_batches_does_not_matter(rows, max_rows, trace):
    losses = harness.train(harness.load(DEVICE_BATCH_ROWS=rows), max_rows=max_rows)[0]
    np.testing.assert_allclose(losses, trace, rtol=1e-4)


def test_a_loss_that_forgets_accumulation_is_seen(trace):
    losses = harness.train(harness.load((" / accumulation", ""), DEVICE_BATCH_ROWS=4))[0]
    assert np.abs(losses - trace).max() > 1.0


def test_the_warm_up_leaves_the_start_as_it_was(trace):
    np.testing.assert_array_equal(harness.train(harness.load((WARM_UP, "pass")))[0], trace)


@pytest.mark.parametrize("fault", ["model.update(start[0])", "optimizer.moments[:] = start[1]"])
def test_a_warm_up_that_trains_is_seen(fault, trace):
    assert np.abs(harness.train(harness.load((fault, "pass")))[0] - trace).max() > 1e-3


def test_scalars_rest_at_step_0():
    module = harness.load()
    gpt = harness.model(module)
    optimizer = module.MuonAdamW(gpt, harness.device_info())
    for step in range(2):
        before = harness.arrays(gpt)
        grads = {name: mx.ones_like(p) for name, p in harness.named(gpt).items()}
        optimizer.step(gpt, grads, optimizer.rates(step, 0.0))
        resting = {name for name, p in harness.arrays(gpt).items() if np.array_equal(p, before[name])}
        assert resting == ({"resid_lambda", "x0_lambda"} if step == 0 else set())
        moments = {
            group.name: max(float(m.abs().max()) for m in group_moments[0])
            for group, group_moments in zip(optimizer.groups, optimizer.moments, strict=True)
        }
        assert {name for name, largest in moments.items() if largest == 0} == resting


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


def test_the_file_passes_the_lint_and_stays_readable():
    lint(harness.SOURCE, facts.ALLOWED_IMPORTS)
    assert len(harness.SOURCE.splitlines()) <= 450
    sections = re.findall(r"^# -+\n# (.+)\n# -+$", harness.SOURCE, re.MULTILINE)
    assert sections == ["Hyper-parameters", "Model", "Optimizer", "Schedules", "Training"]


@pytest.mark.parametrize("preset", task.preset_names())
def test_every_preset_fits_the_file(preset):
    values = task.load_preset(preset).hyperparameters
    found = constants(set_constants(harness.SOURCE, values))
    assert {name: found[name].value for name in values} == dict(values)
