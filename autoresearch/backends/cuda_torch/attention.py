"""Causal attention with an optional window, from the fastest provider that works on the device.

All providers share one signature and one meaning: `attend(q, k, v, window)` with q (B, T, H, d), k and v
(B, T, H_kv, d), H a multiple of H_kv, scale 1 / sqrt(d). A query sees itself and the `window` keys before it, or all
of them where `window` is None. The result is (B, T, H, d) in the dtype of q.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

Attend = Callable[[Tensor, Tensor, Tensor, int | None], Tensor]

FLASH3 = ("kernels-community/flash-attn3", 1)
"""Repository and version of the FlashAttention-3 build for Hopper."""


def window_mask(seq_len: int, window: int | None, device: torch.device) -> Tensor:
    """(T, T) bool, True where query i sees key j: j <= i and, with a window, i - j <= window."""
    mask = torch.ones(seq_len, seq_len, dtype=torch.bool, device=device).tril()
    return mask if window is None else mask.triu(-window)


def sdpa(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    """PyTorch's scaled_dot_product_attention; a window is a mask, so it saves no work."""
    dtype = q.dtype
    if q.device.type == "cpu":
        # On a CPU the backward pass is slower in bfloat16 than in float32.
        q, k, v = q.float(), k.float(), v.float()
    T = q.size(1)
    short = window is not None and window < T - 1
    y = F.scaled_dot_product_attention(
        q.transpose(1, 2),  # (B, H, T, d)
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=window_mask(T, window, q.device) if short else None,
        is_causal=not short,
        enable_gqa=q.size(2) != k.size(2),
    )
    return y.transpose(1, 2).to(dtype)


def flex(seq_len: int, windows: Iterable[int | None], device: torch.device, compile: bool = True) -> Attend:
    """FlexAttention, which skips the blocks outside of a window; full layers go to `sdpa`.

    The block masks are made here, once: making them inside a compiled model would be traced.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def visible(window: int) -> Callable[..., Tensor]:
        return lambda b, h, query, key: (key <= query) & (query - key <= window)

    masks = {
        window: create_block_mask(visible(window), None, None, seq_len, seq_len, device=str(device))
        for window in windows
        if window is not None
    }
    kernel: Any = torch.compile(flex_attention, dynamic=False) if compile else flex_attention

    def attend(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        if window not in masks or q.size(1) != seq_len:
            return sdpa(q, k, v, window)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        y: Tensor = kernel(q, k, v, block_mask=masks[window], enable_gqa=q.size(1) != k.size(1))
        return y.transpose(1, 2)

    return attend


@functools.cache
def flash3() -> Attend:
    """FlashAttention-3 from the local cache of the hub, or whatever error says why not.

    The child process runs with HF_HUB_OFFLINE set, so nothing is downloaded here.
    """
    from kernels import get_kernel

    repository, version = FLASH3
    kernel = get_kernel(repository, version=version)

    def attend(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        y = kernel.flash_attn_func(q, k, v, causal=True, window_size=(-1 if window is None else window, 0))
        return cast("Tensor", y[0] if isinstance(y, tuple) else y)

    return attend


def provider(name: str, seq_len: int, windows: Iterable[int | None], device: torch.device) -> Attend:
    """The function of a provider's name, "flash3", "flex" or "sdpa", for rows of `seq_len` tokens."""
    if name == "flash3":
        return flash3()
    return flex(seq_len, windows, device) if name == "flex" else sdpa


def largest_error(attend: Attend, window: int | None, q: Tensor, k: Tensor, v: Tensor) -> float:
    """Largest deviation of outputs and gradients from a dense float32 computation, relative to the largest value."""
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    y = attend(inputs[0], inputs[1], inputs[2], window)
    got = [y.detach(), *torch.autograd.grad(y.float().square().sum(), inputs)]
    dense = [x.detach().float().requires_grad_() for x in (q, k, v)]
    repeat = q.size(2) // k.size(2)
    keys, values = (x.repeat_interleave(repeat, dim=2) for x in dense[1:])
    scores = torch.einsum("bihd,bjhd->bhij", dense[0], keys) / q.size(-1) ** 0.5
    scores = scores.masked_fill(~window_mask(q.size(1), window, q.device), float("-inf"))
    z = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), values)
    want = [z.detach(), *torch.autograd.grad(z.square().sum(), dense)]
    return max(float((a.float() - b).abs().max() / b.abs().max()) for a, b in zip(got, want, strict=True))
