"""The optional parts of the package, which pyproject.toml lists."""

from __future__ import annotations


def install_hint(extra: str) -> str:
    """How to install one of them: the package is installed from a clone of its repository."""
    return f"in the clone of autoresearch: pip install '.[{extra}]'"
