"""Backends by name, from the entry-point group `autoresearch.backends`; a plug-in registers there too."""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import entry_points
from typing import cast

from autoresearch.core.contract import Backend, BackendFacts
from autoresearch.core.errors import UsageError, did_you_mean

GROUP = "autoresearch.backends"


@cache
def _packages() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=GROUP)}


def names() -> list[str]:
    """The registered backends, sorted."""
    return sorted(_packages())


def _package(name: str) -> str:
    packages = _packages()
    if name not in packages:
        raise UsageError(f"no backend {name!r}", did_you_mean(name, packages))
    return packages[name]


def facts(name: str) -> BackendFacts:
    """The framework-free facts of a backend.

    Raises:
        UsageError: no backend of that name is registered.
    """
    return cast(BackendFacts, importlib.import_module(_package(name)))


def load(name: str) -> Backend:
    """The backend's `device` module, which imports its framework: for the child process only.

    Raises:
        UsageError: no backend of that name is registered.
        ImportError: the framework isn't installed.
    """
    return cast(Backend, importlib.import_module(_package(name) + ".device"))
