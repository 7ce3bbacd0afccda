"""A NumPy bigram on the CPU: the whole loop in seconds, for tests and for --dry-run."""

from __future__ import annotations

from pathlib import Path

TITLE = "NumPy bigram"
INSTALL_HINT = "NumPy comes with autoresearch; reinstall it in the clone of autoresearch: pip install ."
RANK = None
BASELINE = Path(__file__).with_name("train.py")
ALLOWED_IMPORTS = frozenset({"numpy"})
COMPUTES_WITH: frozenset[str] = frozenset()


def environment(device: str) -> dict[str, str]:
    """One BLAS thread: the arrays are small, and a search beside it keeps its cores."""
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
