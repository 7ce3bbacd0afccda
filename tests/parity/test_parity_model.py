"""The model of each backend against NumPy float64: shapes, initial values, logits, gradients, dtypes, causality."""

import itertools
from functools import cache

import faults
import numpy as np
import parity_harness as harness
import pytest
import reference_numpy as reference
from parity_harness import SEQ_LEN, SMALL, VOCAB, WIDE, text_rows
from planting import planted

PATTERNS = ["L", "S", "SSSL", "SSSSL"]
ROWS = text_rows(2)
TOKENS, TARGETS = ROWS[:, :-1], ROWS[:, 1:]


def largest(got, want):
    """Largest deviation, relative to the largest value; NaN where any is."""
    return np.abs(got - want).max() / np.abs(want).max()


# Parameters


def shapes_of(subject):
    return {name: value.shape for name, value in subject.build().parameters().items()}


@pytest.mark.parametrize("constants", [{}, {"KV_GROUP": 2}, {"DEPTH": 1}, {"DEPTH": 3}, WIDE])
def test_parameters_have_the_names_and_shapes_of_the_reference(backend, constants):
    subject = backend(**constants)
    shapes = reference.shapes(subject.constants, VOCAB)
    assert shapes_of(subject) == shapes
    assert subject.device().count(subject.trained().params) == sum(np.prod(shape) for shape in shapes.values())


@planted(faults.PARAMETERS)
def test_other_parameters_are_seen(backend, fault):
    subject = backend(fault, KV_GROUP=2)
    assert shapes_of(subject) != reference.shapes(subject.constants, VOCAB)


def test_the_size_of_the_suite():
    """About 50,000 parameters, as many layers as tell every pattern from the others."""
    constants = harness.parity_constants()
    assert sum(np.prod(shape) for shape in reference.shapes(constants, VOCAB).values()) == pytest.approx(
        55_000, rel=0.1
    )
    windows = [reference.config_of(constants | {"WINDOW_PATTERN": pattern}, SEQ_LEN).windows for pattern in PATTERNS]
    assert len(set(windows)) == len(PATTERNS)


def deviations(subject):
    """Names of the parameters whose initial values don't follow the law of the reference."""
    found = set()
    for name, value in subject.parameters().items():
        law, size = reference.initial_law(subject.constants, name)
        if law == "constant":
            good = np.allclose(value, size, rtol=1e-6, atol=0)
        else:
            deviation, wanted = value.std(), size / 3**0.5 if law == "uniform" else size
            sound = (
                abs(deviation / wanted - 1) < 5 / value.size**0.5 and abs(value.mean()) < 5 * wanted / value.size**0.5
            )
            high = np.abs(value).max() / size
            good = sound and (0.95 < high <= 1 + 1e-6 if law == "uniform" else high > 2.5)
        found |= set() if good else {name}
    return found


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_initial_values(backend, scale):
    assert deviations(backend(INIT_SCALE=scale).build()) == set()


@planted(faults.INITIAL)
def test_wrong_initial_values_are_seen(backend, fault):
    assert deviations(backend(fault).build())


def test_initial_values_depend_on_the_seed_alone(backend):
    first, again, other = (backend(**SMALL).build(seed=seed).parameters() for seed in (1, 1, 2))
    for name in ("wte", "head", "value_embeddings.1", "blocks.0.mlp.input"):
        np.testing.assert_array_equal(first[name], again[name])
        assert largest(other[name], first[name]) > 0.5
    # Two matrices of one shape are drawn apart.
    assert largest(first["blocks.0.attention.query"], first["blocks.0.attention.key"]) > 0.5


def test_width_is_rounded_up_to_whole_heads(backend):
    assert backend(DEPTH=9, ASPECT_RATIO=57, HEAD_DIM=128).module.model_width() == 640


def test_heads_that_do_not_divide_are_refused(backend):
    with pytest.raises(ValueError, match="KV_GROUP = 3 does not divide the 4 heads"):
        backend(KV_GROUP=3).build()


# Forward


