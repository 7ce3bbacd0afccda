"""`train` of each backend in the real harness: its loss curve, its score, and what must not change either."""

import itertools

import curve
import faults
import numpy as np
import pytest
import reference_numpy as reference
from parity_harness import SEQ_LEN, SMALL, VOCAB, text_rows
from planting import planted

from autoresearch.core.constants import constants

TOLERANCE = 2e-5
"""Relative for losses, absolute for val_bpb. Measured on one machine: 2e-6 and 1e-6."""

_curves = {}


def curve_of(backend):
    """(losses, val_bpb) of the unchanged file, compiled as in a search, computed once for each backend."""
    if backend.name not in _curves:
        with backend.optimised():
            _curves[backend.name] = curve.run(backend())
    return _curves[backend.name]


def distance(one, other):
    """Largest relative difference of two loss curves."""
    return np.abs(one / other - 1).max()


# The curve


def test_the_curve_is_the_golden_one(backend):
    losses, val_bpb = curve_of(backend)
    golden, golden_bpb = curve.golden()
    assert len(losses) == curve.STEPS
    assert golden[0] - golden[-1] > 0.5
    assert distance(losses, golden) < TOLERANCE, curve.__doc__
    assert val_bpb == pytest.approx(golden_bpb, abs=TOLERANCE), curve.__doc__


@planted(faults.CURVE)
def test_another_curve_is_seen(backend, fault):
    losses, _ = curve.run(backend(fault))
    assert not distance(losses, curve.golden()[0]) <= 1e-4


def test_golden_rows_that_changed_are_told_from_a_wrong_backend(monkeypatch):
    monkeypatch.setattr(curve, "VAL_ROWS", curve.VAL_ROWS[1:])
    with pytest.raises(AssertionError, match=r"python tests/parity/curve\.py"):
        curve.golden()


def test_curves_and_scores_are_equal_pairwise(all_backends):
    """Fixed steps, start weights and rows: one val_bpb."""
    curves = {name: curve_of(backend) for name, backend in all_backends.items()}
    for (one, (losses, bpb)), (other, (others, other_bpb)) in itertools.combinations(curves.items(), 2):
        assert distance(losses, others) < TOLERANCE, (one, other)
        assert bpb == pytest.approx(other_bpb, abs=TOLERANCE), (one, other)


def test_the_score_of_the_trained_weights_equals_numpy(backend):
    """What `train` returns is what was trained: its parameters, scored in float64."""
    subject = backend(**SMALL)
    start = reference.initial(subject.constants, VOCAB)
    _, trained = subject.train(start, steps=3)
    weights = subject.parameters_of(trained.params)
    assert all(np.abs(value - start[name]).max() > 0 for name, value in weights.items())
    rows = text_rows(5, seed=9)
    nats = reference.nats(reference.forward(weights, rows[:, :-1], subject.config), rows[:, 1:])
    assert subject.score(trained, rows, eval_rows=2).nats == pytest.approx(nats.sum(), rel=1e-5)


# What a trace depends on

OTHER = {  # another value for each constant; the batch shape has a test of its own
    "DEPTH": 1,
    "ASPECT_RATIO": 18,
    "HEAD_DIM": 12,
    "KV_GROUP": 2,
    "WINDOW_PATTERN": "L",
    "SHORT_WINDOW_DIVISOR": 8,
    "ROTARY_BASE": 1000,
    "SOFTCAP": 5.0,
    "NORM_EPS": 1e-2,
    "INIT_SCALE": 0.7,
    "X0_LAMBDA_INIT": 0.2,
    "TOTAL_BATCH_SIZE": 4 * SEQ_LEN,
    "EMBEDDING_LR": 0.2,
    "EMBEDDING_DECAY": 0.1,
    "VALUE_EMBEDDING_LR": 0.3,
    "VALUE_EMBEDDING_DECAY": 0.1,
    "HEAD_LR": 0.002,
    "HEAD_DECAY": 0.1,
    "MATRIX_LR": 0.02,
    "MATRIX_DECAY": 0.1,
    "SCALAR_LR": 0.2,
    "ADAM_BETA1": 0.7,
    "ADAM_BETA2": 0.9,
    "X0_BETA1": 0.9,
    "MUON_BETA2": 0.9,
    "WARMDOWN_RATIO": 0.9,
    "FINAL_LR_FRAC": 0.2,
    "MOMENTUM_RAMP_STEPS": 5,
}

