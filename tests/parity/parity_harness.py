"""What the suite asks of a train.py, whatever its framework; `dialects.py` has the adapters that answer."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
from abc import ABC, abstractmethod
from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace

import numpy as np
import reference_numpy as reference

from autoresearch.core import registry
from autoresearch.core.constants import constants, set_constants
from autoresearch.core.contract import DeviceInfo, Trained
from autoresearch.core.experiment import ExperimentRun
from autoresearch.core.measure import Evaluator
from autoresearch.core.task import Task
from autoresearch.prepare.stories import stories

VOCAB = 128
SEQ_LEN = 32
PARITY = {
    "DEPTH": 6,
    "ASPECT_RATIO": 4,
    "HEAD_DIM": 6,
    "WINDOW_PATTERN": "SSSL",
    "SHORT_WINDOW_DIVISOR": 4,
    "TOTAL_BATCH_SIZE": 8 * SEQ_LEN,
    "DEVICE_BATCH_ROWS": 4,
    "EMBEDDING_LR": 0.1,
    "EMBEDDING_DECAY": 0.01,
    "VALUE_EMBEDDING_LR": 0.12,
    "VALUE_EMBEDDING_DECAY": 0.02,
    "HEAD_DECAY": 0.03,
    "SCALAR_LR": 0.1,
    "MOMENTUM_RAMP_STEPS": 50,
}
"""57,000 parameters in 6 layers of width 24: every pattern gives other windows, three layers have value embeddings.

