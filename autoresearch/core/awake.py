"""Keep the machine awake while a search runs, and see sleep that happened all the same."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path


def inhibitor() -> Sequence[str]:
    """The command that keeps this machine awake until its standard input ends; empty where there is none.

    caffeinate on macOS, systemd-inhibit on Linux where systemd runs.
    """
    if sys.platform == "darwin" and shutil.which("caffeinate"):
        return ("caffeinate", "-i", "cat")
    if shutil.which("systemd-inhibit") and Path("/run/systemd/system").is_dir():
        return ("systemd-inhibit", "--what=idle:sleep", "--who=autoresearch", "--why=a search runs", "cat")
    return ()


@contextlib.contextmanager
def kept_awake(command: Sequence[str] | None = None) -> Iterator[None]:
    """Hold `inhibitor()`, or another command, while the block runs.

    The command ends with its standard input, so also when this process is killed. That it can't be held, e.g. for want
    of a permission, is no reason not to search.
    """
    command = inhibitor() if command is None else command
    if not command:
        yield
        return
    quiet = subprocess.DEVNULL
    try:
        # In a session of its own, Ctrl-C reaches the search alone.
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        assert holder.stdin is not None
        with contextlib.suppress(OSError):
            holder.stdin.close()
        try:
            holder.wait(timeout=5)
        except subprocess.TimeoutExpired:
            holder.kill()
            holder.wait()


def slept_seconds() -> float:
    """Seconds that this machine has spent asleep since it was started; differences of it count.

    The clock that runs on in sleep minus the one that stands still: CLOCK_BOOTTIME and CLOCK_MONOTONIC on Linux,
    CLOCK_MONOTONIC and CLOCK_UPTIME_RAW on macOS.
    """
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC) - time.clock_gettime(time.CLOCK_UPTIME_RAW)
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
