"""A GPT with Muon and AdamW in JAX: the one file that a search edits.

`train` is called once. It builds the model, compiles and warms up on random tokens while the clock stands still,
then takes one optimizer step for each batch until the budget is used. Everything here may change; what measures the
result lies elsewhere.
"""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from autoresearch.backends.jax_tpu.device import Attend, attention_provider, replicated
from autoresearch.core.contract import DeviceInfo, Experiment, Trained, run_experiment

Params = dict[str, Array]  # by name, e.g. "blocks.0.attention.query"; matrices are (out, in)
Moments = list[tuple[Array, Array]]  # of one group
Rotary = tuple[Array, Array]

# ----------------------------------------------------------------------------------------------------------------------
# Hyper-parameters
# ----------------------------------------------------------------------------------------------------------------------

# Model
DEPTH = 8  # layers; the dial of the model's size, search: 2..12 int
ASPECT_RATIO = 64  # width for each layer of depth, rounded up to whole heads, search: 16..96 int
HEAD_DIM = 128  # width of one attention head, search: 32 | 64 | 128
KV_GROUP = 1  # query heads that share one key/value head; divides the number of heads
WINDOW_PATTERN = "SSSL"  # a letter a layer, repeating, L full and S short, search: "L" | "SL" | "SSSL" | "SSSSL"
SHORT_WINDOW_DIVISOR = 2  # a short window holds seq_len // this keys before the query, search: 2 | 4 | 8 | 16
ROTARY_BASE = 10_000  # longest rotary wavelength in tokens / 2 pi, search: 1000 | 10000 | 50000 | 200000 | 1000000
SOFTCAP = 15.0  # logits are bounded to +- this
NORM_EPS = 1e-6  # added to the mean square in every norm

# Initial values
INIT_SCALE = 1.0  # spread of the weights, as a multiple of 1 / sqrt(width), search: 0.3..2.0 log
X0_LAMBDA_INIT = 0.1  # share of the embedding mixed into every layer's input, search: 0.0..0.3

# Batch
TOTAL_BATCH_SIZE = 524_288  # tokens, search: 2048 | 4096 | 8192 | 16384 | 32768 | 65536 | 131072 | 262144 | 524288
DEVICE_BATCH_ROWS = 128  # rows a micro-batch at most; lower it when memory runs out, the total stays

# Optimizer
EMBEDDING_LR = 0.6  # token embedding, AdamW, for width 768, search: 0.06..2.0 log
EMBEDDING_DECAY = 0.0  # weight decay of the token embedding, search: 0.0..0.01
VALUE_EMBEDDING_LR = 0.6  # value embeddings, AdamW, for width 768, search: 0.06..2.0 log
VALUE_EMBEDDING_DECAY = 0.0  # weight decay of the value embeddings, search: 0.0..0.01
HEAD_LR = 0.004  # output head, AdamW, for width 768, search: 0.0004..0.04 log
HEAD_DECAY = 0.0  # weight decay of the output head, search: 0.0..0.05
MATRIX_LR = 0.04  # matrices of the blocks, Muon, search: 0.004..0.2 log
MATRIX_DECAY = 0.2  # cautious weight decay of the matrices, search: 0.0..0.5
SCALAR_LR = 0.5  # x0_lambda, AdamW; resid_lambda takes a hundredth of it, search: 0.05..2.0 log
ADAM_BETA1 = 0.8  # first-moment decay of AdamW
ADAM_BETA2 = 0.95  # second-moment decay of AdamW
X0_BETA1 = 0.96  # first-moment decay of AdamW for x0_lambda
MUON_BETA2 = 0.95  # second-moment decay of Muon's variance reduction

# Schedules
WARMDOWN_RATIO = 0.5  # last share of the budget, over which the learning rates fall, search: 0.1..1.0
FINAL_LR_FRAC = 0.0  # learning rates at the end, as a share of their peak, search: 0.0..0.2
MOMENTUM_RAMP_STEPS = 300  # steps over which Muon's momentum rises from 0.85 to 0.95, search: 50..600 int

# ----------------------------------------------------------------------------------------------------------------------
# Model
# ----------------------------------------------------------------------------------------------------------------------

GATE_CHANNELS = 32  # leading channels of a layer's input that open the gates of its value embedding


def model_width() -> int:
    """D: DEPTH * ASPECT_RATIO, rounded up to whole heads."""
    return math.ceil(DEPTH * ASPECT_RATIO / HEAD_DIM) * HEAD_DIM