Rates for a width of 768, scaled to one of 24, would throw the loss about; the decays are none of them zero.
"""
WIDE = {"DEPTH": 2, "ASPECT_RATIO": 24, "HEAD_DIM": 12}
"""74,000 parameters in 2 layers of width 48: the gates see a part of the width only."""
SMALL = {"DEPTH": 2, "ASPECT_RATIO": 12}
"""Two layers, for what must be run many times."""

NO_GC = SimpleNamespace(**dict.fromkeys(("collect", "freeze", "disable", "enable", "unfreeze"), lambda: None))
"""For a train.py: collecting the garbage of the whole test session takes longer than the training."""

_number = itertools.count()


@cache
def text_rows(count=64, seed=1, seq_len=SEQ_LEN):
    """(count, seq_len + 1) tokens of seeded stories, one for each ASCII byte."""
    needed = count * (seq_len + 1)
    text = "\n".join(stories(needed / 1e6, seed)).encode("ascii")
    return np.frombuffer(text[:needed], np.uint8).astype(np.int32).reshape(count, seq_len + 1)


def values_of(source):
    """name -> value of the constants of a train.py."""
    return {name: constant.value for name, constant in constants(source).items()}


def parity_constants(**values):
    """The constants of the suite, without loading any framework; other `values` by name."""
    source = registry.facts("cuda").BASELINE.read_text(encoding="utf-8")
    return values_of(set_constants(source, {**PARITY, **values}))


def plant(source, old, new):
    """`source` with `old` replaced; `old` must occur, or the fault would no longer be one."""
    assert old in source, f"the planted fault no longer fits train.py: {old!r}"
    return source.replace(old, new)


class Subject(ABC):
    """A train.py as a module, and, after `build`, a model of it.

    Args:
        faults: (old text, new text) pairs.
        constants: in place of those in PARITY.
    """

    name: str

    def __init__(self, *faults, **values):
        source = set_constants(self.source(), {**PARITY, **values})
        self.constants = values_of(source)
        for old, new in faults:
            source = plant(source, old, new)
        name = f"parity_train_{next(_number)}"
        self.module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader=None))
        sys.modules[name] = self.module  # where dataclasses look for it
        exec(compile(source, name, "exec"), self.module.__dict__)
        del sys.modules[name]
        self.module.gc = NO_GC

    @classmethod
    def source(cls):
        return registry.facts(cls.name).BASELINE.read_text(encoding="utf-8")

    @classmethod
    def device(cls):
        """The trusted module; imports the framework."""
        try:
            facts = registry.facts(cls.name)
        except registry.UsageError as problem:
            raise ImportError(problem.message) from problem
        return importlib.import_module(facts.__name__ + ".device")

    @classmethod
    def info(cls, dtype="float32", attention=None, compile=False):
        attention = attention or cls.providers()[0]
        return DeviceInfo(cls.name, "cpu", "cpu", 1, cls.name, dtype, attention, compile, None, 0)

    @property
    def config(self):
        """What NumPy needs to know."""
        return reference.config_of(self.constants, SEQ_LEN)

    def filled(self, seed=0):
        """Weights under the names of the reference, none of them zero."""
        return reference.filled(self.constants, VOCAB, seed)

    def train(self, weights=None, steps=6, seed=0, max_rows=1024, info=None, rows=None):
        """Run its `train` in the real harness for fixed steps.

        Args:
            weights: to start from, by name; by default what the seed gives.
            rows: training rows (N, T + 1).

        Returns:
            (losses of every step, Trained).
        """
        if weights is not None:
            self.start_from(weights)
        task = Task(seq_len=SEQ_LEN, train_seconds=1000.0, train_steps=steps)
        rows = text_rows() if rows is None else rows
        run = ExperimentRun(self.device(), info or self.info(), task, VOCAB, rows, seed, max_rows)
        self.device().seed(seed)
        trained = self.module.train(run)
        run.finish(trained.params)
        self.run = run
        return np.array([loss for _, loss in run.losses]), trained

    def score(self, trained, rows, token_bytes=None, eval_rows=7, info=None):
        """The Score of `rows` by the real evaluator."""
        token_bytes = np.ones(VOCAB, np.int32) if token_bytes is None else token_bytes
        return Evaluator(self.device(), info or self.info(), trained, VOCAB, token_bytes, eval_rows).score(rows)

    def logits(self, tokens, path="eval"):
        """(B, T, V) float32: by what training differentiates, "train", or as the harness scores, "eval"."""
        if path == "eval":
            inputs = self.device().put(tokens.astype(np.int32), self.info())
            return self.device().logits(self.trained(), inputs, np.indices(tokens.shape, np.int32)[1])
        return self.train_logits(tokens)

    @classmethod
    def nats(cls, logits, targets):
        """Nats of each target (B, T) for logits (B, T, V) of the framework, by the trusted module."""
        put = [cls.device().put(targets.astype(np.int32), cls.info())] * 2
        return cls.device().nats(Trained(lambda params, tokens: params, logits), *put)

    @classmethod
    def optimised(cls):
        """A context in which programs are compiled as in a search; elsewhere the suite may save the compiler's work."""
        return nullcontext()

    @classmethod
    @abstractmethod
    def providers(cls):
        """Names of the attention providers that run on this machine, the default first."""

    @classmethod
    @abstractmethod
    def attend(cls, provider, q, k, v, window):
        """One provider's attention of arrays (B, T, H, d)."""

    @staticmethod
    @abstractmethod
    def array(value, dtype="float32"):
        """A float array of the framework."""

    @staticmethod
    @abstractmethod
    def host(value):
        """The inverse of `array`, float32."""

    @abstractmethod
    def build(self, weights=None, dtype="float32", provider=None, seed=0):
        """Make the model and its optimizer, with `weights` or what the seed gives. Returns self."""

    @abstractmethod
    def start_from(self, weights):
        """Make `train` start with these weights."""

    def parameters(self):
        """name -> float32 array, of the built model."""
        return self.parameters_of(self.trained().params)

    @abstractmethod
    def parameters_of(self, params):
        """name -> float32 array, of the `params` that `train` returns."""

    @abstractmethod
    def dtypes(self):
        """name -> name of the dtype."""

    @abstractmethod
    def trained(self):
        """The model as `train` would return it."""

    @abstractmethod
    def train_logits(self, tokens):
        """Logits (B, T, V) by the function whose gradient is taken."""

    @abstractmethod
    def gradients(self, inputs, targets):
        """(loss, name -> gradient) of one micro-batch (rows, T)."""

    @abstractmethod
    def step(self, grads, step, progress):
        """One optimizer step on gradients by name."""

    @abstractmethod
    def rates(self):
        """name -> reference.Rates, from the groups of the optimizer."""

    @abstractmethod
    def residual_dtypes(self, tokens):
        """Names of the dtypes of the residual after each block."""

    @abstractmethod
    def norm(self, x):
        """Its norm of an array."""