def forward_error(subject, weights=None, path="train"):
    weights = subject.filled() if weights is None else weights
    got = subject.build(weights).logits(TOKENS, path)
    assert got.shape == (*TOKENS.shape, VOCAB)
    return largest(got, reference.forward(weights, TOKENS, subject.config))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kv_group", [1, 2])
def test_forward_equals_numpy(backend, pattern, kv_group):
    assert forward_error(backend(WINDOW_PATTERN=pattern, KV_GROUP=kv_group)) < 5e-6


@pytest.mark.parametrize("constants", [WIDE, {"DEPTH": 1}, {"SOFTCAP": 5.0, "ROTARY_BASE": 1000}])
@pytest.mark.parametrize("path", ["train", "eval"])
def test_forward_of_other_shapes_equals_numpy(backend, constants, path):
    """A gate over a part of the width; a single layer; both paths."""
    assert forward_error(backend(**constants), path=path) < 5e-6


def test_forward_without_value_embeddings_equals_numpy(backend):
    subject = backend()
    subject.module.has_value_embedding = lambda layer: False
    weights = subject.filled()
    weights = {name: value for name, value in weights.items() if not name.endswith("gate") and "value_" not in name}
    assert forward_error(subject, weights) < 5e-6
    assert subject.parameters().keys() == weights.keys()


@planted(faults.FORWARD)
def test_forward_sees_a_planted_fault(backend, fault):
    assert not forward_error(backend(fault, WINDOW_PATTERN="S", DEPTH=3, ASPECT_RATIO=8)) <= 1e-4


@pytest.mark.parametrize("eps", [1e-6, 1e-5])
def test_norm_epsilon_at_tiny_activations(backend, eps):
    x = np.random.default_rng(0).normal(0, 1e-3, (3, 64)).astype(np.float32)
    want = reference.norm(x.astype(np.float64), eps)
    np.testing.assert_allclose(backend(NORM_EPS=eps).norm(x), want, rtol=1e-5)
    assert largest(backend(NORM_EPS=10 * eps).norm(x), want) > 0.1


# Gradients


@cache
def directions(pattern, kv_group):
    """(weights, random signs by name, slopes of the NumPy loss along them, the loss)."""
    constants = harness.parity_constants(WINDOW_PATTERN=pattern, KV_GROUP=kv_group)
    weights, config = reference.filled(constants, VOCAB), reference.config_of(constants, SEQ_LEN)
    rng = np.random.default_rng(3)
    signs = {name: rng.choice([-1.0, 1.0], value.shape) for name, value in weights.items()}
    slopes = reference.slopes(weights, TOKENS, TARGETS, config, signs)
    return weights, signs, slopes, reference.loss(weights, TOKENS, TARGETS, config)


def gradient_errors(subject, pattern="SSSL", kv_group=1):
    """Deviation of the loss, and per tensor of the gradient along random signs, each relative to its size."""
    weights, signs, slopes, loss = directions(pattern, kv_group)
    got, grads = subject.build(weights).gradients(TOKENS, TARGETS)
    errors = {"loss": abs(got / loss - 1)}
    for name, grad in grads.items():
        grad = grad.astype(np.float64)
        errors[name] = abs((grad * signs[name]).sum() - slopes[name]) / max(np.linalg.norm(grad), 1e-12)
    return errors


@pytest.mark.parametrize(("pattern", "kv_group"), [("SSSL", 1), ("S", 2)])
def test_loss_and_gradients_equal_numpy(backend, pattern, kv_group):
    errors = gradient_errors(backend(WINDOW_PATTERN=pattern, KV_GROUP=kv_group), pattern, kv_group)
    assert errors.keys() - {"loss"} == reference.shapes(backend(KV_GROUP=kv_group).constants, VOCAB).keys()
    assert errors["loss"] < 1e-6
    assert max(errors.values()) < 2e-5, max(errors, key=errors.get)


@planted(faults.GRADIENT)
def test_a_wrong_gradient_is_seen(backend, fault):
    assert not np.max(list(gradient_errors(backend(fault)).values())) <= 1e-3


