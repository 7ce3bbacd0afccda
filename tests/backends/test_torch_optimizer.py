"""Muon, AdamW and the schedules of the PyTorch train.py against NumPy float64, with planted faults."""

import numpy as np
import pytest
import reference_numpy as reference
import torch
import torch_harness as harness

D, V, DEPTH = 64, harness.VOCAB, 4
SCALE = (D / 768) ** -0.5
RATES = {  # peak learning rate, decay, beta1, first step
    "head": (0.004 * SCALE, 0.03, 0.8, 0),
    "wte": (0.6 * SCALE, 0.01, 0.8, 0),
    "value_embeddings": (0.6 * SCALE, 0.02, 0.8, 0),
    "resid_lambda": (0.005, 0.0, 0.8, 1),
    "x0_lambda": (0.5, 0.0, 0.96, 1),
}
DECAYS = {"HEAD_DECAY": 0.03, "EMBEDDING_DECAY": 0.01, "VALUE_EMBEDDING_DECAY": 0.02}


def expected_group(name):
    """(rule, peak learning rate, decay, beta1, first step) of a parameter."""
    if not name.startswith("blocks"):
        return ("adamw", *RATES[name.partition(".")[0]])
    rows, columns = {"gate": (4, 32), "mlp.input": (4 * D, D), "mlp.output": (D, 4 * D)}.get(
        next((part for part in ("gate", "mlp.input", "mlp.output") if name.endswith(part)), ""), (D, D)
    )
    return "muon", 0.04 * reference.muon_lr_factor(rows, columns), 0.2, None, 0


def group_table(module, gpt):
    names = {id(p): name for name, p in gpt.named_parameters()}
    table = {}
    for group in module.parameter_groups(gpt):
        for p in group.params:
            assert names[id(p)] not in table
            beta1 = group.beta1 if group.rule == "adamw" else None
            table[names[id(p)]] = (group.rule, group.lr, group.decay, beta1, group.first_step)
    return table


def check_groups(module):
    gpt = harness.model(module)
    table = group_table(module, gpt)
    assert table.keys() == dict(gpt.named_parameters()).keys()
    for name, row in table.items():
        assert row == pytest.approx(expected_group(name)), name


def test_every_parameter_has_its_group_rate_and_decay():
    check_groups(harness.load(**DECAYS))


@pytest.mark.parametrize(
    "fault",
    [
        ("[model.wte], EMBEDDING_LR * scale", "[model.wte], EMBEDDING_LR"),
        ("SCALAR_LR * 0.01", "SCALAR_LR"),
        ("max(1.0, rows / columns)", "max(1.0, columns / rows)"),
        ("[model.head], HEAD_LR * scale, HEAD_DECAY", "[model.head], EMBEDDING_LR * scale, HEAD_DECAY"),
        ('"adamw", [model.x0_lambda], SCALAR_LR, 0.0, beta1=X0_BETA1', '"adamw", [model.x0_lambda], SCALAR_LR, 0.0'),
    ],
)
def test_a_wrong_group_is_seen(fault):
    with pytest.raises(AssertionError):
        check_groups(harness.load(fault, **DECAYS))


def largest_step_error(*faults, steps=3):
    """Largest error of a parameter after `steps` steps on fixed random gradients, relative to how far it moved.

    Two layers of one shape get other gradients; the shapes are tall, wide and square.
    """
    module = harness.load(*faults, **DECAYS)
    gpt = harness.model(module)
    optimizer = module.MuonAdamW(gpt, harness.device_info())
    rng = np.random.default_rng(0)
    params = {name: p.detach().double().numpy().copy() for name, p in gpt.named_parameters()}
    start = {name: p.copy() for name, p in params.items()}
    state = dict.fromkeys(params, (0.0, 0.0))
    for step in range(steps):
        progress = 0.3 + 0.2 * step
        scale, decay_scale = reference.lr_scale(progress, 0.5, 0.0), 1 - progress
        for name, p in gpt.named_parameters():
            grad = rng.normal(size=p.shape).astype(np.float32)
            p.grad = torch.from_numpy(grad)
            rule, lr, decay, beta1, first_step = expected_group(name)
            updates = step - first_step + 1
            if updates < 1:
                continue
            arguments = params[name], grad.astype(np.float64), *state[name]
            if rule == "adamw":
                new, *moments = reference.adamw_step(*arguments, updates, lr * scale, beta1, 0.95, decay * decay_scale)
            else:
                momentum = reference.muon_momentum(step, 50)
                new, *moments = reference.muon_step(*arguments, lr * scale, decay * decay_scale, momentum)
            params[name], state[name] = new, tuple(moments)
        optimizer.step(step, progress)
    errors = {
        name: np.abs(p.detach().numpy() - params[name]).max() / np.abs(params[name] - start[name]).max()
        for name, p in gpt.named_parameters()
    }
    assert all(p.grad is None for p in gpt.parameters())
    return np.max(list(errors.values()))  # NaN where any is


def test_steps_equal_numpy():
    assert largest_step_error() < 1e-4


