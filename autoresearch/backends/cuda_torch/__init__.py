"""CUDA PyTorch: the reference backend. Facts only: importing this loads no framework."""

from __future__ import annotations

from pathlib import Path

from autoresearch.backends.hardware import KEEP_FREED_MEMORY

TITLE = "CUDA PyTorch"
INSTALL_HINT = "in the clone of autoresearch: pip install '.[cuda]', or '.[cpu]' on a machine without a GPU"
RANK: int | None = 10
BASELINE = Path(__file__).parent / "train.py"
ALLOWED_IMPORTS = frozenset({"numpy", "torch", "triton"})
COMPUTES_WITH: frozenset[str] = frozenset()

_CPU = {
    **KEEP_FREED_MEMORY,
    # Threads that wait at the end of a parallel section soon sleep. Spinning, they take the core from the thread they
    # wait for as soon as anything else runs on the machine: a step then takes several times as long. Costs 6 % of the
    # speed of an idle machine.
    "GOMP_SPINCOUNT": "1000",
}


def environment(device: str) -> dict[str, str]:
    """Allocator settings that must stand before PyTorch loads.

    Args:
        device: "auto" or a platform, e.g. "cpu".
    """
    if device == "cpu":
        return _CPU
    return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
