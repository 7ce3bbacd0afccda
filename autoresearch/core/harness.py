"""Which harness measured: the identity of the installed package."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def sources_hash(folder: Path) -> str:
    """SHA-256 of the names and contents of all *.py below `folder`, in the order of their names; 64 hex digits."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


@cache
def harness_hash() -> str:
    """That of this package, as it was when a process first asked."""
    return sources_hash(PACKAGE)
