"""What a candidate may not touch while it trains and is scored: an audit hook set before it is loaded.

A hook can't be removed again, and what it sees is recorded, so that a candidate gains nothing by catching the
exception. It looks at who acts: the innermost frame outside the standard library. Frameworks may start
compilers and read their own files; a candidate may not. What still passes in-process, and why, is said in
docs/threat-model.md.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from autoresearch.core.errors import CandidateFailure

# Never needed for training, whoever asks.
_NEVER = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo"})
# Frameworks start compilers and load libraries; a candidate does not, not through the standard library either.
_NOT_BY_CANDIDATE = frozenset(
    {
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "pty.spawn",
        "os.kill",
        "os.killpg",
        "os.putenv",
        "os.unsetenv",
        "socket.__new__",
        "ctypes.dlopen",
        "ctypes.dlsym",
        "ctypes.dlsym/handle",
        "ctypes.call_function",
        "ctypes.cdata",
        "ctypes.string_at",
    }
)
# The standard library does these on anybody's behalf (named tuples, warnings, imports), so only the call itself counts.
_NOT_DIRECTLY = frozenset(
    {
        "gc.get_objects",
        "gc.get_referrers",
        "gc.get_referents",
        "sys._getframe",
        "sys._current_frames",
        "sys.settrace",
        "sys.setprofile",
        "sys.addaudithook",
        "code.__new__",
        "marshal.loads",
        "pickle.find_class",
    }
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_HARNESS = str(Path(__file__).resolve().parent.parent)


class Guard:
    """Watches from `arm` to `disarm`.

    Args:
        candidate: path of the candidate's file; frames of it are the candidate.
        writable: folders that may be written and read: the scratch directory, the compile cache.
        readable: further folders that may be read; Python's own and the system's libraries are always.
    """

    def __init__(self, candidate: Path, writable: Iterable[Path], readable: Iterable[Path] = ()) -> None:
        self._candidate = str(candidate)
        self._writable = tuple(_real(path) for path in writable)
        paths = sysconfig.get_paths()
        own = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
        system = [
            "/usr/lib",
            "/usr/lib64",
            "/lib",
            "/lib64",
            "/usr/local/lib",
            "/usr/include",
            "/opt",
            "/System",
            "/Library",
        ]
        devices = ["/dev", "/sys", "/etc/ld.so.cache", "/usr/share/zoneinfo"]
        roots = [*own, sys.prefix, sys.base_prefix, *system, *devices, _HARNESS, *map(str, readable)]
        self._readable = tuple(_real(Path(path)) for path in roots) + self._writable
        # What a framework reads to learn about the machine.
        self._machine = ("/proc", "/etc")
        self._stdlib = tuple(_real(Path(paths[key])) for key in ("stdlib", "platstdlib"))
        self._site = tuple(_real(Path(paths[key])) for key in ("purelib", "platlib"))
        self._armed = False
        self._inside = threading.local()
        self.violation = ""
        sys.addaudithook(self._hook)

    def arm(self) -> None:
        self._armed = True

    def disarm(self) -> None:
        self._armed = False

    def check(self) -> None:
        """Raise what was seen, also where the candidate caught it.

        Raises:
            CandidateFailure: "invalid", naming the event.
        """
        if self.violation:
            raise CandidateFailure("invalid", self.violation)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        # What the hook itself does raises events too.
        if not self._armed or getattr(self._inside, "hook", False):
            return
        self._inside.hook = True
        try:
            reason = self._judge(event, args)
        finally:
            self._inside.hook = False
        if reason:
            self.violation = self.violation or f"guard: {reason}"
            raise CandidateFailure("invalid", f"guard: {reason}")

    def _judge(self, event: str, args: tuple[Any, ...]) -> str:
        if event == "open":
            return self._opening(*args[:3])
        if event in _NEVER:
            return f"{event} is not allowed"
        if event in _NOT_BY_CANDIDATE and self._by_candidate():
            return f"{event} is not allowed in a candidate"
        if event in _NOT_DIRECTLY and sys._getframe(2).f_code.co_filename == self._candidate:
            return f"{event} is not allowed in a candidate"
        return ""

    def _opening(self, path: Any, mode: Any, flags: Any) -> str:
        """Why a file may not be opened; "" where it may."""
        if not isinstance(path, str | bytes | os.PathLike):
            return ""  # a descriptor that is open already
        name = _real(Path(os.fsdecode(path)))
        writing = bool(isinstance(flags, int) and flags & _WRITING) or (
            isinstance(mode, str) and set(mode) & set("wax+")
        )
        if writing:
            if (
                name == "/dev/null"
                or name.startswith(("/dev/shm/", "/dev/nvidia"))
                or self._under(name, self._writable)
            ):
                return ""
            return f"writing {name} is not allowed"
        if self._under(name, self._readable) or (self._under(name, self._machine) and not self._by_candidate()):
            return ""
        return f"reading {name} is not allowed"

    @staticmethod
    def _under(name: str, roots: tuple[str, ...]) -> bool:
        return any(name == root or name.startswith(root.rstrip(os.sep) + os.sep) for root in roots)

    def _by_candidate(self) -> bool:
        """Whether the innermost frame outside the standard library is the candidate's."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if name == self._candidate:
                return True
            stdlib = name.startswith("<frozen") or (
                self._under(name, self._stdlib) and not self._under(name, self._site)
            )
            if not stdlib and name != __file__:
                return False
            frame = frame.f_back
        return False


def _real(path: Path) -> str:
    return os.path.realpath(path)
