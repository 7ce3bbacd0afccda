"""Folders for one piece of work each: gone after it, also where the process that worked in one was killed.

A folder is locked while it is used, and the system frees the lock with the process. So a folder whose lock is free
belongs to nobody any more, whichever workspace or container made it, and the next start removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from autoresearch.core.process import kill_inside

PREFIX = "autoresearch-scratch-"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder among the system's temporary ones, for this user alone; it is removed afterwards."""
    path, lock = _locked()
    try:
        yield path
    finally:
        _remove(path)
        os.close(lock)


def sweep() -> None:
    """Remove the folders of this user's dead processes, and end what still works in one of them."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: it is in use
                kill_inside(path)
                _remove(path)
            finally:
                os.close(lock)


def _locked() -> tuple[Path, int]:
    """A new folder, and the descriptor that holds its lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        # In the moment before this lock another start may take the folder for a dead one's.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), path.stat()):
                return path, lock
        except (BlockingIOError, FileNotFoundError):
            pass
        except OSError:  # a file system without locks: nobody can sweep there either
            return path, lock
        os.close(lock)


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path, ignore_errors=True)
    except RecursionError:  # of thousands of folders in folders
        subprocess.run(["rm", "-rf", str(path)], check=False, stderr=subprocess.DEVNULL)
