"""A GPT with Muon and AdamW in PyTorch: the one file that a search edits.

`train` is called once. It builds the model, compiles and warms up on random tokens while the clock stands still,
then takes one optimizer step for each batch until the budget is used. Everything here may change; what measures the
result lies elsewhere.
"""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoresearch.backends.cuda_torch.device import Attend, attention, compiled, to_host
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


def norm(x: Tensor) -> Tensor:
    """RMS norm over the last axis, without a weight."""
    return F.rms_norm(x, (x.size(-1),), eps=NORM_EPS)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T, the float32 master weight taken in the dtype of x."""
    return F.linear(x, weight.to(x.dtype))


def rotary_tables(seq_len: int) -> tuple[Tensor, Tensor]:
    """cos and sin, each (T, 1, d / 2) float32."""
    frequency = ROTARY_BASE ** -(torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM)
    angle = torch.outer(torch.arange(seq_len, dtype=torch.float32), frequency)[:, None]
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of (B, T, H, d), the two halves of d forming the pairs."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos + x2 * sin, x2 * cos - x1 * sin), dim=-1)


def uniform(rows: int, columns: int, bound: float, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.empty(rows, columns).uniform_(-bound, bound).to(dtype))


def zeros(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(rows, columns))


class Attention(nn.Module):
    def __init__(self, width: int, kv_width: int, bound: float, gated: bool) -> None:
        super().__init__()
        self.query = uniform(width, width, bound)
        self.key = uniform(kv_width, width, bound)
        self.value = uniform(kv_width, width, bound)
        self.output = zeros(width, width)
        self.gate = zeros(kv_width // HEAD_DIM, min(GATE_CHANNELS, width)) if gated else None

    def forward(
        self, x: Tensor, value: Tensor | None, rotary: tuple[Tensor, Tensor], attend: Attend, window: int | None
    ) -> Tensor:
        B, T, _ = x.shape
        q = linear(x, self.query).view(B, T, -1, HEAD_DIM)
        k = linear(x, self.key).view(B, T, -1, HEAD_DIM)
        v = linear(x, self.value).view(B, T, -1, HEAD_DIM)
        if value is not None:
            gate = 2 * torch.sigmoid(linear(x[..., :GATE_CHANNELS], self.gate))  # (B, T, H_kv)
            v = v + gate[..., None] * value.view_as(v)
        q, k = norm(rotate(q, *rotary)), norm(rotate(k, *rotary))
        return linear(attend(q, k, v, window).reshape(B, T, -1), self.output)


class MLP(nn.Module):
    def __init__(self, width: int, bound: float) -> None:
        super().__init__()
        self.input = uniform(4 * width, width, bound)
        self.output = zeros(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        return linear(F.relu(linear(x, self.input)).square(), self.output)


class Block(nn.Module):
    def __init__(self, width: int, kv_width: int, bound: float, gated: bool) -> None:
        super().__init__()
        self.attention = Attention(width, kv_width, bound, gated)
        self.mlp = MLP(width, bound)

    def forward(
        self, x: Tensor, value: Tensor | None, rotary: tuple[Tensor, Tensor], attend: Attend, window: int | None
    ) -> Tensor:
        x = x + self.attention(norm(x), value, rotary, attend, window)
        return x + self.mlp(norm(x))


class GPT(nn.Module):
    """Matrices are float32, (out, in); embedding and rotary tables, and with them the residual stream, `dtype`."""

    def __init__(self, vocab_size: int, seq_len: int, dtype: torch.dtype, attend: Attend) -> None:
        super().__init__()
        width = model_width()
        heads = width // HEAD_DIM
        if heads % KV_GROUP:
            raise ValueError(f"KV_GROUP = {KV_GROUP} does not divide the {heads} heads")
        kv_width = width // KV_GROUP
        bound = INIT_SCALE * math.sqrt(3 / width)
        self.attend, self.windows = attend, attention_windows(seq_len)
        self.wte = nn.Parameter(torch.randn(vocab_size, width).to(dtype))
        self.blocks = nn.ModuleList(Block(width, kv_width, bound, has_value_embedding(i)) for i in range(DEPTH))
        self.value_embeddings = nn.ParameterDict(
            {str(i): uniform(vocab_size, kv_width, bound, dtype) for i in range(DEPTH) if has_value_embedding(i)}
        )
        self.resid_lambda = nn.Parameter(torch.ones(DEPTH))
        self.x0_lambda = nn.Parameter(torch.full((DEPTH,), X0_LAMBDA_INIT))
        self.head = nn.Parameter(torch.randn(vocab_size, width) * 0.001)
        for name, table in zip(("cos", "sin"), rotary_tables(seq_len), strict=True):
            self.register_buffer(name, table.to(dtype), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) -> logits (B, T, V) float32."""
        T = tokens.size(1)
        rotary = self.cos[:T], self.sin[:T]
        x = x0 = norm(F.embedding(tokens, self.wte))
        for i, (block, window) in enumerate(zip(self.blocks, self.windows, strict=True)):
            value = F.embedding(tokens, self.value_embeddings[str(i)]) if has_value_embedding(i) else None
            x = self.resid_lambda[i] * x + self.x0_lambda[i] * x0
            x = block(x, value, rotary, self.attend, window)
        logits = linear(norm(x), self.head).float()
        return SOFTCAP * torch.tanh(logits / SOFTCAP)


