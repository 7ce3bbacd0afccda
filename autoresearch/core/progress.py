"""What a search does at this moment, in a file beside its journal, for those who watch it from another process.

The journal holds what happened; this file holds what passes. It is replaced as a whole, is there while the search runs,
and is not worth a disk's time: nothing is lost with it. A search that was killed leaves it behind, so it names the
process that wrote it.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic as _now
from time import time
from typing import Any

import psutil

from autoresearch.core.errors import AutoresearchError
from autoresearch.core.files import write_atomic
from autoresearch.core.view import Outcome, Relay, View

FILE = "progress.json"
WRITE_SECONDS = 0.5
"""At least between two steps of training that are written."""
SILENT_SECONDS = 3600.0
"""After which a search on another machine, whose processes can't be seen from here, counts as gone."""

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "pid": int,
    "born": (int, float),
    "host": str,
    "title": str,
    "count": int,
    "message": dict,
    "written": (int, float),
}
_OF_A_STEP = ("step", "progress", "loss", "tokens_per_second", "seconds")


@dataclass(frozen=True)
class Progress:
    """A search at one moment."""

    pid: int
    born: float
    """When that process began, in seconds since the epoch: its number may be another one's by now."""
    host: str
    title: str = ""
    """Of the measurement that runs; "" between two of them."""
    count: int = 0
    """Measurements that this search began; another one has another count."""
    message: Mapping[str, Any] = field(default_factory=dict)
    """What the executor told last of that measurement."""
    written: float = 0.0
    """Seconds since the epoch."""

    @property
    def alive(self) -> bool:
        """Whether the search still runs."""
        if self.host != platform.node():
            return time() - self.written < SILENT_SECONDS
        try:
            process = psutil.Process(self.pid)
            # The system tells when a process began to within a second or two.
            return bool(abs(process.create_time() - self.born) < 3 and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return False


def read_progress(folder: Path) -> Progress | None:
    """What the search of a run's folder does; None where none wrote it, or nothing that can be read."""
    try:
        found = json.loads((folder / FILE).read_bytes())
        progress = Progress(**{name: found[name] for name in _TYPES})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    whole = all(isinstance(getattr(progress, name), kind) for name, kind in _TYPES.items())
    if progress.message.get("event") == "progress" if whole else False:
        whole = all(isinstance(progress.message.get(name), (int, float)) for name in _OF_A_STEP)
    return progress if whole else None


@contextmanager
def recorded(view: View, folder: Path) -> Iterator[View]:
    """A view that writes the progress of a search into the run's folder while it runs."""
    recorder = _Recorder(view, folder / FILE)
    try:
        yield recorder
    finally:
        with suppress(OSError):
            (folder / FILE).unlink(missing_ok=True)


class _Recorder(Relay):
    def __init__(self, view: View, path: Path) -> None:
        super().__init__(view)
        self._path = path
        self._born = psutil.Process().create_time()
        self._title, self._count, self._message = "", 0, dict[str, Any]()
        self._next = 0.0
        self._write()

    def begin(self, title: str) -> None:
        super().begin(title)
        self._title, self._count, self._message = title, self._count + 1, {}
        self._write()

    def event(self, message: Mapping[str, Any]) -> None:
        super().event(message)
        training = message.get("event") == "progress"
        if training and _now() < self._next:
            return
        self._next = _now() + WRITE_SECONDS
        self._message = dict(message)
        self._write()

    def decided(self, outcome: Outcome) -> None:
        super().decided(outcome)
        self._title, self._message = "", {}
        self._write()

    def _write(self) -> None:
        progress = Progress(os.getpid(), self._born, platform.node(), self._title, self._count, self._message, time())
        # A full disk stops the journal, and is told there; nobody needs this file to go on.
        with suppress(AutoresearchError, ValueError):
            write_atomic(self._path, json.dumps(asdict(progress), allow_nan=False), durable=False)
