"""The trusted side of the MLX backend: what the machine offers, transfers, scoring, memory.

A train.py imports one helper from here, `compiled`, so that it holds no branch on the device. Every choice of
`describe` carries its reason. One process uses one device.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import psutil
from numpy.typing import NDArray

from autoresearch.backends.hardware import fastest, peak_resident_bytes, processor_name, rate, usable_cores
from autoresearch.backends.mlx import DEVICE
from autoresearch.backends.mlx.blas import HINT, REFERENCE, load_blas
from autoresearch.core.contract import DeviceInfo, Trained
from autoresearch.core.errors import BackendUnavailable, CandidateFailure

BLAS = load_blas()

import mlx.core as mx  # noqa: E402, after the BLAS that it is to find
from mlx.nn.layers.base import Module  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402

__all__ = [
    "compiled",
    "count",
    "describe",
    "logits",
    "nats",
    "out_of_memory",
    "peak_memory_bytes",
    "probe",
    "put",
    "seed",
    "wait",
]

# Taken before any candidate is loaded, so that one that patches MLX doesn't patch its own score or its clock.
_astype, _eval, _expand, _logsumexp, _matmul, _max, _subtract, _take = (
    mx.array.astype,
    mx.eval,
    mx.expand_dims,
    mx.logsumexp,
    mx.matmul,
    mx.max,
    mx.subtract,
    mx.take_along_axis,
)

P = ParamSpec("P")
R = TypeVar("R")

# FLOP/s of one GPU core by Apple's own figures, the same in float32 and bfloat16. Of later chips Apple states none.
PEAK_FLOPS_PER_CORE = {"M1": 2.6e12 / 8, "M2": 3.6e12 / 10}
# bfloat16 halves memory traffic as well, but where it is emulated it loses several times over: no close calls.
BFLOAT16_GAIN = 1.2


def describe(device: str = "auto", budget_seconds: float | None = None) -> DeviceInfo:
    """Probe the machine; takes about a second.

    Args:
        device: "auto" (Metal, else the processor, which is for testing), "metal" or "cpu".
        budget_seconds: not needed; whether compiling pays does not depend on it.

    Raises:
        BackendUnavailable: no such device here.
    """
    platform, platform_reason = _platform(device)
    compile, compile_reason = _compile(platform)
    with mx.stream(mx.cpu if platform == "cpu" else mx.gpu):
        name, cores, memory = _identity(platform)
        dtype, dtype_reason = _dtype(platform)
        peak, peak_reason = _peak_flops(platform, name, cores, dtype)
    return DeviceInfo(
        backend="mlx",
        platform=platform,
        name=f"{name}, {cores} {'GPU ' if platform == 'metal' else ''}cores" if cores else name,
        count=1,
        framework=f"mlx {version('mlx')}" + (f" with {BLAS}" if platform == "cpu" else ""),
        dtype=dtype,
        attention="fast",
        compile=compile,
        peak_flops=peak,
        memory_bytes=memory,
        reasons={
            "platform": platform_reason,
            "dtype": dtype_reason,
            "attention": "mx.fast.scaled_dot_product_attention, causal or with a window mask",
            "compile": compile_reason,
            "peak_flops": peak_reason,
        },
    )


def _platform(device: str) -> tuple[str, str]:
    metal = mx.metal.is_available()
    if device == "auto":
        return ("metal", "the GPU") if metal else ("cpu", "no Metal device is found; the processor is for testing")
    if device == "cpu":
        return "cpu", "as asked; MLX on a processor is for testing"
    if device == "metal" and metal:
        return "metal", "as asked"
    title = "Metal device" if device == "metal" else f"device {device!r}"
    raise BackendUnavailable(
        f"mlx {version('mlx')} finds no {title} on this machine",
        "test the same code on the processor: autoresearch --backend mlx --device cpu",
    )


def _compile(platform: str) -> tuple[bool, str]:
    if platform == "metal":
        return True, "kernels are fused, within seconds"
    return False, "no faster on a processor, and the C++ compiler takes half a minute at each start"


def _device_info() -> dict[str, Any]:
    """MLX's facts about the device in use."""
    # Version 0.30 has it for Metal alone.
    return dict(mx.device_info() if hasattr(mx, "device_info") else mx.metal.device_info())