_traces = {}


def trace_of(backend):
    """Losses of six steps of the small model, computed once for each backend."""
    if backend.name not in _traces:
        _traces[backend.name] = backend(**SMALL).train()[0]
    return _traces[backend.name]


def dead_constants(backend, names, *planted_faults):
    """Constants whose change leaves the trace as it was."""
    before = backend(*planted_faults, **SMALL).train()[0]
    traces = {name: backend(*planted_faults, **SMALL | {name: OTHER[name]}).train()[0] for name in names}
    return {name for name, trace in traces.items() if np.abs(trace - before).max() < 1e-6}


def test_every_constant_changes_the_trace(backend):
    assert OTHER.keys() == constants(backend.source()).keys() - {"DEVICE_BATCH_ROWS"}
    assert dead_constants(backend, OTHER) == set()


def test_dead_constants_are_seen(backend):
    """A schedule that is defined and never called, and a decay that nobody reads."""
    planted_faults = [fault[backend.name] for fault in faults.DEAD.values()]
    names = ["WARMDOWN_RATIO", "EMBEDDING_DECAY", "HEAD_LR"]
    assert dead_constants(backend, names, *planted_faults) == set(names[:2])


def test_the_trace_depends_on_the_seed_alone(backend):
    np.testing.assert_array_equal(backend(**SMALL).train()[0], trace_of(backend))
    assert np.abs(backend(**SMALL).train(seed=1)[0] - trace_of(backend)).max() > 1e-3


@pytest.mark.parametrize(("rows", "max_rows"), [(8, 1024), (1, 1024), (4, 3)])
def test_the_shape_of_micro_batches_does_not_matter(backend, rows, max_rows):
    losses = backend(DEVICE_BATCH_ROWS=rows, **SMALL).train(max_rows=max_rows)[0]
    assert distance(losses, trace_of(backend)) < TOLERANCE


def test_micro_batches_keep_the_total(backend):
    module = backend(TOTAL_BATCH_SIZE=6 * 32, DEVICE_BATCH_ROWS=4).module
    assert module.micro_batches(32, 1024) == (3, 2)
    assert module.micro_batches(32, 2) == (2, 3)
    assert module.micro_batches(192, 1024) == (1, 1)
    for seq_len in (256, 100):
        with pytest.raises(ValueError, match=f"TOTAL_BATCH_SIZE = 192 is no multiple of the {seq_len} tokens"):
            module.micro_batches(seq_len, 1024)


@planted(faults.NO_WARM_UP)
def test_the_warm_up_leaves_the_start_as_it_was(backend, fault):
    np.testing.assert_array_equal(backend(fault, **SMALL).train()[0], trace_of(backend))


def test_bfloat16_training_follows_float32(backend):
    losses = backend(**SMALL).train(info=backend.info("bfloat16"))[0]
    assert 1e-7 < distance(losses, trace_of(backend)) < 0.02


def test_it_learns(backend):
    losses, _ = backend(**SMALL).train(steps=40)
    assert losses[0] == pytest.approx(np.log(VOCAB), abs=0.05)
    assert losses[-5:].mean() < 3.2


def test_the_facts_that_it_reports(backend):
    subject = backend(WINDOW_PATTERN="S", KV_GROUP=2)
    subject.train(steps=1)
    D, kv, V = 24, 12, VOCAB
    weights = 6 * (2 * D * D + 2 * kv * D + 8 * D * D) + 3 * 2 * D + V * D
    attention = 12 * D * (5 * 8 + SEQ_LEN)
    assert subject.run.facts == {"depth": 6, "width": D, "flops_per_token": 6 * weights + attention}
    assert subject.run.tokens == 8 * SEQ_LEN
