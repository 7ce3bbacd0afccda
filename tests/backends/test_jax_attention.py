"""Every attention provider of the JAX backend against brute force, with planted faults that must be seen."""

import jax
import jax_harness as harness
import numpy as np
import pytest
import reference_numpy as reference

from autoresearch.backends.jax_tpu import attention, device

SEQ_LEN = 160
"""Three blocks of queries, the last one short."""


def qkv(kv_heads=2, seq_len=SEQ_LEN, head_dim=8, rows=1, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(rows, seq_len, heads, head_dim) for heads in (4, kv_heads, kv_heads)]
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def provided(name, window, inputs, count=1):
    attend = device.attention_provider(harness.device_info(attention=name, count=count))
    return np.asarray(jax.jit(attend, static_argnums=3)(*inputs, window))


def brute_force(inputs, window):
    return reference.attend(*(x.astype(np.float64) for x in inputs), window)


@pytest.mark.parametrize("name", ["blocks", "xla"])
@pytest.mark.parametrize("window", [None, 0, 1, 40, 64, 200])
def test_a_query_sees_itself_and_the_window_before_it(name, window):
    inputs = qkv()
    want = brute_force(inputs, window)
    np.testing.assert_allclose(provided(name, window, inputs), want, atol=3e-6)


@pytest.mark.parametrize("name", ["blocks", "xla"])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_heads_share_keys_as_they_are_grouped(name, kv_heads):
    inputs = qkv(kv_heads)
    np.testing.assert_allclose(provided(name, 40, inputs), brute_force(inputs, 40), atol=3e-6)


@pytest.mark.parametrize("name", ["blocks", "xla"])
def test_the_window_test_tells_w_from_w_plus_one(name):
    inputs = qkv()
    want = brute_force(inputs, 40)
    for wrong in (39, 41, None):
        assert np.abs(provided(name, wrong, inputs) - want).max() > 1e-2


@pytest.mark.parametrize("window", [None, 100])
def test_the_kernel_for_tpus_interpreted_on_two_devices(window):
    inputs = qkv(seq_len=128, head_dim=128, rows=2)
    got = provided("splash", window, inputs, count=2)
    np.testing.assert_allclose(got, brute_force(inputs, window), atol=3e-6)
    assert np.abs(provided("splash", 99, inputs, count=2) - got).max() > 1e-3


def test_shapes_that_the_kernels_refuse_go_to_xla():
    inputs = qkv(seq_len=32)
    want = provided("xla", 5, inputs)
    for name in ("splash", "cudnn"):
        np.testing.assert_array_equal(provided(name, 5, inputs), want)


@pytest.mark.parametrize("name", ["blocks", "xla", "splash"])
@pytest.mark.parametrize("window", [None, 100])
def test_gradients_agree_with_a_dense_mask(name, window):
    inputs = qkv(seq_len=128, head_dim=128)
    attend = device.attention_provider(harness.device_info(attention=name))
    assert attention.largest_error(attend, window, *inputs) < 1e-5


def test_the_dense_check_sees_a_wrong_provider():
    def too_wide(q, k, v, window):
        return attention.xla(q, k, v, window + 1)

    def no_mask(q, k, v, window):
        return jax.nn.dot_product_attention(q, k, v)

    for wrong in (too_wide, no_mask):
        assert attention.largest_error(wrong, 5, *qkv(seq_len=32)) > device.ATTENTION_TOLERANCE