def _identity(platform: str) -> tuple[str, int, int]:
    """Name of the chip, its cores (0 where unknown), and the bytes of memory that it can use."""
    if platform == "cpu":
        return processor_name(), usable_cores(), psutil.virtual_memory().total
    info = _device_info()
    return str(info["device_name"]), _gpu_cores(), int(info["max_recommended_working_set_size"])


def _gpu_cores() -> int:
    """GPU cores by the registry of devices of macOS; 0 where it doesn't say."""
    command = ["/usr/sbin/ioreg", "-rd1", "-c", "AGXAccelerator"]
    try:
        text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'"gpu-core-count"\s*=\s*(\d+)', text)
    return int(found[1]) if found else 0


def _fastest(functions: Sequence[Callable[[], Any]], repeats: int = 8) -> list[float]:
    """Shortest time in seconds of each function, what it returns computed."""
    return fastest([partial(_evaluate, function) for function in functions], repeats)


def _evaluate(function: Callable[[], Any]) -> None:
    mx.eval(function())


def _dtype(platform: str) -> tuple[str, str]:
    """bfloat16 where a linear layer with a float32 master weight runs faster in it, forward and backward."""
    size = 256 if platform == "cpu" else 2048
    weight = mx.random.normal((size, size))
    gradients = mx.grad(lambda x, weight: (x @ weight.astype(x.dtype).T).sum(), argnums=(0, 1))

    def step(dtype: mx.Dtype) -> Callable[[], Any]:
        x = mx.random.normal((2 * size, size)).astype(dtype)
        mx.eval(x, weight)
        return lambda: gradients(x, weight)

    exact, half = _fastest([step(mx.float32), step(mx.bfloat16)])
    said = f"a linear layer takes {half / exact:.2f} of its float32 time in bfloat16"
    return ("bfloat16" if exact >= BFLOAT16_GAIN * half else "float32"), said


def _peak_flops(platform: str, name: str, cores: int, dtype: str) -> tuple[float | None, str]:
    if platform == "metal" and cores and (found := re.search(r"\bM\d+\b", name)) and found[0] in PEAK_FLOPS_PER_CORE:
        return cores * PEAK_FLOPS_PER_CORE[found[0]], f"Apple's figure for the {found[0]}, by its {cores} GPU cores"
    size = 1024 if platform == "cpu" else 4096
    a, b = (mx.random.normal((size, size)).astype(getattr(mx, dtype)) for _ in range(2))
    mx.eval(a, b)
    (seconds,) = _fastest([lambda: a @ b], repeats=4)
    by = f", by {BLAS}" + (f" of the wheel; {HINT}" if BLAS == REFERENCE else "") if platform == "cpu" else ""
    return 2 * size**3 / seconds, f"measured: a {dtype} matrix product of size {size}{by}"


