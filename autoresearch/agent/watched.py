"""A program that is run to its end, or killed with all that it started: when it hangs, takes too long, or floods."""

from __future__ import annotations

import os
import selectors
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time

from autoresearch.core.process import MARK, kill_tree, orphans_killed

POLL_SECONDS = 0.05
_CHUNK = 2**16


@dataclass(frozen=True)
class Bounds:
    """When a program is killed."""

    silence_seconds: float
    """Without output and without a change of the watched file."""
    timeout_seconds: float
    output_bytes: int
    """Of output, both streams together; it is kept in memory, and nothing of it on the disk."""


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    code: int | None
    """Exit code, negative for a signal; None where it was killed."""
    kind: str
    """Of what it was killed for: "silence", "timeout", "flood"; "" where it ended by itself."""
    reason: str
    """In words."""
    stdout: str
    stderr: str
    seconds: float


class NotStarted(Exception):
    """There is no such program, or it can't be run."""


def run_watched(
    command: Sequence[str],
    environment: Mapping[str, str],
    stdin: Path,
    watched: Path,
    mark: str,
    bounds: Bounds,
) -> Ended:
    """Run a command in the folder of `watched`, in a session of its own; nothing of it is left when this returns.

    Args:
        environment: all of it.
        stdin: a file that it may read as its standard input.
        watched: a file whose changes are a sign of life.
        mark: in its environment, so that what it started is found, also after this process was killed.

    Raises:
        NotStarted: it can't be started.
    """
    with orphans_killed():
        return _run(command, environment, stdin, watched, mark, bounds)


def _run(
    command: Sequence[str], environment: Mapping[str, str], stdin: Path, watched: Path, mark: str, bounds: Bounds
) -> Ended:
    since, start = time() - 1.0, monotonic()
    try:
        with stdin.open("rb") as given:
            process = subprocess.Popen(
                command,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=watched.parent,
                env={**environment, MARK: mark},
                start_new_session=True,
            )
    except OSError as error:
        raise NotStarted(error.strerror or str(error)) from error
    output = _Output(process, bounds.output_bytes)
    kind = reason = ""
    try:
        alive, seen = monotonic(), _state(watched)
        while process.poll() is None:
            now, state = monotonic(), _state(watched)
            if output.read(POLL_SECONDS) or state != seen:
                alive, seen = now, state
            if output.full:
                kind, reason = "flood", f"it printed more than {bounds.output_bytes / 1e6:g} MB"
            elif now - start > bounds.timeout_seconds:
                kind, reason = "timeout", f"it took longer than {bounds.timeout_seconds:g} s"
            elif now - alive > bounds.silence_seconds:
                kind, reason = "silence", f"it was silent for {bounds.silence_seconds:g} s"
            if kind:
                break
    finally:
        kill_tree(process, mark, since, watched.parent)
        output.finish()
    stdout, stderr = output.texts
    return Ended(None if kind else process.returncode, kind, reason, stdout, stderr, monotonic() - start)


def _state(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


class _Output:
    """Both streams of a process, up to a number of bytes."""

    def __init__(self, process: subprocess.Popen[bytes], limit: int) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._streams = (process.stdout, process.stderr)
        self._left = limit
        self._taken: dict[int, bytearray] = {}
        self._selector = selectors.DefaultSelector()
        for stream in self._streams:
            os.set_blocking(stream.fileno(), False)
            self._taken[stream.fileno()] = bytearray()
            self._selector.register(stream, selectors.EVENT_READ)

    @property
    def full(self) -> bool:
        return self._left <= 0

    @property
    def texts(self) -> list[str]:
        """Standard output and standard error."""
        return [taken.decode("utf-8", "replace") for taken in self._taken.values()]

    def read(self, seconds: float) -> bool:
        """Take what is there, or comes within `seconds`; whether anything came."""
        came = False
        for key, _ in self._selector.select(seconds):
            try:
                chunk = os.read(key.fd, _CHUNK)
            except BlockingIOError:
                continue
            if not chunk:
                self._selector.unregister(key.fileobj)
                continue
            self._taken[key.fd] += chunk[: max(0, self._left)]
            self._left -= len(chunk)
            came = True
        return came

    def finish(self) -> None:
        """Take what is left in the pipes, without waiting for anyone who may still hold them."""
        while not self.full and self.read(0.0):
            pass
        self._selector.close()
        for stream in self._streams:
            stream.close()
