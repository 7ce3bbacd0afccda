"""The trusted side of the JAX backend: what the machine offers, transfers, scoring, memory.

A train.py imports `attention_provider`, `replicated` and the type `Attend` from here, so that it holds no branch on
the device. Every choice of `describe` carries its reason. Rows are split over all local devices; everything else is
replicated on them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from autoresearch.backends.hardware import (
    fastest,
    nvidia_peak_flops,
    peak_resident_bytes,
    processor_name,
    rate,
    usable_cores,
)
from autoresearch.backends.jax_tpu.attention import Attend, largest_error, provider
from autoresearch.core.contract import DeviceInfo, Trained
from autoresearch.core.errors import BackendUnavailable, CandidateFailure

__all__ = [
    "Attend",
    "attention_provider",
    "count",
    "describe",
    "logits",
    "nats",
    "out_of_memory",
    "peak_memory_bytes",
    "probe",
    "put",
    "replicated",
    "seed",
    "wait",
]

# Dense bfloat16 peaks of Google's data sheets, FLOP/s of what JAX calls a device: of a chip up to v6e, of half a chip
# (one of two cores) for v2, v3 and v7.
TPU_PEAK_FLOPS = {
    "TPU v2": 23e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU7x": 1153.5e12,
}
# Taken before any candidate is loaded, so that one that patches JAX doesn't patch its own clock.
_ready: Callable[[Any], Any] = jax.block_until_ready
_product = jax.jit(jnp.matmul)
# As in the PyTorch backend: where bfloat16 is emulated it loses several times over, so no close calls.
BFLOAT16_GAIN = 1.2
ATTENTION_TOLERANCE = 0.03
ATTENTION = {"tpu": ("splash",), "cuda": ("cudnn",), "cpu": ("blocks",)}
"""Providers in the order of preference; "xla" works everywhere."""


def describe(device: str = "auto", budget_seconds: float | None = None) -> DeviceInfo:
    """Probe the machine; takes a few seconds, most of them to compile the probes.

    Args:
        device: "auto" (the best accelerator that JAX has), "tpu", "cuda" or "cpu".
        budget_seconds: not used; a step is always compiled.

    Raises:
        BackendUnavailable: no such device here.
    """
    platform, devices = _devices(device)
    mesh = Mesh(np.array(devices), ("rows",))
    dtype, dtype_reason = _dtype(platform)
    attention, attention_reason = _working_attention(ATTENTION.get(platform, ()), mesh, dtype)
    name, memory = _identity(platform, devices)
    peak, peak_reason = _peak_flops(platform, devices, dtype)
    return DeviceInfo(
        backend="jax",
        platform=platform,
        name=name,
        count=len(devices),
        framework=f"jax {jax.__version__}",
        dtype=dtype,
        attention=attention,
        compile=True,
        peak_flops=peak,
        memory_bytes=memory,
        reasons={
            "dtype": dtype_reason,
            "attention": attention_reason,
            "compile": "jax.jit compiles every step; a run keeps what it compiled",
            "peak_flops": peak_reason,
        },
    )


def _devices(device: str) -> tuple[str, list[jax.Device]]:
    """The platform in our words, and its local devices."""
    try:
        devices = jax.local_devices(backend=None if device == "auto" else device)
    except RuntimeError:
        devices = []
    platform = {"gpu": "cuda"}.get(devices[0].platform, devices[0].platform) if devices else ""
    if not devices or (device == "auto" and platform == "cpu"):
        title = "TPU or GPU" if device == "auto" else f"device {device!r}"
        raise BackendUnavailable(
            f"jax {jax.__version__} finds no {title} on this machine",
            "install jax[tpu] or jax[cuda13], or run the same code on the processor: "
            "autoresearch --backend jax --device cpu",
        )
    return platform, devices


def _identity(platform: str, devices: list[jax.Device]) -> tuple[str, int]:
    """Name of a device, and the bytes of memory of all of them together."""
    if platform == "cpu":
        return f"{processor_name()}, {usable_cores()} threads", psutil.virtual_memory().total
    stats = [device.memory_stats() or {} for device in devices]
    return devices[0].device_kind, sum(int(s.get("bytes_limit", 0)) for s in stats)


def _dtype(platform: str) -> tuple[str, str]:
    """bfloat16 where a linear layer with a float32 master weight runs faster in it, forward and backward."""
    if platform == "tpu":
        return "bfloat16", "a TPU multiplies in bfloat16"
    size = 512 if platform == "cpu" else 2048
    weight = jnp.ones((size, size), jnp.float32)

    def step(dtype: Any) -> Callable[[], Any]:
        x = jnp.ones((2 * size, size), dtype)
        gradient = jax.jit(jax.grad(lambda x, w: jnp.square(x @ w.astype(dtype).T).sum(), argnums=(0, 1)))
        return lambda: wait(gradient(x, weight))

    try:
        exact, half = fastest([step(jnp.float32), step(jnp.bfloat16)])
    except jax.errors.JaxRuntimeError as error:
        return "float32", f"bfloat16 does not run here: {error}".splitlines()[0]
    said = f"a linear layer takes {half / exact:.2f} of its float32 time in bfloat16"
    return ("bfloat16" if exact >= BFLOAT16_GAIN * half else "float32"), said


def _working_attention(table: Iterable[str], mesh: Mesh, dtype: str) -> tuple[str, str]:
    """The first of `table` that agrees with a dense mask on this device, outputs and gradients; else "xla"."""
    seq_len, window, notes = 256, 100, []
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (
        jax.random.normal(key, (mesh.size, seq_len, heads, 128), dtype)
        for key, heads in zip(keys, (4, 2, 2), strict=True)
    )
    for name in table:
        try:
            attend = provider(name, mesh)
            error = max(largest_error(attend, w, q, k, v) for w in (window, None))
        except Exception as problem:  # a kernel of another project: whatever it raises, there is a fallback
            notes.append(f"{name} fails ({type(problem).__name__}: {problem})".splitlines()[0][:160])
            continue
        if error <= ATTENTION_TOLERANCE:
            return name, "; ".join([*notes, f"{name} agrees with a dense mask within {error:.1e}"])
        notes.append(f"{name} is wrong by {error:.1e} against a dense mask")
    return "xla", "; ".join([*notes, "works on every device"])


def _peak_flops(platform: str, devices: list[jax.Device], dtype: str) -> tuple[float | None, str]:
    name = devices[0].device_kind
    if platform == "cpu":
        size = 1024
        a = jnp.ones((size, size), dtype)
        product = jax.jit(jnp.matmul)
        (seconds,) = fastest([lambda: wait(product(a, a))])
        return 2 * size**3 / seconds, f"measured: a {dtype} matrix product of size {size}"
    known = TPU_PEAK_FLOPS.get(name) if platform == "tpu" else nvidia_peak_flops(name)
    if known is None or dtype != "bfloat16":
        return None, f"unknown for {name} in {dtype}"
    return known * len(devices), f"data sheet of {name}, dense bfloat16, times {len(devices)}"


def _mesh(device: DeviceInfo) -> Mesh:
    return Mesh(np.array(jax.local_devices(backend=device.platform)[: device.count]), ("rows",))


def _sharding(device: DeviceInfo, *axes: str | None) -> NamedSharding:
    return NamedSharding(_mesh(device), PartitionSpec(*axes))  # type: ignore[no-untyped-call]


def replicated(device: DeviceInfo) -> NamedSharding:
    """The sharding of parameters: all of them on each device."""
    return _sharding(device)


def attention_provider(device: DeviceInfo) -> Attend:
    """The attention function of `device.attention`: `attend(q, k, v, window)`, see `attention.py`."""
    return provider(device.attention, _mesh(device))


def seed(n: int) -> None:
    """Seed NumPy's global generator, which a train.py may use; JAX has no global one."""
    np.random.seed(n % 2**32)


