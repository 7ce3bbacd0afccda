"""Runs a train.py at tiny sizes, unchanged but for its constants, and where asked with a planted fault."""

from __future__ import annotations

import importlib.util
import itertools
import sys

import numpy as np

from autoresearch.core.constants import set_constants
from autoresearch.core.experiment import ExperimentRun
from autoresearch.core.task import Task

SEQ_LEN = 32
VOCAB = 272
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


def load(source, *faults, **constants):
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


def train(module, backend, info, steps=6, seed=0, max_rows=1024):
    """(losses of every step, Trained, ExperimentRun), by the real harness with a fixed number of steps."""
    task = Task(seq_len=SEQ_LEN, vocab_size=VOCAB, train_seconds=1000.0, train_steps=steps)
    run = ExperimentRun(backend, info, task, VOCAB, learnable_rows(64), seed, max_rows)
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
