"""The spreads that were measured in a workspace, by comparability key: what a later run starts from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autoresearch.core.errors import DataError
from autoresearch.core.files import write_atomic
from autoresearch.core.records import Prior

FILE = "spread.json"
"""`{key: {"square": (bits per byte)², "dof": count}}`, in `.autoresearch`."""


def stored(folder: Path) -> dict[str, Prior]:
    """What is known, by comparability key; {} where nothing was measured.

    Args:
        folder: `.autoresearch` of a workspace.

    Raises:
        DataError: the file is damaged.
    """
    path = folder / FILE
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {key: Prior(float(known["square"]), int(known["dof"])) for key, known in content.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} can't be used: {error}", "delete it, then measure again: autoresearch calibrate"
        ) from error


def add(folder: Path, key: str, measured: Prior) -> None:
    """Pool one more group of measurements with what is known. The caller holds the workspace's lock.

    Raises:
        DataError: see `stored`.
        AutoresearchError: the file can't be written.
    """
    known = stored(folder)
    before = known.get(key, Prior(0.0, 0))
    known[key] = Prior(before.square + measured.square, before.dof + measured.dof)
    write_atomic(folder / FILE, json.dumps({name: prior._asdict() for name, prior in known.items()}, indent=2) + "\n")
