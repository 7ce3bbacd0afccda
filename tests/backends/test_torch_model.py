"""What is PyTorch's own in the model: its attention providers' gradients, its dtypes, the size that was published."""

import pytest
import torch
import torch_harness as harness

from autoresearch.backends.cuda_torch import attention, device


def qkv():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 32, heads, 8, generator=generator) for heads in (4, 2, 2)]


@pytest.mark.parametrize("window", [None, 5])
def test_gradients_agree_with_a_dense_mask(window):
    """FlexAttention has no backward pass on a CPU; `describe` makes this check on the device that it chooses it for."""
    assert attention.largest_error(attention.sdpa, window, *qkv()) < 1e-5


def test_the_dense_check_sees_a_wrong_provider():
    def too_wide(q, k, v, window):
        return attention.sdpa(q, k, v, window and window + 1)

    def no_window(q, k, v, window):
        return attention.sdpa(q, k, v, None)

    for wrong in (too_wide, no_window):
        assert attention.largest_error(wrong, 5, *qkv()) > device.ATTENTION_TOLERANCE


def test_rotary_tables_take_the_compute_dtype_and_logits_are_float32():
    gpt = harness.model(harness.load(), dtype="bfloat16")
    assert gpt.cos.dtype is gpt.sin.dtype is torch.bfloat16
    assert gpt(torch.zeros(1, 8, dtype=torch.long)).dtype is torch.float32


def test_the_size_that_the_original_publishes():
    """50.3 million parameters with DEPTH 8 and a vocabulary of 8192."""
    module = harness.load(DEPTH=8, ASPECT_RATIO=64, HEAD_DIM=128, WINDOW_PATTERN="SSSL")
    with torch.device("meta"):
        gpt = module.GPT(8192, 2048, torch.bfloat16, attention.sdpa)
    assert device.count(gpt) == pytest.approx(50.3e6, rel=2e-3)
    assert module.attention_windows(2048) == [1024, 1024, 1024, None, 1024, 1024, 1024, None]