def gradient_distances(one, other):
    """Per tensor the distance of two gradients, relative to the norm of the first."""
    return {name: np.linalg.norm(other[name] - grad) / max(np.linalg.norm(grad), 1e-12) for name, grad in one.items()}


@pytest.mark.parametrize(("pattern", "kv_group"), [("L", 1), ("S", 2), ("SSSL", 1), ("SSSSL", 2)])
def test_gradients_are_equal_pairwise(all_backends, pattern, kv_group):
    grads = {}
    for name, backend in all_backends.items():
        subject = backend(WINDOW_PATTERN=pattern, KV_GROUP=kv_group)
        grads[name] = subject.build(subject.filled()).gradients(TOKENS, TARGETS)[1]
    for one, other in itertools.combinations(grads, 2):
        distances = gradient_distances(grads[one], grads[other])
        assert max(distances.values()) < 2e-5, (one, other, max(distances, key=distances.get))


@planted(faults.GRADIENT)
def test_a_pairwise_distance_is_seen(backend, fault):
    sound = backend()
    one, other = (subject.build(sound.filled()).gradients(TOKENS, TARGETS)[1] for subject in (sound, backend(fault)))
    assert not np.max(list(gradient_distances(one, other).values())) <= 1e-3


# Attention


def qkv(kv_heads, seq_len=16):
    rng = np.random.default_rng(kv_heads)
    return [rng.normal(size=(2, seq_len, heads, 8)).astype(np.float32) for heads in (4, kv_heads, kv_heads)]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_query_sees_itself_and_the_window_before_it(backend, kv_heads):
    arrays = qkv(kv_heads)
    for provider, window in itertools.product(backend.providers(), (None, 1, 4, 15)):
        want = reference.attend(*(x.astype(np.float64) for x in arrays), window)
        got = backend.attend(provider, *arrays, window)
        np.testing.assert_allclose(got, want, atol=5e-6, err_msg=f"{provider}, window {window}")
        if window == 4:
            for wrong in (3, 5, None):
                assert largest(backend.attend(provider, *arrays, wrong), want) > 1e-2, (provider, wrong)


def leak(subject, path, provider=None):
    """How far the logits of earlier tokens move when later ones change."""
    cut = 13
    changed = np.array(TOKENS)
    changed[:, cut:] = (changed[:, cut:] + 1) % VOCAB
    subject.build(subject.filled(), provider=provider)
    return largest(*(subject.logits(tokens, path)[:, :cut] for tokens in (changed, TOKENS)))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("pattern", ["L", "S", "SSSL"])
@pytest.mark.parametrize("path", ["train", "eval"])
def test_the_future_does_not_leak(backend, pattern, path):
    for provider in backend.providers():
        assert leak(backend(WINDOW_PATTERN=pattern), path, provider) < 1e-6, provider


@planted(faults.LEAK)
@pytest.mark.parametrize("path", ["train", "eval"])
def test_a_leak_is_seen(backend, path, fault):
    assert leak(backend(fault, **SMALL), path) > 1e-3


# Dtypes


def test_the_residual_stays_bfloat16(backend):
    assert backend().build(dtype="bfloat16").residual_dtypes(TOKENS) == ["bfloat16"] * 6


@planted(faults.RESIDUAL)
def test_a_promoted_residual_is_seen(backend, fault):
    assert "float32" in backend(fault).build(dtype="bfloat16").residual_dtypes(TOKENS)


def test_tables_take_the_compute_dtype_and_matrices_stay_float32(backend):
    dtypes = backend().build(dtype="bfloat16").dtypes()
    tables = {"wte", *(f"value_embeddings.{i}" for i in (1, 3, 5))}
    assert {name for name, dtype in dtypes.items() if dtype == "bfloat16"} == tables
    assert {dtype for name, dtype in dtypes.items() if name not in tables} == {"float32"}


def test_bfloat16_follows_float32(backend):
    subject = backend()
    weights = subject.filled()
    want = reference.forward(weights, TOKENS, subject.config)
    got = subject.build(weights, dtype="bfloat16").logits(TOKENS, "train")
    assert got.dtype == np.float32
    assert largest(got, want) < 0.1