def put(tokens: NDArray[np.int32], device: DeviceInfo) -> Any:
    """Copy tokens (..., rows, T) to the devices as int32, asynchronously.

    The rows are split over the devices; where their number is no multiple of them, each device gets all rows.
    """
    rows = "rows" if tokens.shape[-2] % device.count == 0 else None
    return jax.device_put(tokens, _sharding(device, *(None,) * (tokens.ndim - 2), rows, None))


def wait(value: Any) -> None:
    """Block until every array in `value`, a tree, is computed."""
    _ready(value)


@partial(jax.jit, static_argnums=0)
def _forward(function: Callable[[Any, Any], Any], params: Any, inputs: Array) -> Any:
    return function(params, inputs)


@jax.jit
def _nats(scores: Array, targets: Array) -> Array:
    wide = scores.astype(jnp.float32)
    # Both terms are small once the largest is taken off, so that no offset of all logits swallows their difference.
    wide -= wide.max(axis=-1, keepdims=True)
    chosen = jnp.take_along_axis(wide, targets[..., None], axis=-1)[..., 0]
    return jnp.log(jnp.exp(wide).sum(axis=-1)) - chosen


@jax.jit
def _chosen(scores: Array, positions: NDArray[np.int32]) -> Array:
    return jnp.take_along_axis(scores, positions[..., None], axis=1).astype(jnp.float32)


