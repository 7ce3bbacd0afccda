"""A GPT with Muon and AdamW in MLX: the one file that a search edits.

`train` is called once. It builds the model, compiles and warms up on random tokens while the clock stands still,
then takes one optimizer step for each batch until the budget is used. Everything here may change; what measures the
result lies elsewhere.
"""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
from mlx.core import array as Array
from mlx.utils import tree_flatten, tree_map, tree_map_with_path

from autoresearch.backends.mlx.device import compiled
from autoresearch.core.contract import DeviceInfo, Experiment, Trained, run_experiment

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
    """RMS norm over the last axis, without a weight."""
    return mx.fast.rms_norm(x, None, NORM_EPS)


def linear(x: Array, weight: Array) -> Array:
    """x @ weight.T, the float32 master weight taken in the dtype of x."""
    return x @ weight.astype(x.dtype).T


def embedding(tokens: Array, table: Array) -> Array:
    """Rows of `table` in its dtype. They are taken in float32, so that the gradient of a row adds up in it."""
    return table.astype(mx.float32)[tokens].astype(table.dtype)


def rotary_tables(seq_len: int) -> tuple[Array, Array]:
    """cos and sin, each (T, 1, d / 2) float32."""
    frequency = ROTARY_BASE ** -(mx.arange(0, HEAD_DIM, 2, dtype=mx.float32) / HEAD_DIM)
    angle = mx.outer(mx.arange(seq_len, dtype=mx.float32), frequency)[:, None]
    return mx.cos(angle), mx.sin(angle)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotary position embedding of (B, T, H, d), the two halves of d forming the pairs."""
    x1, x2 = mx.split(x, 2, axis=-1)
    return mx.concatenate((x1 * cos + x2 * sin, x2 * cos - x1 * sin), axis=-1)


def attend(q: Array, k: Array, v: Array, window: int | None) -> Array:
    """Causal attention of (B, T, H, d); a query sees itself and `window` keys before it, or all of them."""
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))  # (B, H, T, d)
    mask: Array | str = "causal"  # no mask at all would show the future
    if window is not None:
        position = mx.arange(q.shape[2])
        before = position[:, None] - position
        mask = (before >= 0) & (before <= window)
    out = mx.fast.scaled_dot_product_attention(q, k, v, scale=HEAD_DIM**-0.5, mask=mask)
    return out.transpose(0, 2, 1, 3)


def uniform(rows: int, columns: int, bound: float, dtype: mx.Dtype = mx.float32) -> Array:
    return mx.random.uniform(-bound, bound, (rows, columns)).astype(dtype)


def zeros(rows: int, columns: int) -> Array:
    return mx.zeros((rows, columns))


class Attention(nn.Module):
    def __init__(self, width: int, kv_width: int, bound: float, gated: bool) -> None:
        super().__init__()
        self.query = uniform(width, width, bound)
        self.key = uniform(kv_width, width, bound)
        self.value = uniform(kv_width, width, bound)
        self.output = zeros(width, width)
        self.gate = zeros(kv_width // HEAD_DIM, min(GATE_CHANNELS, width)) if gated else None

    def __call__(self, x: Array, value: Array | None, rotary: tuple[Array, Array], window: int | None) -> Array:
        B, T, _ = x.shape
        q = linear(x, self.query).reshape(B, T, -1, HEAD_DIM)
        k = linear(x, self.key).reshape(B, T, -1, HEAD_DIM)
        v = linear(x, self.value).reshape(B, T, -1, HEAD_DIM)
        if value is not None:
            gate = 2 * mx.sigmoid(linear(x[..., :GATE_CHANNELS], self.gate))  # (B, T, H_kv)
            v = v + gate[..., None] * value.reshape(v.shape)
        q, k = norm(rotate(q, *rotary)), norm(rotate(k, *rotary))
        return linear(attend(q, k, v, window).reshape(B, T, -1), self.output)


class MLP(nn.Module):
    def __init__(self, width: int, bound: float) -> None:
        super().__init__()
        self.input = uniform(4 * width, width, bound)
        self.output = zeros(width, 4 * width)

    def __call__(self, x: Array) -> Array:
        return linear(nn.relu(linear(x, self.input)).square(), self.output)


class Block(nn.Module):
    def __init__(self, width: int, kv_width: int, bound: float, gated: bool) -> None:
        super().__init__()
        self.attention = Attention(width, kv_width, bound, gated)
        self.mlp = MLP(width, bound)

    def __call__(self, x: Array, value: Array | None, rotary: tuple[Array, Array], window: int | None) -> Array:
        x = x + self.attention(norm(x), value, rotary, window)
        return x + self.mlp(norm(x))


class GPT(nn.Module):
    """Matrices are float32, (out, in); embedding and rotary tables, and with them the residual stream, `dtype`."""

    def __init__(self, vocab_size: int, seq_len: int, dtype: mx.Dtype) -> None:
        super().__init__()
        width = model_width()
        heads = width // HEAD_DIM
        if heads % KV_GROUP:
            raise ValueError(f"KV_GROUP = {KV_GROUP} does not divide the {heads} heads")
        kv_width = width // KV_GROUP
        bound = INIT_SCALE * math.sqrt(3 / width)
        self.wte = mx.random.normal((vocab_size, width)).astype(dtype)
        self.blocks = [Block(width, kv_width, bound, has_value_embedding(i)) for i in range(DEPTH)]
        self.value_embeddings = {
            str(i): uniform(vocab_size, kv_width, bound, dtype) for i in range(DEPTH) if has_value_embedding(i)
        }
        self.resid_lambda = mx.ones(DEPTH)
        self.x0_lambda = mx.full(DEPTH, X0_LAMBDA_INIT)
        self.head = mx.random.normal((vocab_size, width)) * 0.001
        # MLX takes no name with a leading underscore for a parameter.
        self._windows = attention_windows(seq_len)
        self._cos, self._sin = (table.astype(dtype) for table in rotary_tables(seq_len))

    def __call__(self, tokens: Array) -> Array:
        """tokens (B, T) -> logits (B, T, V) float32."""
        T = tokens.shape[1]
        rotary = self._cos[:T], self._sin[:T]
        x = x0 = norm(embedding(tokens, self.wte))
        # An array of float32 would promote the residual stream, where a Python number would not.
        resid_lambda, x0_lambda = self.resid_lambda.astype(x.dtype), self.x0_lambda.astype(x.dtype)
        for i, (block, window) in enumerate(zip(self.blocks, self._windows, strict=True)):
            value = embedding(tokens, self.value_embeddings[str(i)]) if has_value_embedding(i) else None
            x = resid_lambda[i] * x + x0_lambda[i] * x0
            x = block(x, value, rotary, window)
        logits = linear(norm(x), self.head).astype(mx.float32)
        return SOFTCAP * mx.tanh(logits / SOFTCAP)


def mean_loss(model: GPT, inputs: Array, targets: Array) -> Array:
    """Mean cross-entropy in nats of one micro-batch, inputs and targets (rows, T)."""
    return nn.losses.cross_entropy(model(inputs), targets, reduction="mean")


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


def parameter_groups(model: GPT) -> list[Group]:
    """AdamW for embeddings, head and scalars; Muon for the matrices of the blocks, stacked by shape."""
    scale = (model_width() / 768) ** -0.5
    tables = [f"value_embeddings.{layer}" for layer in model.value_embeddings]
    groups = [
        Group("head", "adamw", ["head"], HEAD_LR * scale, HEAD_DECAY),
        Group("wte", "adamw", ["wte"], EMBEDDING_LR * scale, EMBEDDING_DECAY),
        Group("value_embeddings", "adamw", tables, VALUE_EMBEDDING_LR * scale, VALUE_EMBEDDING_DECAY),
        Group("resid_lambda", "adamw", ["resid_lambda"], SCALAR_LR * 0.01, 0.0, first_step=1),
        Group("x0_lambda", "adamw", ["x0_lambda"], SCALAR_LR, 0.0, beta1=X0_BETA1, first_step=1),
    ]
    stacks: dict[tuple[int, ...], list[str]] = {}
    for name, matrix in tree_flatten({"blocks": model.blocks}):
        stacks.setdefault(matrix.shape, []).append(name)
    for (rows, columns), matrices in stacks.items():
        lr = MATRIX_LR * max(1.0, rows / columns) ** 0.5
        groups.append(Group(f"{rows}x{columns}", "muon", matrices, lr, MATRIX_DECAY))
    return groups


def adamw_update(
    p: Array, grad: Array, m: Array, v: Array, lr: Array, decay: Array, beta1: float, fix1: Array, fix2: Array
) -> tuple[Array, Array, Array]:
    """New p, m, v of one AdamW step; moments in float32, `decay` times lr applied, `fix1`, `fix2` bias corrections."""
    grad = grad.astype(mx.float32)
    m = m + (1 - beta1) * (grad - m)
    v = v + (1 - ADAM_BETA2) * (grad.square() - v)
    direction = (m / fix1) / ((v / fix2).sqrt() + ADAM_EPS)
    return (p.astype(mx.float32) * (1 - decay) - lr * direction).astype(p.dtype), m, v


def frobenius(x: Array) -> Array:
    """Norms (N, 1, 1) float32 of a stack of matrices; in bfloat16 the sum of the squares would be lost."""
    return x.astype(mx.float32).square().sum((-2, -1), keepdims=True).sqrt()


def polar_express(g: Array) -> Array:
    """The nearest semi-orthogonal matrices of a stack (N, out, in), approximately, in the dtype of `g`."""
    x = g / (1.02 * frobenius(g) + 1e-6).astype(g.dtype)
    tall = g.shape[-2] > g.shape[-1]
    x = x.swapaxes(-2, -1) if tall else x
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.swapaxes(-2, -1)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.swapaxes(-2, -1) if tall else x


def muon_update(
    p: Array, grad: Array, m: Array, v: Array, lr: Array, decay: Array, momentum: Array, dtype: mx.Dtype
) -> tuple[Array, Array, Array]:
    """New p, m, v of one Muon step on stacks (N, out, in).

    Nesterov momentum, orthogonalisation in `dtype`, variance reduction along the longer side (NorMuon,
    arXiv:2510.05491) at an unchanged Frobenius norm, and weight decay only where it agrees with the update.
    """
    m = m + (1 - momentum) * (grad - m)
    g = polar_express((grad + momentum * (m - grad)).astype(dtype)).astype(mx.float32)
    v = v + (1 - MUON_BETA2) * (g.square().mean(-1 if v.shape[-1] == 1 else -2, keepdims=True) - v)
    scaled = g * mx.maximum(v, 1e-10).rsqrt()
    g = scaled * (frobenius(g) / mx.maximum(frobenius(scaled), 1e-10))
    return p - lr * g - decay * p * (g * p >= 0), m, v


class MuonAdamW:
    """Both rules over `parameter_groups`, with the schedules applied."""

    def __init__(self, model: GPT, device: DeviceInfo) -> None:
        self.dtype = getattr(mx, device.dtype)
        self.groups = parameter_groups(model)
        params = dict(tree_flatten(model.parameters()))
        self.moments = [self.zero_moments(group, params) for group in self.groups]

    @staticmethod
    def zero_moments(group: Group, params: dict[str, Array]) -> list[list[Array]]:
        """First and second moments, float32: for each parameter, or for the whole stack of a Muon group."""
        if group.rule == "adamw":
            return [[mx.zeros(params[name].shape), mx.zeros(params[name].shape)] for name in group.params]
        rows, columns = params[group.params[0]].shape
        one_a_row = (rows, 1) if rows >= columns else (1, columns)
        return [[mx.zeros((len(group.params), *shape)) for shape in ((rows, columns), one_a_row)]]

    def rates(self, step: int, progress: float) -> Array:
        """(groups, 6): lr, decay, share of the gradient, bias corrections, momentum. Numbers would be compiled in."""
        table = []
        for group in self.groups:
            updates = step - group.first_step + 1
            lr = group.lr * lr_scale(progress) if updates > 0 else 0.0
            decay = lr * group.decay * decay_scale(progress)
            fixes = [1 - beta ** max(1, updates) for beta in (group.beta1, ADAM_BETA2)]
            table.append([lr, decay, float(updates > 0), *fixes, muon_momentum(step)])
        return mx.array(table)

    def step(self, model: GPT, grads: dict[str, Array], rates: Array) -> None:
        """Update every parameter from its gradient."""
        params = dict(tree_flatten(model.parameters()))
        for group, moments, rate in zip(self.groups, self.moments, rates, strict=True):
            lr, decay, share, fix1, fix2, momentum = rate
            if group.rule == "adamw":
                for name, moment in zip(group.params, moments, strict=True):
                    params[name], *moment[:] = adamw_update(
                        params[name], share * grads[name], *moment, lr, decay, group.beta1, fix1, fix2
                    )
            else:
                stacks = [mx.stack([arrays[name] for name in group.params]) for arrays in (params, grads)]
                new, *moments[0][:] = muon_update(*stacks, *moments[0], lr, decay, momentum, self.dtype)
                params.update(zip(group.params, new, strict=True))
        model.update(tree_map_with_path(lambda name, _: params[name], model.parameters()))


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


def flops_per_token(model: GPT, seq_len: int) -> int:
    """Forward and backward: 6 for each weight of a matrix product, 12 for each channel of a query and key in reach."""
    weights = model.head.size + sum(p.size for _, p in tree_flatten(model.blocks))
    keys = sum(seq_len if window is None else min(window, seq_len) for window in attention_windows(seq_len))
    return 6 * weights + 12 * model_width() * keys


def train(experiment: Experiment) -> Trained:
    device, seq_len = experiment.device, experiment.seq_len
    rows, accumulation = micro_batches(seq_len, experiment.max_rows)
    model = GPT(experiment.vocab_size, seq_len, getattr(mx, device.dtype))
    optimizer = MuonAdamW(model, device)
    micro_loss = nn.value_and_grad(model, lambda x, y: mean_loss(model, x, y) / accumulation)
    experiment.report(depth=DEPTH, width=model_width(), flops_per_token=flops_per_token(model, seq_len))

    def take_step(inputs: Array, targets: Array, rates: Array) -> Array:
        losses, grads = [], {}
        for x, y in zip(inputs, targets, strict=True):
            # In a lazy graph nothing else keeps all micro-batches from being in memory at once.
            after = mx.depends(x, list(grads.values()))
            loss, tree = micro_loss(after, y)
            new = dict(tree_flatten(tree))
            grads = {name: grad + new[name].astype(mx.float32) for name, grad in grads.items()} or new
            losses.append(loss)
        optimizer.step(model, grads, rates)
        return mx.stack(losses).sum()

    state = [model.state, optimizer.moments]  # all that a step changes
    step_on = compiled(take_step, device, state)

    # One step on random tokens compiles and allocates everything; then the start is put back.
    start = model.parameters(), tree_map(lambda array: array, optimizer.moments)
    mx.eval(step_on(*experiment.dummy_batch(rows, accumulation), optimizer.rates(1, 0.0)), state)
    model.update(start[0])
    optimizer.moments[:] = start[1]
    del start

    # A collection of Python's garbage in the middle of a step would stall the device.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for step, (inputs, targets) in enumerate(experiment.batches(rows, accumulation)):
            loss = step_on(inputs, targets, optimizer.rates(step, experiment.progress))
            mx.async_eval(loss, state)
            experiment.log(loss)
    finally:
        gc.enable()
        gc.unfreeze()
    return Trained(lambda params, tokens: params(tokens), model)


if __name__ == "__main__":
    run_experiment()
