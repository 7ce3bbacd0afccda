"""The reference model and optimizer in NumPy float64: short, slow, and the arbiter for every backend.

Parameters are a dict from name to array, matrices (out, in): `wte`, `head` (V, D); `value_embeddings.I` (V, kv width);
`resid_lambda`, `x0_lambda` (L,); `blocks.I.attention.{query,key,value,output,gate}`, `blocks.I.mlp.{input,output}`.
Constants are those of a train.py by name; nothing else is read from one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


@dataclass(frozen=True)
class Config:
    """What the arrays don't say."""

    head_dim: int
    windows: tuple[int | None, ...]
    """For each layer the keys that a query sees before itself; None is all of them."""
    rotary_base: float = 10_000.0
    softcap: float = 15.0
    eps: float = 1e-6


# Model


def config_of(constants, seq_len):
    """The Config of a train.py's constants for rows of `seq_len` tokens."""
    pattern, depth = constants["WINDOW_PATTERN"], constants["DEPTH"]
    letters = (pattern * depth)[: depth - 1] + "L"
    windows = tuple(None if letter == "L" else seq_len // constants["SHORT_WINDOW_DIVISOR"] for letter in letters)
    return Config(constants["HEAD_DIM"], windows, constants["ROTARY_BASE"], constants["SOFTCAP"], constants["NORM_EPS"])


def width(constants):
    heads = -(-constants["DEPTH"] * constants["ASPECT_RATIO"] // constants["HEAD_DIM"])
    return heads * constants["HEAD_DIM"]


def shapes(constants, vocab_size):
    """name -> shape of every parameter."""
    D, depth = width(constants), constants["DEPTH"]
    kv = D // constants["KV_GROUP"]
    found = {"wte": (vocab_size, D), "head": (vocab_size, D), "resid_lambda": (depth,), "x0_lambda": (depth,)}
    for i in range(depth):
        matrices = {"query": (D, D), "key": (kv, D), "value": (kv, D), "output": (D, D)}
        found |= {f"blocks.{i}.attention.{name}": shape for name, shape in matrices.items()}
        found |= {f"blocks.{i}.mlp.input": (4 * D, D), f"blocks.{i}.mlp.output": (D, 4 * D)}
        if (depth - i) % 2:  # counted from the last layer, which has one
            found[f"blocks.{i}.attention.gate"] = (kv // constants["HEAD_DIM"], min(32, D))
            found[f"value_embeddings.{i}"] = (vocab_size, kv)
    return found


def initial_law(constants, name):
    """("normal" | "uniform" | "constant", its standard deviation, bound or value) of a parameter's initial values."""
    kind = name.split(".")[-1]
    if name in ("wte", "head"):
        return "normal", {"wte": 1.0, "head": 0.001}[name]
    if kind in ("output", "gate", "resid_lambda", "x0_lambda"):
        return "constant", {"resid_lambda": 1.0, "x0_lambda": constants["X0_LAMBDA_INIT"]}.get(kind, 0.0)
    return "uniform", constants["INIT_SCALE"] * math.sqrt(3) * width(constants) ** -0.5


def initial(constants, vocab_size, seed=0):
    """Start weights, float32."""
    rng = np.random.default_rng(seed)
    draw = {
        "normal": lambda shape, deviation: rng.normal(0, deviation, shape),
        "uniform": lambda shape, bound: rng.uniform(-bound, bound, shape),
        "constant": np.full,
    }
    laws = {name: (shape, *initial_law(constants, name)) for name, shape in shapes(constants, vocab_size).items()}
    return {name: draw[law](shape, value).astype(np.float32) for name, (shape, law, value) in laws.items()}


def filled(constants, vocab_size, seed=0):
    """Weights of which none is zero and none hides another: what a model compared in one forward pass needs.

    Embeddings and keys are small enough for the epsilon of their norm to show.
    """
    rng = np.random.default_rng(seed + 1)
    params = initial(constants, vocab_size, seed)
    for name, value in params.items():
        if name.endswith(("output", "gate")):
            value[:] = rng.normal(0, 0.1, value.shape)
        elif name == "wte" or name.endswith("key"):
            value *= 0.03
        elif name.endswith("_lambda"):
            value += np.linspace(-0.2, 0.2, len(value), dtype=np.float32)
    params["head"] *= 300
    return params


def norm(x, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def rotate(x, base):
    """(B, T, H, d), half-split pairs, positions 0, 1, …"""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None] * base ** -(np.arange(half) / half)[None, :]
    cos, sin = np.cos(angle)[None, :, None], np.sin(angle)[None, :, None]
    x1, x2 = x[..., :half], x[..., half:]
    return np.concatenate([x1 * cos + x2 * sin, x2 * cos - x1 * sin], axis=-1)


def attend(q, k, v, window):
    """q (B, T, H, d), k and v (B, T, H_kv, d) -> (B, T, H, d), one query at a time."""
    B, T, H, d = q.shape
    group = H // k.shape[2]
    out = np.zeros_like(q)
    for b in range(B):
        for h in range(H):
            for i in range(T):
                first = 0 if window is None else max(0, i - window)
                keys, values = k[b, first : i + 1, h // group], v[b, first : i + 1, h // group]
                scores = keys @ q[b, i, h] / math.sqrt(d)
                weights = np.exp(scores - scores.max())
                out[b, i, h] = weights @ values / weights.sum()
    return out


def forward(params, tokens, config):
    """Logits (B, T, V) for tokens (B, T)."""
    p = {name: np.asarray(value, np.float64) for name, value in params.items()}
    B, T = tokens.shape
    x = x0 = norm(p["wte"][tokens], config.eps)
    for i, window in enumerate(config.windows):
        x = p["resid_lambda"][i] * x + p["x0_lambda"][i] * x0
        a = norm(x, config.eps)
        name = f"blocks.{i}.attention."
        q, k, v = ((a @ p[name + part].T).reshape(B, T, -1, config.head_dim) for part in ("query", "key", "value"))
        if f"value_embeddings.{i}" in p:
            gate = p[name + "gate"]
            opened = 2 / (1 + np.exp(-(a[..., : gate.shape[1]] @ gate.T)))
            v = v + opened[..., None] * p[f"value_embeddings.{i}"][tokens].reshape(v.shape)
        q, k = (norm(rotate(y, config.rotary_base), config.eps) for y in (q, k))
        x = x + attend(q, k, v, window).reshape(B, T, -1) @ p[name + "output"].T
        hidden = np.maximum(norm(x, config.eps) @ p[f"blocks.{i}.mlp.input"].T, 0) ** 2
        x = x + hidden @ p[f"blocks.{i}.mlp.output"].T
    z = norm(x, config.eps) @ p["head"].T
    return config.softcap * np.tanh(z / config.softcap)


def nats(logits, targets):
    """Negative log-likelihood of each target, (B, T)."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(axis=-1))
    return log_sum - np.take_along_axis(shifted, targets[..., None], axis=-1)[..., 0]


def loss(params, inputs, targets, config):
    """Mean nats over all targets."""
    return nats(forward(params, inputs, config), targets).mean()


def slopes(params, inputs, targets, config, directions, step=1e-6):
    """name -> derivative of the loss along a direction in one tensor, by central differences.

    The error is of order step²: what a gradient is judged by, without a backward pass of our own.
    """
    found = {}
    for name, direction in directions.items():
        ends = []
        for sign in (1, -1):
            moved = params | {name: np.asarray(params[name], np.float64) + sign * step * direction}
            ends.append(loss(moved, inputs, targets, config))
        found[name] = (ends[0] - ends[1]) / (2 * step)
    return found


# Optimizer


@dataclass(frozen=True)
class Rates:
    """How one parameter is updated."""

    rule: str
    lr: float
    """Peak learning rate."""
    decay: float
    beta1: float | None
    """None for Muon, whose momentum is scheduled."""
    first_step: int


def rates(constants, name, shape):
    """The Rates of a parameter."""
    if name.startswith("blocks"):
        lr = constants["MATRIX_LR"] * muon_lr_factor(*shape)
        return Rates("muon", lr, constants["MATRIX_DECAY"], None, 0)
    c, scale, beta1 = constants, (width(constants) / 768) ** -0.5, constants["ADAM_BETA1"]
    return {
        "head": Rates("adamw", c["HEAD_LR"] * scale, c["HEAD_DECAY"], beta1, 0),
        "wte": Rates("adamw", c["EMBEDDING_LR"] * scale, c["EMBEDDING_DECAY"], beta1, 0),
        "value_embeddings": Rates("adamw", c["VALUE_EMBEDDING_LR"] * scale, c["VALUE_EMBEDDING_DECAY"], beta1, 0),
        "resid_lambda": Rates("adamw", c["SCALAR_LR"] / 100, 0.0, beta1, 1),
        "x0_lambda": Rates("adamw", c["SCALAR_LR"], 0.0, c["X0_BETA1"], 1),
    }[name.partition(".")[0]]


class Optimizer:
    """Muon and AdamW over a dict of parameters, with the schedules applied."""

    def __init__(self, constants, params):
        self.constants = constants
        self.params = {name: np.asarray(value, np.float64) for name, value in params.items()}
        self.moments = dict.fromkeys(params, (0.0, 0.0))

    def step(self, grads, step, progress):
        """Update `params` from gradients by name."""
        c = self.constants
        for name, p in self.params.items():
            r = rates(c, name, p.shape)
            updates = step - r.first_step + 1
            if updates < 1:
                continue
            lr = r.lr * lr_scale(progress, c["WARMDOWN_RATIO"], c["FINAL_LR_FRAC"])
            decay = r.decay * (1 - progress)
            arguments = p, np.asarray(grads[name], np.float64), *self.moments[name]
            if r.rule == "adamw":
                new = adamw_step(*arguments, updates, lr, r.beta1, c["ADAM_BETA2"], decay)
            else:
                momentum = muon_momentum(step, c["MOMENTUM_RAMP_STEPS"])
                new = muon_step(*arguments, lr, decay, momentum, c["MUON_BETA2"])
            self.params[name], *self.moments[name] = new


def adamw_step(p, grad, m, v, updates, lr, beta1, beta2, decay, eps=1e-10):
    """(p, m, v) after the `updates`-th update, decay decoupled."""
    m = beta1 * m + (1 - beta1) * grad
    v = beta2 * v + (1 - beta2) * grad**2
    direction = (m / (1 - beta1**updates)) / (np.sqrt(v / (1 - beta2**updates)) + eps)
    return p * (1 - lr * decay) - lr * direction, m, v


def muon_step(p, grad, m, v, lr, decay, momentum, beta2=0.95):
    """(p, m, v) of one matrix (out, in); `lr` already holds the factor max(1, out / in) ** 0.5."""
    m = momentum * m + (1 - momentum) * grad
    g = (1 - momentum) * grad + momentum * m
    x = g / (1.02 * np.linalg.norm(g) + 1e-6)
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    rows, columns = x.shape
    mean_square = np.mean(x * x, axis=1 if rows >= columns else 0, keepdims=True)
    v = beta2 * v + (1 - beta2) * mean_square
    scaled = x / np.sqrt(np.maximum(v, 1e-10))
    g = scaled * np.linalg.norm(x) / max(np.linalg.norm(scaled), 1e-10)
    return p - lr * g - lr * decay * p * (g * p >= 0), m, v


def muon_lr_factor(rows, columns):
    return math.sqrt(max(1.0, rows / columns))


# Schedules


def lr_scale(progress, warmdown_ratio, final_lr_frac):
    if progress <= 1 - warmdown_ratio:
        return 1.0
    done = (progress - (1 - warmdown_ratio)) / warmdown_ratio
    return 1.0 + done * (final_lr_frac - 1.0)


def muon_momentum(step, ramp_steps):
    return 0.95 if step >= ramp_steps else 0.85 + 0.10 * step / ramp_steps
