"""JAX on TPUs, GPUs and processors. Facts only: importing this loads no framework."""

from __future__ import annotations

import os
from pathlib import Path

from autoresearch.backends.hardware import usable_cores

TITLE = "JAX (TPU, GPU, CPU)"
INSTALL_HINT = "in the clone of autoresearch: pip install '.[jax]'"
RANK: int | None = 30
BASELINE = Path(__file__).parent / "train.py"
ALLOWED_IMPORTS = frozenset({"jax", "numpy"})
COMPUTES_WITH = frozenset({"jax.lax", "jax.nn", "jax.numpy", "jax._src.lax", "jax._src.nn", "jax._src.numpy"})

MAX_HOST_DEVICES = 4
_COUNT_FLAG = "--xla_force_host_platform_device_count"


def environment(device: str) -> dict[str, str]:
    """Variables that must stand before JAX loads. What the user has set wins, but for the platform.

    Args:
        device: "auto" or a platform, e.g. "cpu".
    """
    wanted = {
        # Compiled code is kept for the next measurement of a run, however quick it was to compile.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    if device == "cuda":
        wanted["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.92"
    elif device == "auto":
        # A look at the machine takes no memory from a search that runs on it.
        wanted["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    chosen = {name: os.environ.get(name, value) for name, value in wanted.items()}
    if device == "cpu":
        chosen["JAX_PLATFORMS"] = "cpu"
        chosen["XLA_FLAGS"] = _processor_flags(os.environ.get("XLA_FLAGS", ""))
    return chosen


def _processor_flags(given: str) -> str:
    """XLA_FLAGS with a device for each core: one device leaves cores idle between its small operations.

    A power of two, so that it divides the rows of a batch.
    """
    if _COUNT_FLAG in given or "JAX_NUM_CPU_DEVICES" in os.environ:
        return given
    devices = 1
    while 2 * devices <= min(usable_cores(), MAX_HOST_DEVICES):
        devices *= 2
    return f"{given} {_COUNT_FLAG}={devices}".strip()
