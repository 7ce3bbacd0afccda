"""Apple MLX: Metal on Apple silicon, a processor for testing. Facts only: importing this loads no framework."""

from __future__ import annotations

from pathlib import Path

from autoresearch.backends.hardware import KEEP_FREED_MEMORY

TITLE = "Apple MLX"
INSTALL_HINT = "in the clone of autoresearch: pip install '.[mlx]'"
RANK: int | None = 20
BASELINE = Path(__file__).parent / "train.py"
ALLOWED_IMPORTS = frozenset({"mlx", "numpy"})
COMPUTES_WITH: frozenset[str] = frozenset()

DEVICE = "AUTORESEARCH_MLX_DEVICE"
"""Variable that names the device where it isn't MLX's own choice; `device.py` reads it when it loads."""


def environment(device: str) -> dict[str, str]:
    """What must stand in a child's environment before MLX loads.

    Args:
        device: "auto" or a platform, e.g. "cpu".
    """
    return {DEVICE: "cpu", **KEEP_FREED_MEMORY} if device == "cpu" else {}
