"""A candidate that patches its framework doesn't patch its score: device.py took its functions before."""

import sys

import mlx.core as mx
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from autoresearch.backends.cuda_torch import device as torch_device
from autoresearch.backends.mlx import device as mlx_device
from autoresearch.core.contract import Trained
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
    *((F, name) for name in ("cross_entropy", "log_softmax", "nll_loss", "softmax")),
    *((torch.Tensor, name) for name in ("float", "cpu", "numpy", "max", "gather", "logsumexp")),
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
    monkeypatch.setattr(device, "_logsumexp", lying(device._logsumexp))
    found = of_torch() if device is torch_device else of_mlx()
    assert np.abs(found - EXPECTED).max() > 0.5


JAX = [
    ("jax.nn", "logsumexp"),
    ("jax.numpy", "take_along_axis"),
    ("jax.lax", "exp"),
    ("jax._src.numpy.reductions", "sum"),
    ("jax._src.lax.lax", "sub"),
]


@pytest.mark.parametrize(("module", "name"), JAX)
def test_a_patch_of_what_jax_traces_is_told(monkeypatch, module, name):
    """JAX looks its functions up when it traces the score, which is after the candidate was loaded."""
    import jax.nn
    import jax.numpy  # noqa: F401

    watched = facts("jax").COMPUTES_WITH
    with_jax, without = originals(watched), originals()
    monkeypatch.setattr(sys.modules[module], name, useless)
    assert replaced(with_jax, originals(watched)) == f"{module}.{name}"
    assert replaced(without, originals()) == "", "what the gate is for"
