"""What Linux offers for the end of a process and of all that it started; elsewhere there is none of it."""

from __future__ import annotations

import ctypes
import signal

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36


def die_with_parent() -> None:
    """This process is killed when its parent ends, however that is."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def adopt_orphans(on: bool) -> None:
    """Whether this process becomes the parent of descendants that lose theirs, instead of the system's first one."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)
