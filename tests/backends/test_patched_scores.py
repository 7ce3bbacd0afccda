"""A candidate that patches its framework doesn't patch its score: device.py took its functions before."""

import contextlib
import importlib
import sys
import warnings

import jax
import jax.numpy
import mlx.core as mx
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from autoresearch.backends.cuda_torch import device as torch_device
from autoresearch.backends.jax_tpu import device as jax_device
from autoresearch.backends.mlx import device as mlx_device
from autoresearch.core.contract import DeviceInfo, Trained
from autoresearch.core.errors import CandidateFailure
from autoresearch.core.measure import Evaluator
from autoresearch.core.originals import originals, replaced
from autoresearch.core.registry import facts

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0.0, 2.0, (3, 5, 11)).astype(np.float32)
TOKENS = RNG.integers(0, 11, (3, 5)).astype(np.int32)
WIDE = LOGITS.astype(np.float64)
EXPECTED = np.log(np.exp(WIDE).sum(-1)) - np.take_along_axis(WIDE, TOKENS[..., None], -1)[..., 0]
LOGITS.flags.writeable = False


def of_torch():
    tokens = torch.from_numpy(TOKENS).long()
    return torch_device.nats(Trained(lambda params, _: params, torch.tensor(LOGITS)), tokens, tokens)


def of_mlx():
    tokens = mx.array(TOKENS)
    return mlx_device.nats(Trained(lambda params, _: params, mx.array(LOGITS)), tokens, tokens)


def lying(function):
    """A function that gives something else."""
    return lambda *args, **kwargs: function(*args, **kwargs) * 0.5


def useless(*args, **kwargs):
    raise AssertionError("called")


TORCH = [
    *((torch, name) for name in ("logsumexp", "gather", "log_softmax", "softmax", "sub", "stack", "squeeze", "unbind")),
    *((torch, name) for name in ("exp", "log", "sum", "amax")),
    *((F, name) for name in ("cross_entropy", "log_softmax", "nll_loss", "softmax")),
    *((torch.Tensor, name) for name in ("float", "cpu", "numpy", "max", "gather", "logsumexp", "exp_")),
    *((torch.Tensor, name) for name in ("__getitem__", "__iter__", "__sub__", "__rsub__", "unbind")),
]
MLX = [(mx, name) for name in ("logsumexp", "take_along_axis", "softmax", "log", "exp", "subtract", "expand_dims")]


@pytest.mark.parametrize(("owner", "name"), TORCH, ids=lambda value: getattr(value, "__name__", value))
def test_no_patch_of_pytorch_reaches_the_score(monkeypatch, owner, name):
    monkeypatch.setattr(owner, name, useless)
    found = of_torch()
    monkeypatch.undo()
    np.testing.assert_allclose(found, EXPECTED, rtol=1e-5)


@pytest.mark.parametrize(("owner", "name"), MLX, ids=lambda value: getattr(value, "__name__", value))
def test_no_patch_of_mlx_reaches_the_score(monkeypatch, owner, name):
    monkeypatch.setattr(owner, name, useless)
    found = of_mlx()
    monkeypatch.undo()
    np.testing.assert_allclose(found, EXPECTED, rtol=1e-5)


@pytest.mark.parametrize("device", [torch_device, mlx_device])
def test_without_the_functions_taken_before_it_would(monkeypatch, device):
    """What device.py took, replaced: as if it asked the framework again."""
    name = "_log" if device is torch_device else "_logsumexp"
    monkeypatch.setattr(device, name, lying(getattr(device, name)))
    found = of_torch() if device is torch_device else of_mlx()
    assert np.abs(found - EXPECTED).max() > 0.5


JAX = [
    ("jax.numpy", "log"),
    ("jax.numpy", "exp"),
    ("jax.numpy", "take_along_axis"),
    ("jax.lax", "exp"),
    ("jax._src.numpy.reductions", "sum"),
    ("jax._src.lax.lax", "sub"),
]


@pytest.mark.parametrize(("module", "name"), JAX)
def test_a_patch_of_what_jax_traces_is_told(monkeypatch, module, name):
    """JAX looks its functions up when it traces the score, which is after the candidate was loaded."""
    watched = facts("jax").COMPUTES_WITH
    with_jax, without = originals(watched), originals()
    monkeypatch.setattr(sys.modules[module], name, useless)
    assert replaced(with_jax, originals(watched)) == f"{module}.{name}"
    assert replaced(without, originals()) == "", "what the gate is for"


# ---------------------------------------------------------------------------------------------------------------------
# Offsets, and functions in C replaced by a registration: the measurement of a bigram on each backend

V, T = 50, 24
TABLE = RNG.normal(0.0, 2.0, (V, V)).astype(np.float32)
VAL = RNG.integers(0, V, (40, T + 1)).astype(np.uint16)


