"""Runs the PyTorch train.py at tiny sizes, unchanged but for its constants, and where asked with a planted fault."""

from __future__ import annotations

import importlib.util
import itertools
import sys

import numpy as np

from autoresearch.backends import cuda_torch
from autoresearch.backends.cuda_torch import device as backend
from autoresearch.core.constants import set_constants
from autoresearch.core.contract import DeviceInfo
from autoresearch.core.experiment import ExperimentRun
from autoresearch.core.task import Task

SOURCE = cuda_torch.BASELINE.read_text(encoding="utf-8")
VOCAB = 272
SEQ_LEN = 32
TINY = {
    "DEPTH": 4,
    "ASPECT_RATIO": 16,
    "HEAD_DIM": 16,
    "WINDOW_PATTERN": "SL",
    "TOTAL_BATCH_SIZE": 8 * SEQ_LEN,
    "DEVICE_BATCH_ROWS": 4,
    "MOMENTUM_RAMP_STEPS": 50,
}
_number = itertools.count()


def device_info(dtype="float32", attention="sdpa", compile=False):
    return DeviceInfo("cuda", "cpu", "cpu", 1, "torch", dtype, attention, compile, None, 0)


def load(*faults, source=SOURCE, **constants):
    """A train.py as a module; each fault is (old text, new text), and old must occur."""
    source = set_constants(source, {**TINY, **constants})
    for old, new in faults:
        assert old in source, f"the planted fault no longer fits train.py: {old!r}"
        source = source.replace(old, new)
    name = f"planted_train_{next(_number)}"
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader=None))
    sys.modules[name] = module
    exec(compile(source, name, "exec"), module.__dict__)
    return module


def model(module, dtype="float32", seq_len=SEQ_LEN, attend=None, seed=0):
    """A GPT on the CPU, every matrix that starts at zero filled, so that nothing is hidden by it."""
    import torch

    backend.seed(seed)
    if attend is None:
        attend = backend.attention(device_info(dtype), seq_len, module.attention_windows(seq_len))
    gpt = module.GPT(VOCAB, seq_len, getattr(torch, dtype), attend)
    with torch.no_grad():
        for name, p in gpt.named_parameters():
            if name.endswith(("output", "gate")):
                p.normal_(0, 0.1)
            elif name == "head":
                p.mul_(300)
            elif name.endswith("_lambda"):
                p.add_(torch.linspace(-0.2, 0.2, len(p)))
    return gpt


def train(module, steps=6, seed=0, max_rows=1024, info=None, backend=backend):
    """(losses of every step, Trained, ExperimentRun), by the real harness with a fixed number of steps."""
    task = Task(seq_len=SEQ_LEN, vocab_size=VOCAB, train_seconds=1000.0, train_steps=steps)
    run = ExperimentRun(backend, info or device_info(), task, VOCAB, learnable_rows(64), seed, max_rows)
    backend.seed(seed)
    trained = module.train(run)
    run.finish(trained.params)
    return np.array([loss for _, loss in run.losses]), trained, run


def learnable_rows(n, seed=0):
    """(n, T + 1): each token follows from the one before, with noise."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, VOCAB, (n, SEQ_LEN + 1))
    for t in range(1, SEQ_LEN + 1):
        rows[:, t] = np.where(rng.random(n) < 0.8, (5 * rows[:, t - 1] + 7) % VOCAB, rows[:, t])
    return rows.astype(np.int32)
