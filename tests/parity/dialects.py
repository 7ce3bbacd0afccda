"""One adapter for each backend: the same questions, put to each train.py in the words of its framework.

An adapter holds one train.py, unchanged but for its constants and, where asked, a planted fault. What passes through it
are NumPy arrays under the parameter names of `reference_numpy`. Everything runs on the CPU. Frameworks are imported
where they are used: one that is missing concerns its own tests alone.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import reference_numpy as reference
from parity_harness import SEQ_LEN, VOCAB, Subject

from autoresearch.core.contract import Trained


def rates_of(groups, name_of=str):
    """name -> reference.Rates of all groups of an optimizer, each parameter in one."""
    found = {}
    for group in groups:
        beta1 = group.beta1 if group.rule == "adamw" else None
        for name in map(name_of, group.params):
            assert name not in found
            found[name] = reference.Rates(group.rule, group.lr, group.decay, beta1, group.first_step)
    return found


class Torch(Subject):
    name = "cuda"

    @classmethod
    def providers(cls):
        return ["sdpa", "flex"]

    @classmethod
    def _provider(cls, name, seq_len, windows):
        import torch

        from autoresearch.backends.cuda_torch import attention

        if name == "flex":  # compiled, as on a GPU, it would take minutes here
            return attention.flex(seq_len, windows, torch.device("cpu"), compile=False)
        return attention.provider(name, seq_len, windows, torch.device("cpu"))

    @classmethod
    def attend(cls, provider, q, k, v, window):
        function = cls._provider(provider, q.shape[1], [window])
        return cls.host(function(*(cls.array(x) for x in (q, k, v)), window))

    @staticmethod
    def array(value, dtype="float32"):
        import torch

        return torch.from_numpy(np.array(value, np.float32)).to(getattr(torch, dtype))

    @staticmethod
    def host(value):
        return value.detach().float().numpy().copy()

    def build(self, weights=None, dtype="float32", provider=None, seed=0):
        import torch

        self.provider = provider or "sdpa"
        attend = self._provider(self.provider, SEQ_LEN, self.module.attention_windows(SEQ_LEN))
        self.device().seed(seed)
        self.model = self.module.GPT(VOCAB, SEQ_LEN, getattr(torch, dtype), attend)
        if weights is not None:
            self._assign(self.model, weights)
        self.optimizer = self.module.MuonAdamW(self.model, self.info(dtype))
        return self

    def _assign(self, model, weights):
        import torch

        with torch.no_grad():
            for name, p in model.named_parameters():
                assert p.shape == weights[name].shape, name
                p.copy_(self.array(weights[name]))

    def start_from(self, weights):
        original = self.module.GPT

        def started(*args, **kwargs):
            model = original(*args, **kwargs)
            self._assign(model, weights)
            return model

        self.module.GPT = started

    def _named(self):
        return dict(self.model.named_parameters())

    def parameters_of(self, params):
        return {name: self.host(p) for name, p in params.named_parameters()}

    def dtypes(self):
        return {name: str(p.dtype).removeprefix("torch.") for name, p in self._named().items()}

    def trained(self):
        return Trained(lambda params, tokens: params(tokens), self.model)

    def train_logits(self, tokens):
        import torch

        # FlexAttention has no backward pass on a CPU.
        with torch.set_grad_enabled(self.provider == "sdpa"):
            return self.model.train()(torch.from_numpy(tokens).long()).detach().numpy()

    def gradients(self, inputs, targets):
        import torch

        loss = self.module.mean_loss(self.model.train(), *(torch.from_numpy(x).long() for x in (inputs, targets)))
        loss.backward()
        grads = {name: self.host(0 * p if p.grad is None else p.grad) for name, p in self._named().items()}
        self.model.zero_grad()
        return float(loss.detach()), grads

    def step(self, grads, step, progress):
        for name, p in self._named().items():
            p.grad = self.array(grads[name]).to(p.dtype)
        self.optimizer.step(step, progress)
        assert all(p.grad is None for p in self.model.parameters())

    def rates(self):
        names = {id(p): name for name, p in self._named().items()}
        return rates_of(self.optimizer.groups, lambda p: names[id(p)])

    def residual_dtypes(self, tokens):
        seen = []
        for block in self.model.blocks:
            block.register_forward_hook(lambda block, inputs, output: seen.append(str(output.dtype)))
        self.train_logits(tokens)
        return [dtype.removeprefix("torch.") for dtype in seen]

    def norm(self, x):
        return self.host(self.module.norm(self.array(x)))


class Mlx(Subject):
    name = "mlx"

    @classmethod
    def providers(cls):
        return ["fast"]

    @classmethod
    def attend(cls, provider, q, k, v, window):
        module = cls(HEAD_DIM=q.shape[-1]).module
        return cls.host(module.attend(*(cls.array(x) for x in (q, k, v)), window))

    @staticmethod
    def array(value, dtype="float32"):
        import mlx.core as mx

        return mx.array(np.array(value, np.float32)).astype(getattr(mx, dtype))

    @staticmethod
    def host(value):
        import mlx.core as mx

        return np.array(value.astype(mx.float32))

    def build(self, weights=None, dtype="float32", provider=None, seed=0):
        import mlx.core as mx

        self.device().seed(seed)
        self.model = self.module.GPT(VOCAB, SEQ_LEN, getattr(mx, dtype))
        if weights is not None:
            self._assign(self.model, weights)
        self.optimizer = self.module.MuonAdamW(self.model, self.info(dtype))
        return self

    def _assign(self, model, weights):
        from mlx.utils import tree_flatten, tree_map_with_path

        assert {name: p.shape for name, p in tree_flatten(model.parameters())} == {
            name: value.shape for name, value in weights.items()
        }
        model.update(tree_map_with_path(lambda name, p: self.array(weights[name]).astype(p.dtype), model.parameters()))

    def start_from(self, weights):
        original = self.module.GPT

        def started(*args, **kwargs):
            model = original(*args, **kwargs)
            self._assign(model, weights)
            return model

        self.module.GPT = started

    def _named(self):
        from mlx.utils import tree_flatten

        return dict(tree_flatten(self.model.parameters()))

    def parameters_of(self, params):
        from mlx.utils import tree_flatten

        return {name: self.host(p) for name, p in tree_flatten(params.parameters())}

    def dtypes(self):
        return {name: str(p.dtype).removeprefix("mlx.core.") for name, p in self._named().items()}

    def trained(self):
        return Trained(lambda params, tokens: params(tokens), self.model)

    def train_logits(self, tokens):
        import mlx.core as mx

        return self.host(self.model(mx.array(tokens)))

    def gradients(self, inputs, targets):
        import mlx.core as mx
        import mlx.nn as nn
        from mlx.utils import tree_flatten

        function = nn.value_and_grad(self.model, lambda x, y: self.module.mean_loss(self.model, x, y))
        loss, grads = function(mx.array(inputs), mx.array(targets))
        return float(loss), {name: self.host(grad) for name, grad in tree_flatten(grads)}

    def step(self, grads, step, progress):
        import mlx.core as mx

        arrays = {name: self.array(grads[name]).astype(p.dtype) for name, p in self._named().items()}
        self.optimizer.step(self.model, arrays, self.optimizer.rates(step, progress))
        mx.eval(self.model.state, self.optimizer.moments)

    def rates(self):
        return rates_of(self.optimizer.groups)

    def residual_dtypes(self, tokens):
        seen = []
        original = self.module.Block.__call__

        def noted(block, *args):
            found = original(block, *args)
            seen.append(str(found.dtype).removeprefix("mlx.core."))
            return found

        self.module.Block.__call__ = noted
        self.train_logits(tokens)
        return seen

    def norm(self, x):
        return self.host(self.module.norm(self.array(x)))


class Jax(Subject):
    name = "jax"

    @classmethod
    @contextmanager
    def optimised(cls):
        import jax

        name = "jax_disable_most_optimizations"
        before = jax.config.values[name]
        jax.config.update(name, False)
        try:
            yield
        finally:
            jax.config.update(name, before)

    @classmethod
    def providers(cls):
        return ["blocks", "xla"]

    @classmethod
    def _provider(cls, name):
        return cls.device().attention_provider(cls.info(attention=name))

    @classmethod
    def attend(cls, provider, q, k, v, window):
        import jax

        return np.asarray(jax.jit(cls._provider(provider), static_argnums=3)(q, k, v, window))

    @staticmethod
    def array(value, dtype="float32"):
        import jax.numpy as jnp

        return jnp.asarray(value, dtype)

    @staticmethod
    def host(value):
        return np.asarray(value, np.float32)

    def build(self, weights=None, dtype="float32", provider=None, seed=0):
        import jax

        self.windows = self.module.attention_windows(SEQ_LEN)
        self.attention = self._provider(provider or self.providers()[0])
        initial = partial(self.module.initial_params, jax.random.key(seed), VOCAB, dtype)
        self.params = self._assigned(jax.eval_shape(initial), weights) if weights else initial()
        self.optimizer = self.module.MuonAdamW(self.params, self.info(dtype))
        self.moments = [self.optimizer.zero_moments(group, self.params) for group in self.optimizer.groups]
        self._step = jax.jit(self.optimizer.step)
        return self

    def _assigned(self, shapes, weights):
        assert {name: p.shape for name, p in shapes.items()} == {name: value.shape for name, value in weights.items()}
        return {name: self.array(weights[name], p.dtype) for name, p in shapes.items()}

    def start_from(self, weights):
        original = self.module.initial_params
        self.module.initial_params = lambda *args, **kwargs: self._assigned(original(*args, **kwargs), weights)

    def parameters_of(self, params):
        return {name: self.host(p) for name, p in params.items()}

    def dtypes(self):
        return {name: str(p.dtype) for name, p in self.params.items()}

    def trained(self):
        return Trained(partial(self.module.gpt, attend=self.attention, windows=self.windows), self.params)

    def train_logits(self, tokens):
        import jax

        def loss(params):
            logits = self.trained().logits(params, tokens)
            return logits.sum(), logits

        # XLA leaves out the gradient, which is not returned.
        return np.asarray(jax.jit(lambda params: jax.grad(loss, has_aux=True)(params)[1])(self.params))

    def gradients(self, inputs, targets):
        import jax

        loss = partial(self.module.mean_loss, attend=self.attention, windows=self.windows)
        value, grads = jax.jit(jax.value_and_grad(loss))(self.params, inputs, targets)
        return float(value), self.parameters_of(grads)

    def step(self, grads, step, progress):
        rates = self.optimizer.rates(step, progress)
        self.params, self.moments = self._step(self.params, grads, self.moments, rates)

    def rates(self):
        return rates_of(self.optimizer.groups)

    def residual_dtypes(self, tokens):
        import jax

        seen = []
        original = self.module.block

        def noted(*args):
            found = original(*args)
            seen.append(str(found.dtype))
            return found

        self.module.block = noted
        jax.eval_shape(self.trained().logits, self.params, tokens)
        return seen

    def norm(self, x):
        return np.asarray(self.module.norm(x))


SUBJECTS = {subject.name: subject for subject in (Torch, Mlx, Jax)}
"""Every backend that the project promises."""


def require(name):
    """The adapter of a backend whose framework loads here; elsewhere the test fails in CI and is skipped on a desk."""
    try:
        SUBJECTS[name].device()
    except ImportError as problem:
        message = f"the backend {name!r} does not load: {problem}"
        if os.environ.get("CI"):
            pytest.fail(f"{message}; CI promises it: pip install -e '.[test]'", pytrace=False)
        pytest.skip(message)
    return SUBJECTS[name]
