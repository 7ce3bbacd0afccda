"""Groups, one to three optimizer steps, and the schedules of each backend against NumPy float64."""

from functools import partial

import faults
import numpy as np
import pytest
import reference_numpy as reference
from parity_harness import SMALL, VOCAB
from planting import planted

TALL, WIDE, SQUARE = "blocks.3.mlp.input", "blocks.3.mlp.output", "blocks.3.attention.query"


# Groups


def wrong_rates(subject):
    """Names of the parameters that another rule, rate, decay, momentum or first step applies to."""
    shapes = reference.shapes(subject.constants, VOCAB)
    found = subject.build().rates()
    assert found.keys() == shapes.keys()
    wrong = set()
    for name, shape in shapes.items():
        want, got = reference.rates(subject.constants, name, shape), found[name]
        same = (got.rule, got.beta1, got.first_step) == (want.rule, want.beta1, want.first_step)
        if not same or (got.lr, got.decay) != pytest.approx((want.lr, want.decay), rel=1e-6):
            wrong.add(name)
    return wrong


@pytest.mark.parametrize("kv_group", [1, 2])
def test_every_parameter_has_its_group_rate_and_decay(backend, kv_group):
    assert wrong_rates(backend(KV_GROUP=kv_group)) == set()


@planted(faults.GROUPS)
def test_a_wrong_group_is_seen(backend, fault):
    assert wrong_rates(backend(fault))


# Steps


def step_errors(subject, steps=3):
    """Per parameter the largest error after some steps on fixed random gradients, relative to how far it moved.

    Every layer gets gradients of its own, at sizes that differ by orders of magnitude.
    """
    weights = subject.filled()
    want = reference.Optimizer(subject.constants, weights)
    subject.build(weights)
    rng = np.random.default_rng(0)
    sizes = {name: 10.0 ** rng.uniform(-4, 0) for name in weights}
    for step in range(steps):
        grads = {name: rng.normal(0, sizes[name], p.shape).astype(np.float32) for name, p in weights.items()}
        progress = 0.3 + 0.2 * step
        want.step(grads, step, progress)
        subject.step(grads, step, progress)
    return {
        name: np.abs(got - want.params[name]).max() / np.abs(want.params[name] - weights[name]).max()
        for name, got in subject.parameters().items()
    }


@pytest.mark.parametrize("kv_group", [1, 2])
def test_steps_equal_numpy(backend, kv_group):
    errors = step_errors(backend(KV_GROUP=kv_group))
    assert errors.keys() >= {TALL, WIDE, SQUARE}
    assert not np.isnan(list(errors.values())).any()
    assert max(errors.values()) < 1e-4, max(errors, key=errors.get)


@planted(faults.STEP)
def test_a_wrong_step_is_seen(backend, fault):
    assert not np.max(list(step_errors(backend(fault, **SMALL)).values())) <= 3e-4


def test_scalars_rest_at_step_0(backend):
    subject = backend()
    weights = subject.filled()
    subject.build(weights)
    grads = {name: np.ones_like(value) for name, value in weights.items()}
    for step, resting in enumerate([{"resid_lambda", "x0_lambda"}, set()]):
        subject.step(grads, step, 0.0)
        assert {name for name, p in subject.parameters().items() if np.array_equal(p, weights[name])} == resting


def travelled(subject_of, steps=400, lr=1e-6):
    """How far the head, a tall and a wide matrix moved in a bfloat16 model, as shares of what tiny updates add up to.

    All weights begin at 1, next to which an update of 1e-6 is lost in the 8 bits of bfloat16.
    """
    rates = {"MATRIX_LR": lr, "HEAD_LR": lr * (24 / 768) ** 0.5, "MATRIX_DECAY": 0.0, "HEAD_DECAY": 0.0}
    subject = subject_of(DEPTH=1, ASPECT_RATIO=24, **rates)
    ones = {name: np.ones_like(value) for name, value in subject.filled().items()}
    rng = np.random.default_rng(0)
    grads = {name: np.abs(rng.normal(size=value.shape)).astype(np.float32) for name, value in ones.items()}
    subject.build(ones, dtype="bfloat16")
    for step in range(steps):
        subject.step(grads, step, 0.0)
    # Muon's update has the norm of a semi-orthogonal matrix of rank 24; equal gradients keep its direction.
    expected = {"head": np.sqrt(ones["head"].size), "blocks.0.mlp.input": 2 * 24**0.5, "blocks.0.mlp.output": 24**0.5}
    last = subject.parameters()
    return [np.linalg.norm(last[name] - ones[name]) / (steps * lr * size) for name, size in expected.items()]


def test_tiny_updates_add_up(backend):
    assert travelled(backend) == pytest.approx([1.0, 1.0, 1.0], rel=0.1)


@planted(faults.MASTERS)
def test_lost_updates_are_seen(backend, fault):
    assert min(travelled(partial(backend, fault))) == 0.0


# Schedules


def schedule_errors(subject):
    """Names of the schedules that differ from the reference anywhere."""
    c, module = subject.constants, subject.module
    shares = np.linspace(0, 1, 21).tolist()
    ratio, final, ramp = c["WARMDOWN_RATIO"], c["FINAL_LR_FRAC"], c["MOMENTUM_RAMP_STEPS"]
    steps = [*range(0, 2 * ramp, max(1, ramp // 7)), ramp, 10 * ramp]
    tables = {
        "lr_scale": [(module.lr_scale(p), reference.lr_scale(p, ratio, final)) for p in shares],
        "decay_scale": [(module.decay_scale(p), 1 - p) for p in shares],
        "muon_momentum": [(module.muon_momentum(step), reference.muon_momentum(step, ramp)) for step in steps],
    }
    return {name for name, rows in tables.items() if any(got != pytest.approx(want, abs=1e-12) for got, want in rows)}


@pytest.mark.parametrize(("ratio", "final", "ramp"), [(0.5, 0.0, 300), (0.75, 0.05, 200), (1.0, 0.1, 50)])
def test_schedules_equal_numpy(backend, ratio, final, ramp):
    values = {"WARMDOWN_RATIO": ratio, "FINAL_LR_FRAC": final, "MOMENTUM_RAMP_STEPS": ramp}
    assert schedule_errors(backend(**values)) == set()


def test_the_schedules_of_the_original(backend):
    module = backend(WARMDOWN_RATIO=0.5, FINAL_LR_FRAC=0.0, MOMENTUM_RAMP_STEPS=300).module
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    assert [module.lr_scale(p) for p in shares] == [1.0, 1.0, 1.0, 0.5, 0.0]
    assert [module.decay_scale(p) for p in shares] == [1.0, 0.75, 0.5, 0.25, 0.0]
    momenta = [module.muon_momentum(step) for step in (0, 75, 150, 300, 1000)]
    assert momenta == pytest.approx([0.85, 0.875, 0.90, 0.95, 0.95])


@planted(faults.SCHEDULE)
def test_a_wrong_schedule_is_seen(backend, fault):
    assert schedule_errors(backend(fault))