def _use_device() -> None:
    """What holds for the whole process: a child that measures calls nothing before the candidate is loaded."""
    if os.environ.get(DEVICE) == "cpu":
        mx.set_default_device(mx.cpu)
    elif mx.metal.is_available():
        # Memory is shared with the rest of the machine. Beyond the working set it swaps, and what MLX keeps of freed
        # buffers is lost to everyone else.
        working_set = int(_device_info()["max_recommended_working_set_size"])
        mx.set_memory_limit(working_set)
        mx.set_cache_limit(working_set // 4)
        with contextlib.suppress(ValueError, RuntimeError):  # before macOS 15
            mx.set_wired_limit(working_set)


_use_device()


def compiled(function: Callable[P, R], device: DeviceInfo, state: Any) -> Callable[P, R]:
    """`function`, compiled for static shapes where `device.compile` says that it pays.

    Args:
        state: tree of the arrays, in dicts and lists, that `function` reads and replaces besides its arguments.
    """
    if not device.compile:
        return function
    return cast("Callable[P, R]", mx.compile(function, inputs=state, outputs=state))


def seed(n: int) -> None:
    """Seed MLX's generator, and NumPy's global one, which a train.py may use."""
    mx.random.seed(n)
    np.random.seed(n % 2**32)


def put(tokens: NDArray[np.int32], device: DeviceInfo) -> mx.array:
    """Copy tokens to an int32 array of the same shape."""
    return mx.array(np.ascontiguousarray(tokens, np.int32))


def _arrays(value: Any) -> Iterator[mx.array]:
    """Arrays of a module or a tree, each once."""
    leaves = cast("list[tuple[str, Any]]", tree_flatten(value))
    yield from {id(leaf): leaf for _, leaf in leaves if isinstance(leaf, mx.array)}.values()


def wait(value: Any) -> None:
    """Block until every array in `value` (a module, a tree, a scalar) is computed."""
    _eval(list(_arrays(value)))


def _forward(trained: Trained, inputs: mx.array) -> mx.array:
    """Logits (B, T, V) float32, eager: scoring takes seconds, compiling another graph for it would take longer."""
    if isinstance(trained.params, Module):
        trained.params.eval()
    found = trained.logits(trained.params, inputs)
    # The methods of a subclass would see the targets on their way to the loss.
    if type(found) is not mx.array or found.ndim != 3 or found.shape[:2] != inputs.shape:
        received = found.shape if type(found) is mx.array else type(found).__name__
        raise CandidateFailure("invalid", f"logits are {received}, not an array (B, T, V) for inputs {inputs.shape}")
    return _astype(found, mx.float32)


def nats(trained: Trained, inputs: mx.array, targets: mx.array) -> NDArray[np.float32]:
    """Negative log-likelihood of each target, (B, T) in nats, by a float32 log-softmax.

    Raises:
        CandidateFailure: the logits don't have the shape (B, T, V).
    """
    scores = _forward(trained, inputs)
    if scores.shape[-1] <= (largest := int(np.asarray(targets).max())):
        raise CandidateFailure("invalid", f"logits for {scores.shape[-1]} tokens; a target is {largest}")
    # Both terms are small once the largest is taken off, so that no offset of all logits swallows their difference.
    scores = _subtract(scores, _max(scores, axis=-1, keepdims=True))
    of_target = _take(scores, _expand(targets, -1), axis=-1)
    return np.array(_subtract(_logsumexp(scores, axis=-1, keepdims=True), of_target))[..., 0]


def logits(trained: Trained, inputs: mx.array, positions: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logits of each row at its own `positions` (B, n), (B, n, V) float32 on the host, in the shape of `inputs`.

    Raises:
        CandidateFailure: the logits don't have the shape (B, T, V).
    """
    wanted = _expand(mx.array(np.ascontiguousarray(positions, np.int32)), -1)
    return np.array(_take(_forward(trained, inputs), wanted, axis=1))


def count(params: Any) -> int:
    """Scalar parameters of a module, or of a tree of arrays."""
    # The state of a module holds more than its parameters.
    counted = params.parameters() if isinstance(params, Module) else params  # type: ignore[no-untyped-call]
    return sum(int(array.size) for array in _arrays(counted))


def peak_memory_bytes(device: DeviceInfo) -> int:
    """Peak of MLX's own allocations on Metal; on a processor the peak resident set."""
    if device.platform == "metal":
        return mx.get_peak_memory()
    return peak_resident_bytes()


def probe(device: DeviceInfo, seconds: float) -> float:
    """FLOP/s of matrix products in the compute dtype, of size 1024 on a processor, else 2048, several between waits."""
    size, products = (1024, 1) if device.platform == "cpu" else (2048, 4)
    a = mx.linspace(-1, 1, size * size).reshape(size, size).astype(getattr(mx, device.dtype))
    _eval(a)
    return rate(lambda: _eval([_matmul(a, a) for _ in range(products)]), products * 2 * size**3, seconds)


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that device or host memory ran out."""
    if isinstance(error, MemoryError):
        return True
    said = "[Uu]nable to allocate|greater than the maximum allowed buffer size|Insufficient Memory|bad_alloc"
    return isinstance(error, RuntimeError) and re.search(said, str(error)) is not None
