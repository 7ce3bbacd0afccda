"""The trusted side of the null backend: `contract.Backend` in NumPy."""

from __future__ import annotations

import os
import platform
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoresearch.backends import hardware
from autoresearch.core.contract import DeviceInfo, Trained
from autoresearch.core.errors import BackendUnavailable, CandidateFailure

# Taken before any candidate is loaded.
_matmul = np.matmul


def describe(device: str = "auto", budget_seconds: float | None = None) -> DeviceInfo:
    """The processor, in float32.

    Raises:
        BackendUnavailable: for another device than the CPU.
    """
    if device not in ("auto", "cpu"):
        raise BackendUnavailable(f"the null backend has no device {device!r}", "leave --device out")
    return DeviceInfo(
        backend="null",
        platform="null",
        name=f"{platform.processor() or platform.machine()}, 1 thread",
        count=1,
        framework=f"numpy {np.__version__}",
        dtype="float32",
        attention="none",
        compile=False,
        peak_flops=None,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        reasons={"dtype": "NumPy", "attention": "a bigram has none", "compile": "NumPy", "peak_flops": "not measured"},
    )


def seed(n: int) -> None:
    """NumPy's generators are made by the candidate from experiment.seed."""


def put(tokens: NDArray[np.int32], device: DeviceInfo) -> NDArray[np.int32]:
    """A copy: the host is the device, and a candidate may write into what it is handed."""
    return np.array(tokens, np.int32)


def wait(value: Any) -> None:
    """NumPy computes at once."""


def _scores(trained: Trained, inputs: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logits (B, T, V)."""
    shape = inputs.shape
    found = np.asarray(trained.logits(trained.params, inputs), np.float32)
    if found.ndim != 3 or found.shape[:2] != shape:
        raise CandidateFailure("invalid", f"logits are {found.shape}, not an array (B, T, V) for inputs {shape}")
    return found


def nats(trained: Trained, inputs: NDArray[np.int32], targets: NDArray[np.int32]) -> NDArray[np.float32]:
    """Negative log-likelihood (B, T) float32 of the targets.

    Raises:
        CandidateFailure: the logits don't have the shape (B, T, V).
    """
    logits = _scores(trained, inputs)
    # Both terms are small once the largest is taken off, so that no offset of all logits swallows their difference.
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(axis=-1))
    chosen = np.take_along_axis(shifted, targets[..., None], axis=-1)[..., 0]
    return np.asarray(log_sum - chosen, np.float32)


def logits(trained: Trained, inputs: NDArray[np.int32], positions: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logits of each row at its own `positions` (B, n), (B, n, V) float32, computed in the shape of `nats`.

    Raises:
        CandidateFailure: the logits don't have the shape (B, T, V).
    """
    return np.take_along_axis(_scores(trained, inputs), positions[..., None], axis=1)


def _arrays(params: Any) -> list[NDArray[Any]]:
    if isinstance(params, dict):
        return [array for value in params.values() for array in _arrays(value)]
    if isinstance(params, list | tuple):
        return [array for value in params for array in _arrays(value)]
    return [params] if isinstance(params, np.ndarray) else []


def count(params: Any) -> int:
    """Scalars in the arrays of a nested dict, list or tuple."""
    return sum(array.size for array in _arrays(params))


def peak_memory_bytes(device: DeviceInfo) -> int:
    """Peak resident memory of the process."""
    return hardware.peak_resident_bytes()


def probe(device: DeviceInfo, seconds: float) -> float:
    """FLOP/s of float32 matrix products of size 512."""
    size = 512
    a = np.linspace(-1, 1, size * size, dtype=np.float32).reshape(size, size)
    out = np.empty_like(a)
    return hardware.rate(lambda: _matmul(a, a, out=out), 2 * size**3, seconds)


def out_of_memory(error: BaseException) -> bool:
    """NumPy raises MemoryError."""
    return isinstance(error, MemoryError)
