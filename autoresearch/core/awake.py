"""Keep the machine awake while a search runs, and see where a measurement was interrupted all the same."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic as _now

SLEEP_SECONDS = 1.0
"""More sleep of the machine within a measurement makes its score suspect."""
PAUSE_SECONDS = 0.5
"""So does a longer pause of the process that watches it, or any of the process that trains."""


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


class Interruptions:
    """What stopped a measurement for a while, none of it the candidate's doing.

    A measurement that was interrupted is never a clean one, and nothing is added to any of its limits: a candidate that
    had itself stopped would gain nothing.
    """

    def __init__(self) -> None:
        self._slept = slept_seconds()
        self._due: float | None = None
        self._looked: float | None = None
        self._paused = 0.0
        self._stopped = 0.0

    def turn(self, expected: float) -> None:
        """Call at each turn of the loop that watches: where it comes much later than expected, the parent was paused.

        It was stopped by a signal or a debugger, or together with everything else: a frozen control group, a virtual
        machine that is moved.

        Args:
            expected: most seconds from this call to the next.
        """
        now = _now()
        if self._due is not None and now - self._due > PAUSE_SECONDS:
            self._paused += now - self._due
        self._due = now + expected

    def look(self, stopped: bool) -> None:
        """Call now and then: whether the child is stopped by a signal or a debugger at this moment."""
        now = _now()
        if stopped and self._looked is not None:
            self._stopped += now - self._looked
        self._looked = now

    def __str__(self) -> str:
        """What happened, for the reason of a suspect score; "" where nothing did."""
        slept = slept_seconds() - self._slept
        seen = {
            "the machine slept": slept if slept > SLEEP_SECONDS else 0.0,
            "the search was paused": self._paused,
            "the training process was stopped": self._stopped,
        }
        return "; ".join(f"{what} for {seconds:.1f} s" for what, seconds in seen.items() if seconds)
