"""One search at a time in a workspace."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from autoresearch.core.errors import WorkspaceBusy
from autoresearch.core.files import io_error, write_atomic


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold `folder/lock`; `folder/lock.json` says who does and since when. The folder is made where it is missing.

    It is a lock of the system, which frees it with the process, also after `kill -9`.

    Raises:
        WorkspaceBusy: another process holds it.
        AutoresearchError: the folder can't be written.
    """
    owner = folder / "lock.json"
    try:
        folder.mkdir(exist_ok=True)
        lock = FileLock(folder / "lock")
        lock.acquire(timeout=0)
    except Timeout as error:
        raise _busy(folder, owner) from error
    except OSError as error:
        raise io_error("lock", folder, error) from error
    try:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        write_atomic(owner, json.dumps({"pid": os.getpid(), "since": since}) + "\n")
        yield
    finally:
        with suppress(OSError):
            owner.unlink(missing_ok=True)
        lock.release()


def _busy(folder: Path, owner: Path) -> WorkspaceBusy:
    try:
        facts = json.loads(owner.read_bytes())
        who, hint = f"process {facts['pid']}, since {facts['since']}", f"stop it with: kill -INT {facts['pid']}"
    except (OSError, ValueError, KeyError, TypeError):
        # It was taken a moment ago and isn't signed yet.
        who, hint = "another process", "wait for it to end"
    return WorkspaceBusy(f"a search runs in {folder.parent} already ({who})", f"see `autoresearch status`; {hint}")