@pytest.mark.parametrize(
    "fault",
    [
        ("m.lerp_(grad, 1 - momentum)", "m.lerp_(grad.mean(0, keepdim=True).expand_as(grad), 1 - momentum)"),
        ("-1 if first.size(-2) >= first.size(-1) else -2", "-2 if first.size(-2) >= first.size(-1) else -1"),
        ("grad.lerp(m, momentum)", "m"),
        ("* (g * p >= 0)", ""),
        ("scaled * (norms[0] / norms[1].clamp_min(1e-10))", "scaled"),
        ("1.02 * g.norm", "1.1 * g.norm"),
        ("x = a * x + (b * gram", "x = a * x + (a * gram"),
        ("p.float() * (1 - decay)", "p.float()"),
        ("(m / fix1)", "m"),
        ("(v / fix2)", "v"),
        ("ADAM_EPS = 1e-10", "ADAM_EPS = 1e-2"),
        ("group.decay * decay_scale(progress)", "group.decay"),
        ("group.lr * lr_scale(progress)", "group.lr"),
        ("muon_momentum(step))", "0.85)"),
        ("step - group.first_step + 1", "step + 1"),
    ],
    ids=lambda fault: fault[0][:30],
)
def test_a_wrong_step_is_seen(fault):
    assert not largest_step_error(fault) <= 3e-4


def test_scalars_rest_at_step_0():
    module = harness.load()
    gpt = harness.model(module)
    before = {name: p.detach().clone() for name, p in gpt.named_parameters()}
    optimizer = module.MuonAdamW(gpt, harness.device_info())
    for step in range(2):
        for p in gpt.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step(step, 0.0)
        moved = {name for name, p in gpt.named_parameters() if not torch.equal(p, before[name])}
        resting = set(before) - moved
        assert resting == ({"resid_lambda", "x0_lambda"} if step == 0 else set())


def tiny_updates(dtype, updates=1000, lr=1e-6):
    """How far a weight of 1.0 moves, as a share of what a thousand tiny updates add up to."""
    module = harness.load()
    p, grad = torch.ones(8, 8, dtype=dtype), torch.ones(8, 8)
    m, v = torch.zeros(8, 8), torch.zeros(8, 8)
    for n in range(1, updates + 1):
        fixes = torch.tensor(1 - 0.8**n), torch.tensor(1 - 0.95**n)
        module.adamw_update(p, grad, m, v, torch.tensor(lr), torch.tensor(0.0), 0.8, *fixes)
    return float(1 - p.float().mean()) / (updates * lr)


def test_tiny_updates_add_up_in_float32_masters_and_are_lost_without():
    gpt = harness.model(harness.load(), dtype="bfloat16")
    assert all(p.dtype is torch.float32 for p in (gpt.head, *gpt.blocks.parameters()))
    assert tiny_updates(torch.float32) == pytest.approx(1.0, rel=0.05)
    assert tiny_updates(torch.bfloat16) == 0.0


def test_tiny_muon_updates_add_up_with_bfloat16_orthogonalisation():
    module = harness.load()
    generator = torch.Generator().manual_seed(0)
    grad = torch.randn(1, 16, 8, generator=generator)
    p, m, v = torch.ones(1, 16, 8), torch.zeros(1, 16, 8), torch.zeros(1, 16, 1)
    rates = torch.tensor(1e-6), torch.tensor(0.0), torch.tensor(0.9)
    moves = []
    for _ in range(300):
        new = module.muon_update(p, grad, m, v, *rates, torch.bfloat16)
        moves.append(float((new - p).norm()))
        p = new
    assert p.dtype is torch.float32
    assert float((p - 1).norm()) == pytest.approx(sum(moves), rel=0.05)
    assert sum(moves) == pytest.approx(300e-6 * 8**0.5, rel=0.3)


@pytest.mark.parametrize(("ratio", "final"), [(0.5, 0.0), (0.75, 0.05), (1.0, 0.1)])
def test_learning_rate_table(ratio, final):
    module = harness.load(WARMDOWN_RATIO=ratio, FINAL_LR_FRAC=final)
    for progress in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0):
        assert module.lr_scale(progress) == pytest.approx(reference.lr_scale(progress, ratio, final)), progress


def test_learning_rate_table_of_the_original():
    module = harness.load(WARMDOWN_RATIO=0.5, FINAL_LR_FRAC=0.0)
    assert [module.lr_scale(p) for p in (0.0, 0.25, 0.5, 0.75, 1.0)] == [1.0, 1.0, 1.0, 0.5, 0.0]


def test_decay_and_momentum_tables():
    module = harness.load(MOMENTUM_RAMP_STEPS=300)
    assert [module.decay_scale(p) for p in (0.0, 0.25, 0.5, 0.75, 1.0)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    momenta = [module.muon_momentum(step) for step in (0, 75, 150, 300, 1000)]
    assert momenta == pytest.approx([0.85, 0.875, 0.90, 0.95, 0.95])
    assert momenta == pytest.approx([reference.muon_momentum(step, 300) for step in (0, 75, 150, 300, 1000)])