def mean_loss(model: GPT, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats of one micro-batch, inputs and targets (rows, T)."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


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
    params: list[Tensor]
    lr: float
    decay: float
    beta1: float = ADAM_BETA1
    # At step 0 every block outputs zero and the last norm hides the scale of the residual: the gradient of the
    # lambdas is rounding noise, which Adam would turn into a full step.
    first_step: int = 0


def parameter_groups(model: GPT) -> list[Group]:
    """AdamW for embeddings, head and scalars; Muon for the matrices of the blocks, stacked by shape."""
    scale = (model_width() / 768) ** -0.5
    tables = list(model.value_embeddings.values())
    groups = [
        Group("head", "adamw", [model.head], HEAD_LR * scale, HEAD_DECAY),
        Group("wte", "adamw", [model.wte], EMBEDDING_LR * scale, EMBEDDING_DECAY),
        Group("value_embeddings", "adamw", tables, VALUE_EMBEDDING_LR * scale, VALUE_EMBEDDING_DECAY),
        Group("resid_lambda", "adamw", [model.resid_lambda], SCALAR_LR * 0.01, 0.0, first_step=1),
        Group("x0_lambda", "adamw", [model.x0_lambda], SCALAR_LR, 0.0, beta1=X0_BETA1, first_step=1),
    ]
    stacks: dict[tuple[int, int], list[Tensor]] = {}
    for matrix in model.blocks.parameters():
        stacks.setdefault((matrix.size(0), matrix.size(1)), []).append(matrix)
    for (rows, columns), matrices in stacks.items():
        lr = MATRIX_LR * max(1.0, rows / columns) ** 0.5
        groups.append(Group(f"{rows}x{columns}", "muon", matrices, lr, MATRIX_DECAY))
    return groups


def adamw_update(
    p: Tensor, grad: Tensor, m: Tensor, v: Tensor, lr: Tensor, decay: Tensor, beta1: float, fix1: Tensor, fix2: Tensor
) -> None:
    """One AdamW step in place; moments in float32, `decay` times lr applied, `fix1` and `fix2` the bias corrections."""
    grad = grad.float()
    m.lerp_(grad, 1 - beta1)
    v.lerp_(grad.square(), 1 - ADAM_BETA2)
    direction = (m / fix1) / ((v / fix2).sqrt() + ADAM_EPS)
    p.copy_(p.float() * (1 - decay) - lr * direction)


def polar_express(g: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrices of a stack (N, out, in), approximately, in the dtype of `g`."""
    x = g / (1.02 * g.norm(dim=(-2, -1), keepdim=True) + 1e-6)
    tall = g.size(-2) > g.size(-1)
    x = x.mT if tall else x
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.mT if tall else x


def muon_update(
    p: Tensor, grad: Tensor, m: Tensor, v: Tensor, lr: Tensor, decay: Tensor, momentum: Tensor, dtype: torch.dtype
) -> Tensor:
    """One Muon step on stacks (N, out, in): returns the new weights, updates `m` and `v`.

    Nesterov momentum, orthogonalisation in `dtype`, variance reduction along the longer side (NorMuon,
    arXiv:2510.05491) at an unchanged Frobenius norm, and weight decay only where it agrees with the update.
    """
    m.lerp_(grad, 1 - momentum)
    g = polar_express(grad.lerp(m, momentum).to(dtype)).float()
    v.lerp_(g.square().mean(-1 if v.size(-1) == 1 else -2, keepdim=True), 1 - MUON_BETA2)
    scaled = g * v.clamp_min(1e-10).rsqrt()
    norms = [x.norm(dim=(-2, -1), keepdim=True) for x in (g, scaled)]
    g = scaled * (norms[0] / norms[1].clamp_min(1e-10))
    return p - lr * g - decay * p * (g * p >= 0)


class MuonAdamW:
    """Both rules over `parameter_groups`, with the schedules applied."""

    def __init__(self, model: GPT, device: DeviceInfo) -> None:
        self.dtype = getattr(torch, device.dtype)
        self.adamw_update, self.muon_update = compiled(adamw_update, device), compiled(muon_update, device)
        self.groups = parameter_groups(model)
        self.moments = [self.zero_moments(group) for group in self.groups]

    @staticmethod
    def zero_moments(group: Group) -> list[tuple[Tensor, Tensor]]:
        """First and second moments, float32: for each parameter, or for the whole stack of a Muon group."""
        if group.rule == "adamw":
            return [
                (torch.zeros_like(p, dtype=torch.float32), torch.zeros_like(p, dtype=torch.float32))
                for p in group.params
            ]
        first = torch.zeros_like(torch.stack(group.params))
        axis = -1 if first.size(-2) >= first.size(-1) else -2
        return [(first, torch.zeros_like(first.mean(axis, keepdim=True)))]

    @torch.no_grad()
    def step(self, step: int, progress: float) -> None:
        """Update every parameter from its gradient and clear the gradient."""
        for group, moments in zip(self.groups, self.moments, strict=True):
            updates = step - group.first_step + 1
            if updates > 0:
                lr = group.lr * lr_scale(progress)
                decay = lr * group.decay * decay_scale(progress)
                if group.rule == "adamw":
                    self.adamw(group, moments, lr, decay, updates)
                else:
                    self.muon(group, *moments[0], lr, decay, muon_momentum(step))
            for p in group.params:
                p.grad = None

    def adamw(self, group: Group, moments: list[tuple[Tensor, Tensor]], lr: float, decay: float, updates: int) -> None:
        # Scalars as tensors: a compiled update would be compiled again for each new number.
        scalar = group.params[0].new_full
        fixes = [scalar((), 1 - beta**updates, dtype=torch.float32) for beta in (group.beta1, ADAM_BETA2)]
        rates = [scalar((), value, dtype=torch.float32) for value in (lr, decay)]
        for p, (m, v) in zip(group.params, moments, strict=True):
            self.adamw_update(p, p.grad, m, v, *rates, group.beta1, *fixes)

    def muon(self, group: Group, m: Tensor, v: Tensor, lr: float, decay: float, momentum: float) -> None:
        rates = [m.new_full((), value) for value in (lr, decay, momentum)]
        grads = torch.stack([p.grad for p in group.params])
        for p, new in zip(
            group.params, self.muon_update(torch.stack(group.params), grads, m, v, *rates, self.dtype), strict=True
        ):
            p.copy_(new)

    def tensors(self) -> list[Tensor]:
        """All that a step changes."""
        return [t for group in self.groups for t in group.params] + [
            t for m in self.moments for pair in m for t in pair
        ]


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
    weights = model.head.numel() + sum(p.numel() for p in model.blocks.parameters())
    keys = sum(seq_len if window is None else min(window, seq_len) for window in model.windows)
    return 6 * weights + 12 * model_width() * keys


def train(experiment: Experiment) -> Trained:
    device, seq_len = experiment.device, experiment.seq_len
    rows, accumulation = micro_batches(seq_len, experiment.max_rows)
    attend = attention(device, seq_len, attention_windows(seq_len))
    with torch.device(device.platform):
        model = GPT(experiment.vocab_size, seq_len, getattr(torch, device.dtype), attend)
    optimizer = MuonAdamW(model, device)
    micro_loss = compiled(mean_loss, device)
    experiment.report(depth=DEPTH, width=model_width(), flops_per_token=flops_per_token(model, seq_len))

    def take_step(step: int, progress: float, inputs: Tensor, targets: Tensor) -> Tensor:
        losses = []
        for x, y in zip(inputs, targets, strict=True):
            loss = micro_loss(model, x, y) / accumulation
            loss.backward()
            losses.append(loss.detach())
        optimizer.step(step, progress)
        return torch.stack(losses).sum()

    # One step on random tokens compiles and allocates everything; then the start is put back.
    start = [t.detach().clone() for t in optimizer.tensors()]
    take_step(1, 0.0, *experiment.dummy_batch(rows, accumulation))
    with torch.no_grad():
        for tensor, value in zip(optimizer.tensors(), start, strict=True):
            tensor.copy_(value)
    del start

    # A collection of Python's garbage in the middle of a step would stall the device.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for step, (inputs, targets) in enumerate(experiment.batches(rows, accumulation)):
            experiment.log(to_host(take_step(step, experiment.progress, inputs, targets)))
    finally:
        gc.enable()
        gc.unfreeze()
    return Trained(lambda params, tokens: params(tokens), model)


if __name__ == "__main__":
    run_experiment()


if __name__ == "__main__":
    run_experiment()
