"""An optional prison of the operating system around the child: bubblewrap on Linux, sandbox-exec on macOS.

The audit hook of core/guard.py sees Python; what native code does, only the system can refuse. In the sandbox there is
no network, nothing can be written but the scratch directory and the run's compile cache, and what a measurement does
not need can't be seen: the journal, other caches, the validation rows, the user's home. Devices are passed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autoresearch.core.errors import BackendUnavailable, UsageError, did_you_mean
from autoresearch.core.harness import PACKAGE

GATE = "sandbox"
"""Its name among the gates of a record."""
SETTINGS = ("auto", "on", "off")
SANDBOX_PROCESS = "bwrap"
"""Name of the processes that bubblewrap itself consists of."""
_TRIAL_SECONDS = 20.0


@dataclass(frozen=True)
class Places:
    """What a child may reach; of two that hold each other, the inner one decides."""

    scratch: Path
    """Read and write."""
    cache: Path
    """Read and write."""
    readable: tuple[Path, ...] = ()
    """Files and folders."""
    private: tuple[Path, ...] = ()
    """Folders that look empty."""


class Sandbox(Protocol):
    """A way to start a command."""

    @property
    def name(self) -> str:
        """For people, e.g. "bubblewrap"."""

    @property
    def shell_codes(self) -> bool:
        """Whether it ends with the code 128 + n where a signal n ended the command, as a shell does."""

    def command(self, command: Sequence[str], places: Places) -> list[str]:
        """The command that starts `command` in the sandbox; descriptors and environment are passed on."""


@dataclass(frozen=True)
class Finding:
    """What sandbox this machine has."""

    sandbox: Sandbox | None
    reason: str
    """Why it is used, or why there is none."""
    hint: str = ""
    """What to install, or to allow."""


# ---------------------------------------------------------------------------------------------------------------------
# Linux

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/gnu/store", "/sys"),
    *("/run/opengl-driver", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"),
    *("/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/OpenCL", "/etc/vulkan"),
)
_DEVICES = ("nvidia*", "dri", "kfd", "accel*", "vfio", "dxg")
_OWN_PROCESSES = ("--unshare-all", "--proc", "/proc")
_SHARED_PROCESSES = (
    *("--unshare-user-try", "--unshare-ipc", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
    *("--ro-bind", "/proc", "/proc"),
)


@dataclass(frozen=True)
class Bubblewrap:
    """The program `bwrap` (containers/bubblewrap): namespaces without privileges.

    Args:
        program: its path.
        own_processes: with a process namespace. Containers often refuse the `/proc` that one needs.
    """

    program: str
    own_processes: bool = True
    name: str = "bubblewrap"
    shell_codes: bool = True

    def command(self, command: Sequence[str], places: Places) -> list[str]:
        namespaces = _OWN_PROCESSES if self.own_processes else _SHARED_PROCESSES
        options = [*namespaces, "--die-with-parent", "--cap-drop", "ALL", "--dev", "/dev"]
        for device in sorted(str(path) for pattern in _DEVICES for path in Path("/dev").glob(pattern)):
            options += ["--dev-bind", device, device]
        hidden = [path for path in _spellings([*places.private, Path.home()]) if Path(path).is_dir()]
        mounts = dict.fromkeys(["/tmp", *hidden], "--tmpfs")
        mounts |= dict.fromkeys([*_SYSTEM, *_spellings(places.readable)], "--ro-bind-try")
        mounts |= dict.fromkeys(_spellings([places.scratch, places.cache]), "--bind")
        # The inner one of two last, so that it lies over the outer one; left out where that is the same already.
        done: dict[str, str] = {}
        for path, kind in sorted(mounts.items(), key=lambda mount: mount[0].count("/")):
            around = [done[outer] for outer in _parents(path) if outer in done]
            if around[:1] != [kind] or kind == "--tmpfs":
                done[path] = kind
                options += [kind, path] if kind == "--tmpfs" else [kind, path, path]
        for path in ("/", *hidden):
            options += ["--remount-ro", path]
        return [self.program, *options, "--chdir", str(places.scratch), "--", *command]


def _spellings(paths: Iterable[Path]) -> Iterator[str]:
    """Each path as it is written, and with its links resolved."""
    for path in paths:
        yield from dict.fromkeys((str(path.absolute()), str(path.resolve())))


def _parents(path: str) -> Iterator[str]:
    """The folders around a path, the nearest first."""
    yield from map(str, Path(path).parents)


# ---------------------------------------------------------------------------------------------------------------------
# macOS

_HIDDEN = ("/Users", "/Volumes", "/private/tmp", "/private/var/tmp", "/private/var/folders", "/private/var/root")
# Metal keeps the kernels that it compiles there.
_METAL_CACHE = r"^/private/var/folders/[^/]+/[^/]+/C/.*metal"


@dataclass(frozen=True)
class SandboxExec:
    """The program `sandbox-exec` of macOS with a profile in its own language, where the last rule that fits decides."""

    program: str
    name: str = "sandbox-exec"
    shell_codes: bool = False

    def command(self, command: Sequence[str], places: Places) -> list[str]:
        return [self.program, "-p", self.profile(places), *command]

    def profile(self, places: Places) -> str:
        """Everything is allowed but the network, other processes, and files beyond `places`."""
        private = [*_HIDDEN, *_spellings(places.private)]
        own = list(_spellings([places.scratch, places.cache]))
        metal = f'(regex #"{_METAL_CACHE}")'
        # The outer one of two first, so that the inner one decides.
        reading = [(path, "deny") for path in private] + [(path, "allow") for path in _spellings(places.readable)]
        rules = [
            f"({verdict} file-read* {_subpath(path)})"
            for path, verdict in sorted(dict.fromkeys(reading), key=lambda rule: rule[0].count("/"))
        ]
        return "\n".join(
            [
                "(version 1)",
                "(allow default)",
                "(deny network*)",
                "(deny signal)",
                "(allow signal (target same-sandbox))",
                "(deny process-info*)",
                "(allow process-info* (target same-sandbox))",
                "(deny file-write*)",
                *rules,
                "(allow file-read-metadata)",
                f"(allow file-read* file-write* {' '.join(map(_subpath, own))} {metal})",
                '(allow file-write* (literal "/dev/null") (literal "/dev/dtracehelper"))',
                "",
            ]
        )


def _subpath(path: str) -> str:
    return f"(subpath {json.dumps(path, ensure_ascii=False)})"


# ---------------------------------------------------------------------------------------------------------------------
# Which one


def find() -> Finding:
    """The sandbox of this machine, by really starting a command in it."""
    if sys.platform == "darwin":
        program = shutil.which("sandbox-exec", path="/usr/bin")
        return _tried([SandboxExec(program)], "") if program else Finding(None, "/usr/bin/sandbox-exec is not there")
    program = shutil.which(SANDBOX_PROCESS)
    if program is None:
        return Finding(None, "bubblewrap is not installed", "apt install bubblewrap, or dnf install bubblewrap")
    return _tried(
        [Bubblewrap(program), Bubblewrap(program, own_processes=False)],
        "allow unprivileged user namespaces: sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), "
        "kernel.unprivileged_userns_clone=1 (Debian); in a container, its security options",
    )


def _tried(sandboxes: Sequence[Sandbox], hint: str) -> Finding:
    refusal = ""
    with tempfile.TemporaryDirectory(prefix="autoresearch-") as name:
        places = Places(Path(name), Path(name))
        for sandbox in sandboxes:
            try:
                done = subprocess.run(
                    sandbox.command(["true"], places),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=_TRIAL_SECONDS,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                refusal = str(error)
                continue
            if done.returncode == 0:
                shared = isinstance(sandbox, Bubblewrap) and not sandbox.own_processes
                limits = ", which sees the machine's processes" if shared else ""
                return Finding(sandbox, f"{sandbox.name}{limits}; a command was started in it")
            refusal = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
    return Finding(None, f"{sandboxes[0].name} can't start anything here: {refusal[:300]}", hint)


def check_setting(setting: str) -> None:
    """Whether `setting` is one of SETTINGS.

    Raises:
        UsageError: it is not; the hint names the nearest.
    """
    if setting not in SETTINGS:
        raise UsageError(f"sandbox must be auto, on or off, received {setting!r}", did_you_mean(setting, SETTINGS))


def choose(setting: str) -> Finding:
    """The sandbox to use.

    Args:
        setting: "off" uses none, "auto" one that works here, "on" insists on it.

    Raises:
        UsageError: another setting.
        BackendUnavailable: "on", and there is none; the hint says what to install.
    """
    check_setting(setting)
    if setting == "off":
        return Finding(None, "switched off")
    found = find()
    if setting == "on" and found.sandbox is None:
        raise BackendUnavailable(
            f"sandbox = on, but {found.reason}", found.hint or "sandbox = auto goes on without one"
        )
    return found


# ---------------------------------------------------------------------------------------------------------------------
# What a measurement needs


def kernel_folders(environment: Mapping[str, str]) -> list[Path]:
    """Kernels that were fetched from a hub. Its data sets, in the folders beside them, stay closed."""
    hub = Path(environment.get("HF_HUB_CACHE", Path(environment.get("HF_HOME", "")) / "hub"))
    return [*hub.glob("models--*"), *hub.glob("kernels--*")]


def code_folders(environment: Mapping[str, str]) -> list[Path]:
    """Python, its packages, the harness, and the folders of libraries and toolkits that `environment` names."""
    named = ":".join(environment.get(name, "") for name in ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"))
    python = (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    found = dict.fromkeys(map(Path, (*python, *sys.path, *named.split(":"))))
    return [PACKAGE, *(path for path in found if path.is_absolute())]
