"""Causal attention with an optional window, from the fastest provider that works on the device.

All providers share one signature and one meaning: `attend(q, k, v, window)` with q (B, T, H, d), k and v
(B, T, H_kv, d), H a multiple of H_kv, scale 1 / sqrt(d). A query sees itself and the `window` keys before it, or all
of them where `window` is None. The result is (B, T, H, d) in the dtype of q.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec
from numpy.typing import NDArray

Attend = Callable[[Array, Array, Array, int | None], Array]

QUERY_BLOCKS = 4
"""Blocks of queries of `blocks`: 10 / 16 of all scores are computed where every key before a query is seen."""
MIN_BLOCK = 64
"""Queries; smaller products don't pay for compiling more of them."""
LANES = 128
"""What the Pallas kernel of a TPU wants T and d to be multiples of."""


def window_mask(queries: NDArray[Any], keys: NDArray[Any], window: int | None) -> NDArray[np.bool_]:
    """(queries, keys) bool, True where a query's position sees a key's."""
    distance = queries[:, None] - keys
    seen: NDArray[np.bool_] = distance >= 0
    return seen if window is None else seen & (distance <= window)


def xla(q: Array, k: Array, v: Array, window: int | None) -> Array:
    """JAX's own dot_product_attention for every device; a window is a mask, so it saves no work."""
    size = None if window is None else (window, 0)
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=size, implementation="xla")


def blocks(q: Array, k: Array, v: Array, window: int | None) -> Array:
    """Dense attention of a block of queries at a time with the keys that any of them sees: fastest on a processor."""
    B, T, H, d = q.shape
    grouped = (q * d**-0.5).reshape(B, T, k.shape[2], -1, d)  # (B, T, H_kv, group, d)
    positions, size = np.arange(T), max(MIN_BLOCK, -(-T // QUERY_BLOCKS))
    found = []
    for first in range(0, T, size):
        end = min(first + size, T)
        start = 0 if window is None else max(0, first - window)
        queries, keys, values = grouped[:, first:end], k[:, start:end], v[:, start:end]
        scores = jnp.einsum("bthgd,bshd->bhgts", queries, keys, preferred_element_type=jnp.float32)
        seen = window_mask(positions[first:end], positions[start:end], window)
        scores = jnp.where(seen, scores, -1e30)
        weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
        sums = weights.sum(-1).transpose(0, 3, 1, 2)[..., None]  # (B, T, H_kv, group, 1)
        found.append(jnp.einsum("bhgts,bshd->bthgd", weights.astype(q.dtype), values) / sums)
    return jnp.concatenate(found, axis=1).reshape(B, T, H, d).astype(q.dtype)


def cudnn(q: Array, k: Array, v: Array, window: int | None) -> Array:
    """cuDNN's flash attention, for NVIDIA GPUs from Ampere on, in half precision; `xla` for heads that it refuses."""
    if q.shape[-1] > 128 or q.shape[-1] % 8 or q.dtype == jnp.float32:
        return xla(q, k, v, window)
    size = None if window is None else (window, 0)
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=size, implementation="cudnn")


def splash(mesh: Mesh) -> Attend:
    """The Pallas kernel for TPUs that skips what the mask hides; `xla` for shapes that don't fill its lanes.

    The partitioner can't split a kernel, so each device is handed its rows. Elsewhere than on a TPU the kernel is
    interpreted, which is for tests.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        BlockSizes,
        LocalMask,
        MultiHeadMask,
        make_splash_mha_single_device,
    )

    interpret = mesh.devices.flat[0].platform != "tpu"

    def one_device(q: Array, k: Array, v: Array, window: int | None) -> Array:
        T, H, d = q.shape[1:]
        block = next(size for size in (512, 256, LANES) if T % size == 0)
        sizes = BlockSizes(
            block_q=block,
            block_kv=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            block_q_dq=block,
            block_kv_dq=block,
        )
        mask = MultiHeadMask([LocalMask((T, T), (window, 0), offset=0)] * H)
        kernel = jax.vmap(make_splash_mha_single_device(mask, block_sizes=sizes, interpret=interpret))
        y = kernel((q * d**-0.5).swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2))  # (B, H, T, d)
        return cast("Array", y.swapaxes(1, 2).astype(q.dtype))

    def attend(q: Array, k: Array, v: Array, window: int | None) -> Array:
        if q.shape[1] % LANES or q.shape[3] % LANES:
            return xla(q, k, v, window)
        rows = PartitionSpec("rows" if q.shape[0] % mesh.size == 0 else None)  # type: ignore[no-untyped-call]
        function = partial(one_device, window=window)
        return jax.shard_map(function, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)(q, k, v)

    return attend


def provider(name: str, mesh: Mesh) -> Attend:
    """The function of a provider's name: "splash", "cudnn", "blocks" or "xla"."""
    if name == "splash":
        return splash(mesh)
    return {"cudnn": cudnn, "blocks": blocks}.get(name, xla)


def largest_error(attend: Attend, window: int | None, q: Array, k: Array, v: Array) -> float:
    """Largest deviation of outputs and gradients from a dense float32 computation, relative to the largest value."""

    def dense(q: Array, k: Array, v: Array, window: int | None) -> Array:
        keys, values = (jnp.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
        scores = jnp.einsum("bihd,bjhd->bhij", q, keys, precision="highest") / q.shape[-1] ** 0.5
        positions = np.arange(q.shape[1])
        scores = jnp.where(window_mask(positions, positions, window), scores, -jnp.inf)
        return jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(scores), values, precision="highest")

    def results(function: Attend, inputs: list[Array]) -> tuple[Array, ...]:
        def loss(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
            y = function(q, k, v, window)
            return jnp.square(y.astype(jnp.float32)).sum(), y

        gradients, y = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*inputs)
        return y, *gradients

    got = results(attend, [q, k, v])
    want = results(dense, [x.astype(jnp.float32) for x in (q, k, v)])
    return max(float(jnp.abs(a - b).max() / jnp.abs(b).max()) for a, b in zip(got, want, strict=True))
