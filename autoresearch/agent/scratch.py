"""The folder in which a coding agent works: outside the workspace, for one call, and what came of its files."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autoresearch.core.candidate import MAX_BYTES
from autoresearch.core.errors import UsageError
from autoresearch.core.scratch import scratch_folder
from autoresearch.core.workspace import TRAIN

LEFT_ALONE = frozenset({".git", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"})
"""Folders that tools make on their own; whatever is in them is neither looked at nor taken over."""
DEEPEST = 32
"""Folders in folders that are looked into."""
_STRAY = ("CLAUDECODE", "PWD", "OLDPWD")  # claude refuses to start inside of itself
_STRAY_PREFIXES = ("AUTORESEARCH_", "GIT_")


@dataclass(frozen=True)
class Scratch:
    """The folder of one call, and what was in each of its files at first."""

    folder: Path
    files: dict[str, bytes]
    free: Collection[str] = ()
    """Names of files besides train.py that the command may write."""

    @property
    def train(self) -> Path:
        return self.folder / TRAIN

    def strays(self) -> list[str]:
        """Files that may not be changed and were, or were made or removed, by name."""
        found = {str(path.relative_to(self.folder)): path for path in _files(self.folder)}
        changed = [name for name, path in found.items() if name != TRAIN and not self._is_same(name, path)]
        return sorted(changed + [name for name in self.files if name not in (*found, TRAIN)])

    def source(self) -> tuple[str, str]:
        """The text of train.py as it is now, and what is wrong with it."""
        path = self.train
        if path.is_symlink() or not path.is_file():
            return "", f"{TRAIN} is no plain file any more"
        if (size := path.stat().st_size) > MAX_BYTES:
            return "", f"{TRAIN} has {size} bytes; at most {MAX_BYTES} are allowed"
        try:
            return path.read_bytes().decode(), ""
        except UnicodeDecodeError as error:
            return "", f"{TRAIN} is not UTF-8 text: byte {error.start}"
        except OSError as error:
            return "", f"{TRAIN} can't be read: {error.strerror}"

    def _is_same(self, name: str, path: Path) -> bool:
        if path.is_symlink() or not path.is_file():
            return False
        if name in self.free:
            return True
        before = self.files.get(name)
        try:
            # The size first: what was written there may be large.
            return before is not None and path.stat().st_size == len(before) and path.read_bytes() == before
        except OSError:
            return False


@contextmanager
def scratch_of(files: Mapping[str, str], free: Collection[str], hidden: Path | None) -> Iterator[Scratch]:
    """A folder with these files, removed afterwards.

    Args:
        files: texts by name, train.py among them.
        free: see `Scratch`.
        hidden: a folder in which it must not lie: the workspace.

    Raises:
        UsageError: the system's folder for temporary files lies in the workspace.
    """
    with scratch_folder() as folder:
        if hidden is not None and folder.is_relative_to(hidden.resolve()):
            raise UsageError(f"the folder for temporary files, {folder.parent}, lies in the workspace", "set TMPDIR")
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8", newline="")
        yield Scratch(folder, {name: (folder / name).read_bytes() for name in files}, free)


def environment(folder: Path, hidden: Path | None) -> dict[str, str]:
    """The user's variables, without what leads to `hidden`, for a command that works in `folder`."""
    paths = [] if hidden is None else [re.escape(str(path)) for path in (hidden.absolute(), hidden.resolve())]
    leads_there = re.compile(f"(?:{'|'.join(paths)})(?![^/:])" if paths else r"(?!)")
    programs = [entry for entry in os.environ.get("PATH", "").split(os.pathsep) if not leads_there.search(entry)]
    kept = {
        name: value
        for name, value in {**os.environ, "PATH": os.pathsep.join(programs)}.items()
        if name not in _STRAY and not name.startswith(_STRAY_PREFIXES)
        if name == "HOME" or not leads_there.search(value)
    }
    # No repository above the folder is taken for that of the folder.
    return {**kept, "PWD": str(folder), "GIT_CEILING_DIRECTORIES": str(folder.parent)}


def _files(folder: Path) -> Iterator[Path]:
    """All files, links and other things below a folder, not into links; a folder that can't be looked into itself."""
    below = [(folder, 0)]
    while below:
        place, depth = below.pop()
        try:
            if depth > DEEPEST:
                raise OSError("too deep")
            found = list(place.iterdir())
        except OSError:
            found = []
            yield place  # files may hide in it
        for path in found:
            if not path.is_dir() or path.is_symlink():
                yield path
            elif path.name not in LEFT_ALONE:
                below.append((path, depth + 1))
