"""What a candidate may not touch while it trains and is scored: an audit hook set before it is loaded.

A hook can't be removed again, and what it sees is recorded, so that a candidate gains nothing by catching the
exception. It looks at who acts: the innermost frame outside the standard library and NumPy, which act for whoever calls
them. Frameworks may start compilers and read their own files; a candidate may not. What still passes in-process, and
why, is said in docs/threat-model.md.
"""

from __future__ import annotations

import os
import re
import site
import sys
import sysconfig
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import numpy as np

from autoresearch.core.errors import CandidateFailure
from autoresearch.core.originals import originals, replaced

# Never needed for training, whoever asks.
_NEVER = frozenset(
    {
        "socket.connect",
        "socket.sendto",
        "socket.sendmsg",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "socket.gethostbyaddr",
    }
)
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
        "signal.pthread_kill",
        "resource.setrlimit",
        "resource.prlimit",
        "sqlite3.connect",
    }
)
_FAMILIES_NOT_BY_CANDIDATE = ("ctypes.", "socket.")
# Positions of the arguments that must be writable paths.
_CHANGES_FILES = MappingProxyType(
    {
        **dict.fromkeys(("os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.chown", "os.utime"), (0,)),
        **dict.fromkeys(("os.setxattr", "os.removexattr"), (0,)),
        **dict.fromkeys(("os.rename", "os.link"), (0, 1)),
        "os.symlink": (1,),
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
        "compile",
        "exec",
        "code.__new__",
        "function.__new__",
        "object.__setattr__",
        "marshal.loads",
        "pickle.find_class",
    }
)
_FRAME_ATTRIBUTES = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_HARNESS = Path(__file__).resolve().parents[1]
_PATHS = sysconfig.get_paths()
_LIBRARIES = (
    *(_PATHS[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")),
    *(sys.prefix, sys.base_prefix, site.getusersitepackages(), str(_HARNESS)),
    *("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/usr/include", "/opt", "/System", "/Library"),
)
# Data sets are installed like libraries, so that a candidate reads nothing there but code.
_CODE = re.compile(r".*\.(py|pyc|pyd|dylib|so(\.\d+)*)")
_HARMLESS = ("/etc/ld.so.cache", "/usr/share/zoneinfo", "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
# What a framework reads to learn about the machine.
_MACHINE = ("/proc", "/etc", "/dev", "/sys")
# What a framework shares between its processes, and how it talks to its device.
_SHARED = ("/dev/shm", "/dev/nvidia")


class Guard:
    """Watches from `arm` to `disarm`.

    Args:
        scratch: folder of the candidate; it may read and write there, and code that lies there is its own.
        cache: folder for compiled code; frameworks may read and write there, the candidate may not, so that nothing
            is carried from one measurement to the next.
        kernels: folders that frameworks may read besides those of libraries.
        frameworks: top-level packages that may read their own data files when a candidate calls them; so may those that
            are loaded by now, which the candidate did not choose.
        libraries: modules that must stay as they are, besides the harness and what it computes with everywhere.
    """

    def __init__(
        self,
        scratch: Path,
        cache: Path,
        kernels: Iterable[Path] = (),
        frameworks: Iterable[str] = (),
        libraries: frozenset[str] = frozenset(),
    ) -> None:
        # As in the file names of code, and as in resolved paths.
        self._scratch = _both(scratch)
        self._cache = _both(cache)
        self._libraries = tuple(map(os.path.realpath, (*_LIBRARIES, *sys.path)))
        self._harmless = tuple(map(os.path.realpath, _HARMLESS))
        self._machine = (*_MACHINE, *_SHARED, *map(os.path.realpath, kernels), *self._cache)
        self._packages = {*frameworks, *(name.partition(".")[0] for name in sys.modules)}
        self._harness = _both(_HARNESS)
        self._numpy = _both(Path(np.__file__).parent)
        self._stdlib = (*_both(Path(_PATHS["stdlib"])), *_both(Path(_PATHS["platstdlib"])))
        self._site = (*_both(Path(_PATHS["purelib"])), *_both(Path(_PATHS["platlib"])))
        folders = {os.path.realpath(path) for path in (*sys.path, _PATHS["purelib"], _PATHS["platlib"]) if path}
        self._roots = tuple(sorted((folder + os.sep for folder in (*folders, *sys.path)), key=len, reverse=True))
        self._main = threading.get_ident()
        self._armed = False
        self._inside = threading.local()
        self._watched = libraries
        self._originals = originals(libraries)
        self.violation = ""
        sys.addaudithook(self._hook)

    def arm(self) -> None:
        self._armed = True

    def disarm(self) -> None:
        self._armed = False

    def check(self) -> None:
        """Raise what was seen, also where the candidate caught it, and whether the harness is as it was.

        Called after training and while scoring: by then no other thread may run the candidate's code.

        Raises:
            CandidateFailure: "invalid", naming the event, the function that was replaced, or the thread.
        """
        self._inside.hook = True
        try:
            if not self.violation and (name := replaced(self._originals, originals(self._watched))):
                self.violation = f"guard: {name} was replaced"
            if not self.violation and (name := self._thread_of_candidate()):
                self.violation = f"guard: the thread {name} goes on after train has returned"
        finally:
            self._inside.hook = False
        if self.violation:
            raise CandidateFailure("invalid", self.violation)

    def _thread_of_candidate(self) -> str:
        """The name of another thread that runs the candidate's code; "" for none."""
        here, frames = threading.get_ident(), sys._current_frames()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, innermost in frames.items():
            frame: FrameType | None = innermost
            while frame is not None and ident != here:
                if self._is_candidate(frame.f_code.co_filename):
                    return repr(names.get(ident, "without a name"))
                frame = frame.f_back
        return ""

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
        """Why an event is not allowed; "" where it is."""
        if event == "open":
            path, mode, flags = args[:3]
            writing = isinstance(flags, int) and bool(flags & _WRITING)
            writing = writing or (isinstance(mode, str) and bool(set(mode) & set("wax+")))
            return self._writing(path) if writing else self._reading(path)
        if event in _CHANGES_FILES:
            return next(filter(None, map(self._writing, (args[i] for i in _CHANGES_FILES[event]))), "")
        if event in _NEVER:
            return f"{event} is not allowed"
        if (event in _NOT_BY_CANDIDATE or event.startswith(_FAMILIES_NOT_BY_CANDIDATE)) and self._by_candidate():
            return f"{event} is not allowed in a candidate"
        if event in _NOT_DIRECTLY and self._by_candidate(directly=True):
            return f"{event} is not allowed in a candidate"
        if event == "object.__getattr__" and args[1] in _FRAME_ATTRIBUTES and self._by_candidate(directly=True):
            return f"{args[1]} is not allowed in a candidate"
        return ""

    def _writing(self, path: Any) -> str:
        if not isinstance(path, str | bytes | os.PathLike):
            return ""  # a descriptor that is open already
        name = os.path.realpath(os.fsdecode(path))
        if name == os.devnull or self._is_candidate(name):
            return ""
        if (_under(name, self._cache) or name.startswith(_SHARED)) and not self._by_candidate():
            return ""
        return f"writing {name} is not allowed"

    def _reading(self, path: Any) -> str:
        if not isinstance(path, str | bytes | os.PathLike):
            return ""
        name = os.path.realpath(os.fsdecode(path))
        if self._is_candidate(name) or _under(name, self._harmless):
            return ""
        if _under(name, self._libraries) and (_CODE.fullmatch(name) or self._by_framework(self._package(name))):
            return ""
        if _under(name, self._machine) and not self._by_candidate():
            return ""
        return f"reading {name} is not allowed"

    def _is_candidate(self, name: str) -> bool:
        """Whether a file lies in the candidate's folder; that of compiled code may lie below it."""
        return _under(name, self._scratch) and not _under(name, self._cache)

    def _by_framework(self, package: str) -> bool:
        """Whether a framework, not the candidate, acts, and `package`, whose data it reads, is no data set."""
        if package and package not in self._packages and not package.endswith((".dist-info", ".egg-info")):
            return False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if self._is_candidate(name):
                return False
            if not _under(name, self._harness) and not self._is_stdlib(name) and self._package(name) in self._packages:
                return True
            frame = frame.f_back
        return threading.get_ident() != self._main

    def _is_stdlib(self, name: str) -> bool:
        return _under(name, self._stdlib) and not _under(name, self._site)

    def _package(self, name: str) -> str:
        """Top-level package of a file of code; "" where it lies in no folder that modules come from."""
        for root in self._roots:
            if name.startswith(root):
                return name[len(root) :].partition(os.sep)[0].removesuffix(".py")
        return ""

    def _by_candidate(self, directly: bool = False) -> bool:
        """Whether the innermost frame that acts for itself is the candidate's.

        The harness and code without a file, such as the methods of a dataclass, act for whoever calls them; so do the
        standard library and NumPy unless `directly`. Where nobody else is on the stack, the harness calls what the
        candidate gave it.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if self._is_candidate(name):
                return True
            nameless = name.startswith("<") and not (directly and name.startswith("<frozen"))
            helper = nameless or _under(name, self._harness)
            if not directly:
                helper = helper or self._is_stdlib(name) or _under(name, self._numpy)
            if not helper:
                return False
            frame = frame.f_back
        return threading.get_ident() == self._main


def _both(path: Path) -> tuple[str, str]:
    return str(path), os.path.realpath(path)


def _under(name: str, roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(root + os.sep) for root in roots)
