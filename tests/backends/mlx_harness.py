"""`train_harness` for MLX."""

from __future__ import annotations

import numpy as np
import reference_numpy as reference
import train_harness

from autoresearch.backends import mlx as facts
from autoresearch.backends.mlx import device as backend
from autoresearch.core.constants import constants
from autoresearch.core.contract import DeviceInfo

SOURCE = facts.BASELINE.read_text(encoding="utf-8")
SEQ_LEN, VOCAB = train_harness.SEQ_LEN, train_harness.VOCAB
mx = backend.mx
"""Imported by way of `device.py`, which chooses its BLAS."""


def device_info(dtype="float32", compile=False):
    return DeviceInfo("mlx", "cpu", "cpu", 1, "mlx", dtype, "fast", compile, None, 0)


def load(*faults, **constants):
    return train_harness.load(SOURCE, *faults, **constants)


def model(module, dtype="float32", seq_len=SEQ_LEN):
    """A GPT with the weights of `reference.filled`, none of them zero."""
    gpt = module.GPT(VOCAB, seq_len, getattr(mx, dtype))
    names = {name: getattr(module, name) for name in constants(SOURCE)}
    weights = reference.filled(names, VOCAB)
    shapes = {name: p.shape for name, p in named(gpt).items()}
    assert shapes == {name: weight.shape for name, weight in weights.items()}
    gpt.update(module.tree_map_with_path(lambda name, p: mx.array(weights[name]).astype(p.dtype), gpt.parameters()))
    return gpt


def named(gpt):
    """name -> array of every parameter."""
    return backend.tree_flatten(gpt.parameters(), destination={})


def arrays(gpt):
    return {name: np.array(p.astype(mx.float32)) for name, p in named(gpt).items()}


def train(module, info=None, **options):
    return train_harness.train(module, backend, info or device_info(), **options)
