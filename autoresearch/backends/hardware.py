"""What backends say about a machine without any framework: names, peaks of data sheets, memory, fair timing."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

# Dense bfloat16 tensor-core peaks of the maker's data sheets, FLOP/s; the first pattern that is found counts.
_NVIDIA = (
    (r"\bGB200\b", 2.5e15),
    (r"\bB200\b", 2.25e15),
    (r"\bH100 NVL\b", 835e12),
    (r"\bH100 PCIe\b", 756e12),
    (r"\b(H100|H200|GH200)\b", 989e12),
    (r"\bA100\b", 312e12),
    (r"\bL40S\b", 362e12),
    (r"\bL4\b", 121e12),
    (r"\bRTX 5090\b", 209.5e12),
    (r"\bRTX 4090\b", 165e12),
    (r"\bRTX 3090\b", 71e12),
)

KEEP_FREED_MEMORY = MappingProxyType(
    {
        "MALLOC_MMAP_THRESHOLD_": str(2**32),
        "MALLOC_TRIM_THRESHOLD_": str(2**34),
        "MALLOC_TOP_PAD_": str(2**28),
    }
)
"""Environment in which glibc keeps freed memory in the heap: at tens of megabytes per tensor, giving pages back to the
system and faulting them in again is a large share of a step."""


def nvidia_peak_flops(name: str) -> float | None:
    """Dense bfloat16 FLOP/s of a GPU by the name that its driver gives; None where unknown."""
    return next((flops for pattern, flops in _NVIDIA if re.search(pattern, name)), None)


def processor_name() -> str:
    """Model of the processor, e.g. "Apple M4" or what /proc/cpuinfo says."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (match := re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text())):
        return match[1]
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def peak_resident_bytes() -> int:
    """Peak of the resident set since this process started."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def fastest(functions: Sequence[Callable[[], Any]], repeats: int = 8) -> list[float]:
    """Shortest time of each function in seconds; they take turns, so that a busy moment meets all of them.

    Args:
        functions: each returns when its work is done.
    """
    best = [float("inf")] * len(functions)
    for _ in range(repeats):
        for i, function in enumerate(functions):
            start = perf_counter()
            function()
            best[i] = min(best[i], perf_counter() - start)
    return best


def rate(work: Callable[[], Any], flops: float, seconds: float) -> float:
    """FLOP/s at which a device repeats `work`: over the whole time, since a busy machine slows some of the calls only.

    The first fifth of the time isn't counted: memory is allocated and a resting device raises its clock.

    Args:
        work: returns when it is done.
        flops: floating-point operations of one call.
        seconds: time that this takes; one call longer at most, and at least two calls.
    """
    begin = perf_counter()
    work()
    while (start := perf_counter()) - begin < 0.2 * seconds:
        work()
    done = 0
    while True:
        work()
        done += 1
        if (now := perf_counter()) - begin >= seconds:
            return done * flops / (now - start)
