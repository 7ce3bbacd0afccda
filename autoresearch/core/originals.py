"""What the harness computes with, by name, so that a replacement can be told.

Not only the names at the top of a module: NumPy and `json` do their work in private helper modules and in methods,
which are reached under other names too, e.g. through a framework that imports them. Code, defaults and closures of
functions are taken down as well: `functools.update_wrapper` replaces them without an audit event of the candidate's.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

# Libraries that the child and the evaluation call into; a framework's own functions are taken by its device.py.
_LIBRARIES = frozenset(
    {
        *("builtins", "contextlib", "hmac", "json", "_json", "math", "numpy", "os", "posix", "posixpath", "queue"),
        *("random", "secrets", "statistics", "struct", "threading", "time"),
    }
)
_BUILTINS = frozenset(vars(builtins))
# Python itself writes these late.
_WRITTEN_LATE = frozenset({"__annotations__", "__annotations_cache__", "__doc__", "__signature__"})
_Entry = tuple[str, Any]


def originals(libraries: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Every function, class, method and constant of the harness, and every function and method of its libraries.

    Args:
        libraries: names of more of them, each with the modules below it.

    Where a name could be added that hides another (in a class, in a module of the harness, a builtin in a library), the
    set of names is an entry too.
    """
    found: dict[str, Any] = {}
    for name, module in list(sys.modules.items()):
        top = name.partition(".")[0]
        if top == "autoresearch" or name == "__main__":
            found.update(_of_harness(name, module))
        elif top in _LIBRARIES or any(name == more or name.startswith(more + ".") for more in libraries):
            found.update(_of_library(name, module))
    return found


def replaced(before: dict[str, Any], now: dict[str, Any]) -> str:
    """The name of something that is no longer what it was; "" where nothing is."""
    for name, value in before.items():
        other = now.get(name)
        if other is not value and not (isinstance(value, frozenset) and other == value):
            return name
    return ""


def _of_harness(name: str, module: ModuleType) -> Iterator[_Entry]:
    content = dict(vars(module))
    core = name.startswith("autoresearch.core.")
    if core and not hasattr(module, "__path__"):
        yield f"{name} (its names)", frozenset(key for key in content if not key.startswith("__"))
    for key, value in content.items():
        # A backend may cache what it compiled; the core holds nothing that changes.
        if callable(value) or core:
            yield f"{name}.{key}", value
        if isinstance(value, FunctionType):
            yield from _inside(f"{name}.{key}", value)
            for number, cell in enumerate(value.__closure__ or ()):
                yield f"{name}.{key} (closure {number})", cell.cell_contents
        elif isinstance(value, type) and value.__module__ == name:
            yield from ((f"{name}.{key}.{member}", found) for member, found in list(vars(value).items()))
            yield from _members(f"{name}.{key}", value)


def _of_library(name: str, module: ModuleType) -> Iterator[_Entry]:
    content = dict(vars(module))
    yield f"{name} (its builtins)", _BUILTINS.intersection(content)
    for key, value in content.items():
        if not callable(value):
            continue
        yield f"{name}.{key}", value
        # NumPy's functions stand behind a dispatcher in C.
        function = value if isinstance(value, FunctionType) else getattr(value, "__wrapped__", None)
        if isinstance(function, FunctionType):
            yield from _inside(f"{name}.{key}", function)
        elif isinstance(value, type) and value.__module__ == name:
            yield from _members(f"{name}.{key}", value)


def _members(name: str, cls: type) -> Iterator[_Entry]:
    content = dict(vars(cls))
    yield f"{name} (its names)", frozenset(content) - _WRITTEN_LATE
    for key, value in content.items():
        if callable(value) or isinstance(value, property | staticmethod | classmethod):
            yield f"{name}.{key}", value
            if isinstance(value, FunctionType):
                yield from _inside(f"{name}.{key}", value)


def _inside(name: str, function: FunctionType) -> Iterator[_Entry]:
    yield f"{name}.__code__", function.__code__
    yield f"{name}.__defaults__", function.__defaults__
    yield f"{name}.__kwdefaults__", function.__kwdefaults__