def bigram(table, tokens):
    return table[tokens]


def measured(backend, logits=bigram):
    """Its score by the real evaluator, a token being a byte."""
    device = importlib.import_module(facts(backend).__name__ + ".device")
    table = {"cuda": torch.tensor, "jax": jax.numpy.asarray, "mlx": mx.array}[backend](TABLE)
    evaluator = Evaluator(device, device_info(backend), Trained(logits, table), V, np.ones(V, np.int32), 8)
    return evaluator.measure(VAL, {}, 3)[0].bpb


def device_info(backend):
    return DeviceInfo(
        backend=backend,
        platform="cpu",
        name="a processor",
        count=1,
        framework="",
        dtype="float32",
        attention="",
        compile=backend == "jax",
        peak_flops=None,
        memory_bytes=0,
        reasons={},
    )


def with_offset(table, tokens):
    """In float32, ln V is nothing beside so large a logit."""
    out = table[tokens]
    if isinstance(out, jax.Array):
        return out.at[4:].set(1e9)
    out = out.clone() if isinstance(out, torch.Tensor) else out
    out[4:] = 1e9
    return out


def no_shift(monkeypatch, backend):
    """As if a device.py subtracted the chosen logit from a sum of exponentials of the logits as they are."""
    if backend == "jax":

        @jax.jit
        def unshifted(scores, targets):
            chosen = jax.numpy.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
            return jax.nn.logsumexp(scores, axis=-1) - chosen

        monkeypatch.setattr(jax_device, "_nats", unshifted)
    elif backend == "mlx":
        monkeypatch.setattr(mlx_device, "_max", lambda scores, axis, keepdims: mx.array(0.0))
    else:

        def unshifted(trained, inputs, targets):
            scores = trained.logits(trained.params, inputs)
            return (scores.logsumexp(-1) - scores.gather(-1, targets[..., None])[..., 0]).numpy()

        monkeypatch.setattr(torch_device, "nats", unshifted)


@pytest.mark.parametrize("backend", ["cuda", "jax", "mlx"])
def test_an_offset_of_all_logits_is_invalid_and_gains_nothing(monkeypatch, backend):
    honest = measured(backend)
    with pytest.raises(CandidateFailure, match=r"^spot check: logits so large"):
        measured(backend, with_offset)
    with monkeypatch.context() as patch:
        no_shift(patch, backend)
        with pytest.raises(CandidateFailure, match=r"^spot check: "):
            measured(backend, with_offset)
    monkeypatch.setattr(Evaluator, "_check_spot", lambda *args: None)
    with monkeypatch.context() as patch:
        no_shift(patch, backend)
        assert measured(backend, with_offset) < 0.6 * honest, "what both are for"
    # Half of the rows have a uniform distribution, and the score of one.
    uniform = measured(backend, lambda table, tokens: 0.0 * table[tokens])
    assert measured(backend, with_offset) == pytest.approx(0.5 * (uniform + honest), rel=0.1)


@contextlib.contextmanager
def registered_with_torch():
    """Honest for the first four of eight rows, one call each."""
    calls = [0]

    def log(self):
        calls[0] += 1
        return torch.log1p(self - 1.0) * (1.0 if (calls[0] - 1) % 8 < 4 else 0.5)

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is overridden
        library.impl("log", log, "CPU")
        try:
            yield
        finally:
            library._destroy()


@contextlib.contextmanager
def registered_with_jax():
    from jax.interpreters import mlir

    def log(x, **_):
        rows = jax.lax.broadcasted_iota("int32", x.shape, 0)
        return jax.numpy.where(rows >= 4, 0.5, 1.0) * jax.lax.log1p(x - 1.0)

    before = mlir._lowerings[jax.lax.log_p]
    jax.clear_caches()
    mlir.register_lowering(jax.lax.log_p, mlir.lower_fun(log, multiple_results=False))
    try:
        yield
    finally:
        mlir._lowerings[jax.lax.log_p] = before
        jax.clear_caches()


@pytest.mark.parametrize(("backend", "registered"), [("cuda", registered_with_torch), ("jax", registered_with_jax)])
def test_a_registered_function_that_lies_about_some_rows_is_invalid(monkeypatch, backend, registered):
    """The functions that device.py took run it as well, so that only what they give tells."""
    honest = measured(backend)
    with registered(), pytest.raises(CandidateFailure, match=r"^spot check: scores differ from their logits"):
        measured(backend)
    monkeypatch.setattr(Evaluator, "_check_spot", lambda *args: None)
    with registered():
        assert measured(backend) < 0.95 * honest, "what the spot check is for"
    monkeypatch.undo()
    assert measured(backend) == pytest.approx(honest)