def attention_windows(seq_len: int) -> list[int | None]:
    """For each layer the keys that a query sees before itself; None is all of them. The last layer is always full."""
    size = {"L": None, "S": seq_len // SHORT_WINDOW_DIVISOR}
    letters = [WINDOW_PATTERN[i % len(WINDOW_PATTERN)] for i in range(DEPTH - 1)] + ["L"]
    return [size[letter] for letter in letters]


def has_value_embedding(layer: int) -> bool:
    """Every second layer, the last one included."""
    return (DEPTH - 1 - layer) % 2 == 0


def norm(x: Array) -> Array:
    """RMS norm over the last axis, without a weight, computed in float32."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + NORM_EPS)).astype(x.dtype)


def linear(x: Array, weight: Array) -> Array:
    """x @ weight.T, the float32 master weight taken in the dtype of x."""
    # With rows and positions as one axis XLA computes the gradient of the weight twice as fast on a processor.
    return (x.reshape(-1, x.shape[-1]) @ weight.astype(x.dtype).T).reshape(*x.shape[:-1], -1)


def embedding(tokens: Array, table: Array) -> Array:
    """Rows of a table. Taken from float32, so that the gradient of a frequent token is summed in float32."""
    return table.astype(jnp.float32)[tokens].astype(table.dtype)


def rotary_tables(seq_len: int) -> tuple[Array, Array]:
    """cos and sin, each (T, 1, d / 2) float32."""
    frequency = ROTARY_BASE ** -(jnp.arange(0, HEAD_DIM, 2, dtype=jnp.float32) / HEAD_DIM)
    angle = jnp.outer(jnp.arange(seq_len, dtype=jnp.float32), frequency)[:, None]
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotary position embedding of (B, T, H, d), the two halves of d forming the pairs."""
    x1, x2 = jnp.split(x, 2, axis=-1)
    return jnp.concatenate((x1 * cos + x2 * sin, x2 * cos - x1 * sin), axis=-1)


def uniform(key: Array, rows: int, columns: int, bound: float) -> Array:
    return jax.random.uniform(key, (rows, columns), minval=-bound, maxval=bound)


def zeros(rows: int, columns: int) -> Array:
    return jnp.zeros((rows, columns))


def initial_params(key: Array, vocab_size: int, dtype: str) -> Params:
    """Matrices are float32; embedding tables, and with them the residual stream, `dtype`."""
    width = model_width()
    heads = width // HEAD_DIM
    if heads % KV_GROUP:
        raise ValueError(f"KV_GROUP = {KV_GROUP} does not divide the {heads} heads")
    kv_width = width // KV_GROUP
    bound = INIT_SCALE * math.sqrt(3 / width)
    keys = iter(jax.random.split(key, 2 + 5 * DEPTH))
    params = {"wte": jax.random.normal(next(keys), (vocab_size, width)).astype(dtype)}
    for i in range(DEPTH):
        name = f"blocks.{i}.attention"
        params[f"{name}.query"] = uniform(next(keys), width, width, bound)
        params[f"{name}.key"] = uniform(next(keys), kv_width, width, bound)
        params[f"{name}.value"] = uniform(next(keys), kv_width, width, bound)
        params[f"{name}.output"] = zeros(width, width)
        if has_value_embedding(i):
            params[f"{name}.gate"] = zeros(kv_width // HEAD_DIM, min(GATE_CHANNELS, width))
            params[f"value_embeddings.{i}"] = uniform(next(keys), vocab_size, kv_width, bound).astype(dtype)
        params[f"blocks.{i}.mlp.input"] = uniform(next(keys), 4 * width, width, bound)
        params[f"blocks.{i}.mlp.output"] = zeros(width, 4 * width)
    params["resid_lambda"] = jnp.ones(DEPTH)
    params["x0_lambda"] = jnp.full(DEPTH, X0_LAMBDA_INIT, jnp.float32)
    params["head"] = jax.random.normal(next(keys), (vocab_size, width)) * 0.001
    return params


def attention(
    params: Params, name: str, x: Array, value: Array | None, rotary: Rotary, attend: Attend, window: int | None
) -> Array:
    B, T, _ = x.shape
    q = linear(x, params[f"{name}.query"]).reshape(B, T, -1, HEAD_DIM)
    k = linear(x, params[f"{name}.key"]).reshape(B, T, -1, HEAD_DIM)
    v = linear(x, params[f"{name}.value"]).reshape(B, T, -1, HEAD_DIM)
    if value is not None:
        gate = 2 * jax.nn.sigmoid(linear(x[..., :GATE_CHANNELS], params[f"{name}.gate"]))  # (B, T, H_kv)
        v = v + gate[..., None] * value.reshape(v.shape)
    q, k = norm(rotate(q, *rotary)), norm(rotate(k, *rotary))
    return linear(attend(q, k, v, window).reshape(B, T, -1), params[f"{name}.output"])


def mlp(params: Params, name: str, x: Array) -> Array:
    return linear(jnp.square(jax.nn.relu(linear(x, params[f"{name}.input"]))), params[f"{name}.output"])


def block(
    params: Params, name: str, x: Array, value: Array | None, rotary: Rotary, attend: Attend, window: int | None
) -> Array:
    x = x + attention(params, f"{name}.attention", norm(x), value, rotary, attend, window)
    return x + mlp(params, f"{name}.mlp", norm(x))


def gpt(params: Params, tokens: Array, attend: Attend, windows: list[int | None]) -> Array:
    """tokens (B, T) -> logits (B, T, V) float32."""
    x = x0 = norm(embedding(tokens, params["wte"]))
    cos, sin = (table.astype(x.dtype) for table in rotary_tables(tokens.shape[1]))
    for i, window in enumerate(windows):
        value = embedding(tokens, params[f"value_embeddings.{i}"]) if has_value_embedding(i) else None
        # Computed in float32, as the lambdas are, and rounded once.
        x = (params["resid_lambda"][i] * x + params["x0_lambda"][i] * x0).astype(x.dtype)
        x = block(params, f"blocks.{i}", x, value, (cos, sin), attend, window)
    logits = linear(norm(x), params["head"]).astype(jnp.float32)
    return SOFTCAP * jnp.tanh(logits / SOFTCAP)


def mean_loss(params: Params, inputs: Array, targets: Array, attend: Attend, windows: list[int | None]) -> Array:
    """Mean cross-entropy in nats of one micro-batch, inputs and targets (rows, T)."""
    logits = gpt(params, inputs, attend, windows)
    chosen = jnp.where(targets[..., None] == jnp.arange(logits.shape[-1]), logits, 0).sum(-1)
    return (jax.nn.logsumexp(logits, axis=-1) - chosen).mean()


# ----------------------------------------------------------------------------------------------------------------------
# Optimizer
# ----------------------------------------------------------------------------------------------------------------------

ADAM_EPS = 1e-10
# Five quintic iterations that drive the singular values to 1 (Polar Express, arXiv:2505.16932).
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


@dataclass
class Group:
    """Parameters that share a rule, a peak learning rate and a weight decay."""

    name: str
    rule: str  # "adamw" or "muon"
    params: list[str]
    lr: float
    decay: float
    beta1: float = ADAM_BETA1
    # At step 0 every block outputs zero and the last norm hides the scale of the residual: the gradient of the
    # lambdas is rounding noise, which Adam would turn into a full step.
    first_step: int = 0


def parameter_groups(params: Params) -> list[Group]:
    """AdamW for embeddings, head and scalars; Muon for the matrices of the blocks, stacked by shape."""
    scale = (model_width() / 768) ** -0.5
    tables = [name for name in params if name.startswith("value_embeddings.")]
    groups = [
        Group("head", "adamw", ["head"], HEAD_LR * scale, HEAD_DECAY),
        Group("wte", "adamw", ["wte"], EMBEDDING_LR * scale, EMBEDDING_DECAY),
        Group("value_embeddings", "adamw", tables, VALUE_EMBEDDING_LR * scale, VALUE_EMBEDDING_DECAY),
        Group("resid_lambda", "adamw", ["resid_lambda"], SCALAR_LR * 0.01, 0.0, first_step=1),
        Group("x0_lambda", "adamw", ["x0_lambda"], SCALAR_LR, 0.0, beta1=X0_BETA1, first_step=1),
    ]
    stacks: dict[tuple[int, int], list[str]] = {}
    for name, matrix in params.items():
        if name.startswith("blocks."):
            stacks.setdefault(matrix.shape, []).append(name)
    for (rows, columns), matrices in stacks.items():
        lr = MATRIX_LR * max(1.0, rows / columns) ** 0.5
        groups.append(Group(f"{rows}x{columns}", "muon", matrices, lr, MATRIX_DECAY))
    return groups


def adamw_update(
    p: Array, grad: Array, m: Array, v: Array, lr: Array, decay: Array, beta1: float, fix1: Array, fix2: Array
) -> tuple[Array, Array, Array]:
    """p, m, v after one AdamW step; `decay` times lr applied, `fix1` and `fix2` the bias corrections."""
    m = m + (1 - beta1) * (grad - m)
    v = v + (1 - ADAM_BETA2) * (jnp.square(grad) - v)
    direction = (m / fix1) / (jnp.sqrt(v / fix2) + ADAM_EPS)
    return (p.astype(jnp.float32) * (1 - decay) - lr * direction).astype(p.dtype), m, v


def polar_express(g: Array) -> Array:
    """The nearest semi-orthogonal matrices of a stack (N, out, in), approximately, in the dtype of `g`."""
    x = g / (1.02 * jnp.linalg.norm(g, axis=(-2, -1), keepdims=True) + 1e-6)
    tall = g.shape[-2] > g.shape[-1]
    x = x.mT if tall else x
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.mT if tall else x


def muon_update(
    p: Array, grad: Array, m: Array, v: Array, lr: Array, decay: Array, momentum: Array, dtype: str
) -> tuple[Array, Array, Array]:
    """p, m, v after one Muon step on stacks (N, out, in).

    Nesterov momentum, orthogonalisation in `dtype`, variance reduction along the longer side (NorMuon,
    arXiv:2510.05491) at an unchanged Frobenius norm, and weight decay only where it agrees with the update.
    """
    m = m + (1 - momentum) * (grad - m)
    g = polar_express((grad + momentum * (m - grad)).astype(dtype)).astype(jnp.float32)
    mean_square = jnp.square(g).mean(-1 if v.shape[-1] == 1 else -2, keepdims=True)
    v = v + (1 - MUON_BETA2) * (mean_square - v)
    scaled = g * jax.lax.rsqrt(jnp.maximum(v, 1e-10))
    norms = [jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) for x in (g, scaled)]
    g = scaled * (norms[0] / jnp.maximum(norms[1], 1e-10))
    return p - lr * g - decay * p * (g * p >= 0), m, v


class MuonAdamW:
    """Both rules over `parameter_groups`, with the schedules applied. It holds no arrays."""

    def __init__(self, params: Params, device: DeviceInfo) -> None:
        self.dtype = device.dtype
        self.groups = parameter_groups(params)

    @staticmethod
    def zero_moments(group: Group, params: Params) -> Moments:
        """First and second moments, float32: for each parameter, or for the whole stack of a Muon group."""
        shapes = [params[name].shape for name in group.params]
        if group.rule == "adamw":
            return [(jnp.zeros(shape), jnp.zeros(shape)) for shape in shapes]
        (rows, columns), n = shapes[0], len(shapes)
        second = (n, rows, 1) if rows >= columns else (n, 1, columns)
        return [(jnp.zeros((n, rows, columns)), jnp.zeros(second))]

    def rates(self, step: int, progress: float) -> np.ndarray:
        """(groups, 4) float32, what changes from step to step: an argument of a step, so that it compiles once.

        lr, decay times lr, then the bias corrections of AdamW, or Muon's momentum; zeros for a group that rests.
        """
        rates = np.zeros((len(self.groups), 4), np.float32)
        for row, group in zip(rates, self.groups, strict=True):
            updates = step - group.first_step + 1
            if updates > 0:
                lr = group.lr * lr_scale(progress)
                decay = lr * group.decay * decay_scale(progress)
                adamw = 1 - group.beta1**updates, 1 - ADAM_BETA2**updates
                row[:] = lr, decay, *(adamw if group.rule == "adamw" else (muon_momentum(step), 0.0))
        return rates

    def step(self, params: Params, grads: Params, moments: list[Moments], rates: Array) -> tuple[Params, list[Moments]]:
        """The parameters and moments after one update from `grads` and a table of `rates`."""
        found, after = {}, []
        for group, before, row in zip(self.groups, moments, rates, strict=True):
            update = self.adamw if group.rule == "adamw" else self.muon
            new, now = update(group, params, grads, before, *row)
            found |= new
            after.append(now)
        return found, after

    def adamw(
        self, group: Group, params: Params, grads: Params, moments: Moments, lr: Array, decay: Array, *fixes: Array
    ) -> tuple[Params, Moments]:
        found, after, rests = {}, [], fixes[0] == 0
        for name, (m, v) in zip(group.params, moments, strict=True):
            old = params[name], m, v
            new = adamw_update(params[name], grads[name], m, v, lr, decay, group.beta1, *fixes)
            found[name], *pair = (jnp.where(rests, *both) for both in zip(old, new, strict=True))
            after.append(tuple(pair))
        return found, after

    def muon(
        self, group: Group, params: Params, grads: Params, moments: Moments, lr: Array, decay: Array, *rest: Array
    ) -> tuple[Params, Moments]:
        stacks = [jnp.stack([tree[name] for name in group.params]) for tree in (params, grads)]
        new, m, v = muon_update(*stacks, *moments[0], lr, decay, rest[0], self.dtype)
        return dict(zip(group.params, new, strict=True)), [(m, v)]


# ----------------------------------------------------------------------------------------------------------------------
# Schedules
# ----------------------------------------------------------------------------------------------------------------------


def lr_scale(progress: float) -> float:
    """1, then linear to FINAL_LR_FRAC over the last WARMDOWN_RATIO of the budget."""
    remaining = min(1.0, (1.0 - progress) / WARMDOWN_RATIO)
    return FINAL_LR_FRAC + (1.0 - FINAL_LR_FRAC) * remaining


def decay_scale(progress: float) -> float:
    """Linear from 1 to 0 over the budget."""
    return 1.0 - progress


def muon_momentum(step: int) -> float:
    """Linear from 0.85 to 0.95 over the first MOMENTUM_RAMP_STEPS."""
    return 0.85 + 0.10 * min(1.0, step / MOMENTUM_RAMP_STEPS)


# ----------------------------------------------------------------------------------------------------------------------
# Training
# ----------------------------------------------------------------------------------------------------------------------


def micro_batches(seq_len: int, max_rows: int) -> tuple[int, int]:
    """(rows, accumulation): as many rows at once as fit, their product exactly TOTAL_BATCH_SIZE // seq_len."""
    total = TOTAL_BATCH_SIZE // seq_len
    if total < 1 or total * seq_len != TOTAL_BATCH_SIZE:
        raise ValueError(f"TOTAL_BATCH_SIZE = {TOTAL_BATCH_SIZE} is no multiple of the {seq_len} tokens of a row")
    rows = next(n for n in range(min(DEVICE_BATCH_ROWS, max_rows, total), 0, -1) if total % n == 0)
    return rows, total // rows


def flops_per_token(params: Params, seq_len: int) -> int:
    """Forward and backward: 6 for each weight of a matrix product, 12 for each channel of a query and key in reach."""
    weights = sum(p.size for name, p in params.items() if name == "head" or name.startswith("blocks."))
    keys = sum(seq_len if window is None else min(window, seq_len) for window in attention_windows(seq_len))
    return 6 * weights + 12 * model_width() * keys


def train(experiment: Experiment) -> Trained:
    device, seq_len = experiment.device, experiment.seq_len
    rows, accumulation = micro_batches(seq_len, experiment.max_rows)
    windows = attention_windows(seq_len)
    attend = attention_provider(device)
    everywhere = replicated(device)
    initial = partial(initial_params, vocab_size=experiment.vocab_size, dtype=device.dtype)
    key = jax.random.key(experiment.seed)
    shapes = jax.eval_shape(initial, key)
    optimizer = MuonAdamW(shapes, device)
    loss_and_grads = jax.value_and_grad(partial(mean_loss, attend=attend, windows=windows))
    experiment.report(depth=DEPTH, width=model_width(), flops_per_token=flops_per_token(shapes, seq_len))

    @partial(jax.jit, out_shardings=everywhere)
    def start(key: Array) -> tuple[Params, list[Moments]]:
        params = initial(key)
        return params, [optimizer.zero_moments(group, params) for group in optimizer.groups]

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=everywhere)
    def take_step(
        params: Params, moments: list[Moments], rates: Array, inputs: Array, targets: Array
    ) -> tuple[Params, list[Moments], Array]:
        def add(sums: tuple[Array, Params], batch: tuple[Array, Array]) -> tuple[tuple[Array, Params], None]:
            found = loss_and_grads(params, *batch)
            return jax.tree.map(lambda total, x: total + x / accumulation, sums, found), None

        zeros = jnp.zeros(()), {name: jnp.zeros(p.shape) for name, p in params.items()}
        (loss, grads), _ = jax.lax.scan(add, zeros, (inputs, targets))
        return *optimizer.step(params, grads, moments, rates), loss

    # One step on random tokens, from a start of its own, compiles and allocates everything.
    warm_up = experiment.dummy_batch(rows, accumulation)
    jax.block_until_ready(take_step(*start(key), optimizer.rates(1, 0.0), *warm_up))
    params, moments = start(key)

    # A collection of Python's garbage in the middle of a step would stall the device.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for step, (inputs, targets) in enumerate(experiment.batches(rows, accumulation)):
            rates = optimizer.rates(step, experiment.progress)
            params, moments, loss = take_step(params, moments, rates, inputs, targets)
            loss.copy_to_host_async()
            experiment.log(loss)
    finally:
        gc.enable()
        gc.unfreeze()
    return Trained(partial(gpt, attend=attend, windows=windows), params)


if __name__ == "__main__":
    run_experiment()