def _scores(trained: Trained, inputs: Array) -> Array:
    """Logits (B, T, V), by a function that is compiled once for each model and shape."""
    found = _forward(trained.logits, trained.params, inputs)
    if not isinstance(found, Array) or found.ndim != 3 or found.shape[:2] != inputs.shape:
        received = tuple(found.shape) if isinstance(found, Array) else type(found).__name__
        raise CandidateFailure("invalid", f"logits are {received}, not an array (B, T, V) for inputs {inputs.shape}")
    return found


def nats(trained: Trained, inputs: Array, targets: Array) -> NDArray[np.float32]:
    """Negative log-likelihood of each target, (B, T) in nats, by a float32 log-softmax.

    Raises:
        CandidateFailure: the logits don't have the shape (B, T, V).
    """
    scores = _scores(trained, inputs)
    if scores.shape[-1] <= (largest := int(np.asarray(targets).max())):
        raise CandidateFailure("invalid", f"logits for {scores.shape[-1]} tokens; a target is {largest}")
    return np.asarray(_nats(scores, targets))


def logits(trained: Trained, inputs: Array, positions: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logits of each row at its own `positions` (B, n), (B, n, V) float32 on the host, in the shape of `inputs`.

    Raises:
        CandidateFailure: the logits don't have the shape (B, T, V).
    """
    return np.asarray(_chosen(_scores(trained, inputs), positions))


def count(params: Any) -> int:
    """Scalar parameters of a tree of arrays; an array that occurs twice counts once."""
    leaves = {id(leaf): leaf for leaf in jax.tree.leaves(params)}
    return sum(int(np.size(leaf)) for leaf in leaves.values())


def peak_memory_bytes(device: DeviceInfo) -> int:
    """Peak of allocated memory of all devices together; on a processor the peak resident set."""
    if device.platform == "cpu":
        return peak_resident_bytes()
    stats = [found.memory_stats() or {} for found in _mesh(device).devices.flat]
    return sum(int(s.get("peak_bytes_in_use", 0)) for s in stats)


def probe(device: DeviceInfo, seconds: float) -> float:
    """FLOP/s of all devices at once, each with matrix products in the compute dtype, of size 1024 on a processor, else
    2048, several between waits.
    """
    size, products = (1024, 1) if device.platform == "cpu" else (2048, 16)
    block = np.linspace(-1, 1, size * size, dtype=np.float32).reshape(size, size)
    # Rows of the left side are split, so that no device waits for another.
    left = jax.device_put(np.tile(block, (device.count, 1)), _sharding(device, "rows", None)).astype(device.dtype)
    right = jax.device_put(block, replicated(device)).astype(device.dtype)

    def work() -> None:
        _ready([_product(left, right) for _ in range(products)])

    return rate(work, device.count * products * 2 * size**3, seconds)


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that device or host memory ran out."""
    if isinstance(error, MemoryError):
        return True
    said = re.search("RESOURCE_EXHAUSTED|out of memory", str(error), re.IGNORECASE)
    return isinstance(error, jax.errors.JaxRuntimeError) and said is not None
