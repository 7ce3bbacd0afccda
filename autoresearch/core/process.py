"""A child process as its parent holds it: environment, pipes, log, memory, and its end with whatever it started."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic as _now
from time import sleep, time
from typing import Any

import psutil

from autoresearch.core import registry
from autoresearch.core.channel import Channel, ChannelBroken
from autoresearch.core.linux import adopt_orphans
from autoresearch.core.sandbox import SANDBOX_PROCESS

TAIL_BYTES = 4096
MARK = "AUTORESEARCH_CHILD"
"""The variable by which a process is found again, see `kill_marked`."""
# Escape sequences: CSI (colours, cursor) and OSC (titles, links); then what is left of the control characters, and
# those that turn the direction of a text, so that it reads as another one.
_CONTROL = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)

# What a framework needs of the user's environment. Everything else, keys above all, stays with the parent.
_ENVIRONMENT = re.compile(
    r"(PATH|LANG|LC_\w+|TZ|USER|LOGNAME|VIRTUAL_ENV|LD_LIBRARY_PATH|DYLD_\w+|PYTHONPATH|PYTHONHOME|PYTHONWARNINGS|CC|CXX"
    r"|HF_HOME|HF_HUB_CACHE|(CUDA|NVIDIA|NCCL|OMP|KMP|MKL|OPENBLAS|VECLIB|TORCH|TORCHINDUCTOR|TRITON|XLA|JAX|LIBTPU|TPU|MLX|METAL"
    r"|PYTORCH)_\w+)"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
# Of Anthropic and OpenAI, GitHub, Hugging Face, Google, AWS.
_KEY = re.compile(
    r"\b(?:sk-[\w-]{16,}|(?:gh[oprsu]_|github_pat_|hf_)\w{20,}|AIza[\w-]{30,}|AKIA[0-9A-Z]{16})", re.ASCII
)


def memory_bytes() -> int:
    """Memory of the machine, or of the control group that this process runs in."""
    total = int(psutil.virtual_memory().total)
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def log_tail(path: Path) -> str:
    """The end of a log: at most TAIL_BYTES of UTF-8, control characters stripped."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            raw = file.read(TAIL_BYTES)
    except OSError:
        return ""
    text = _CONTROL.sub("", raw.decode("utf-8", "replace"))
    return text.encode()[-TAIL_BYTES:].decode("utf-8", "ignore")


def one_line(text: str) -> str:
    """What a child says, fit for a table: it may quote the candidate."""
    line = " ".join(_CONTROL.sub("", text).split())[:500]
    return line.encode("utf-8", "replace").decode()  # half a character of UTF-16 can't be written anywhere


def without_secrets(text: str) -> str:
    """`text` without the values of this process's variables that are named like a key or a password, as they are or
    as JSON writes them, and without what looks like a key of a well-known service."""
    secret = [(value, name) for name, value in os.environ.items() if _SECRET.search(name) and len(value) >= 8]
    for value, name in sorted(secret, key=lambda pair: len(pair[0]), reverse=True):
        for form in (value, json.dumps(value)[1:-1], os.fsencode(value).decode("utf-8", "replace")):
            text = text.replace(form, f"({name})")
    return _KEY.sub("(a key)", text)


def child_environment(backend: str, device: str, scratch: Path, compile_cache: Path) -> dict[str, str]:
    """The whole environment of a child."""
    kept = {k: v for k, v in os.environ.items() if _ENVIRONMENT.fullmatch(k) and not _SECRET.search(k)}
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": compile_cache / "inductor",
        "TRITON_CACHE_DIR": compile_cache / "triton",
        "JAX_COMPILATION_CACHE_DIR": compile_cache / "jax",
        "XDG_CACHE_HOME": compile_cache,
    }
    return {
        **kept,
        **{name: str(path) for name, path in caches.items()},
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "HF_HOME": os.environ.get("HF_HOME", str(Path.home() / ".cache" / "huggingface")),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        **registry.facts(backend).environment(device),
    }


class ChildProcess:
    """`autoresearch.core.child` in a session of its own.

    Args:
        environment: all of it.
        folder: its current directory.
        log: its standard output and error are appended here.
        mark: in the environment of the child and of all that it starts, see `kill_marked`.
        wrap: turns its command into one that starts it in a sandbox.
    """

    def __init__(
        self,
        environment: dict[str, str],
        folder: Path,
        log: Path,
        mark: str,
        wrap: Callable[[list[str]], list[str]] = list,
    ) -> None:
        self._mark, self._folder = mark, folder
        self._inner: psutil.Process | None = None
        self._since = time() - 1.0
        to_child, from_parent = os.pipe()
        to_parent, from_child = os.pipe()
        # Kept open: its size is known even where the candidate removes the file.
        self._log = log.open("ab")
        self._log_start = self._log.seek(0, os.SEEK_END)
        try:
            self.process = subprocess.Popen(
                wrap([sys.executable, "-P", "-m", "autoresearch.core.child", str(to_child), str(from_child)]),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                cwd=folder,
                env={**environment, MARK: mark},
                pass_fds=(to_child, from_child),
                start_new_session=True,
            )
        except BaseException:
            os.close(from_parent)
            os.close(to_parent)
            self._log.close()
            raise
        finally:
            os.close(to_child)
            os.close(from_child)
        self._seal = secrets.token_hex(16)
        self._channel = Channel(to_parent, from_parent, self._seal)
        self.inbox: queue.Queue[tuple[float, dict[str, Any] | None]] = queue.Queue()
        """Stamped messages of the child; None ends them."""
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, request: dict[str, Any]) -> None:
        """Send the one request that the child answers. A child that is gone already says so by its silence."""
        with contextlib.suppress(OSError):
            self._channel.send({**request, "seal": self._seal})

    def send(self, arrays: dict[str, Any]) -> None:
        """Send NumPy arrays by name, while the parent goes on to watch: a child that doesn't read blocks nobody."""

        def send() -> None:
            with contextlib.suppress(OSError, ValueError):
                self._channel.send({}, arrays)

        threading.Thread(target=send, daemon=True).start()

    def _listen(self) -> None:
        message: dict[str, Any] | None
        try:
            while True:
                message, _ = self._channel.receive()
                self.inbox.put((_now(), message))
        except ChannelBroken as error:
            reason = f"the result pipe was tampered with: {error}"
            self.inbox.put((_now(), {"event": "failure", "status": "invalid", "reason": reason}))
        except (EOFError, OSError, ValueError):
            self.inbox.put((_now(), None))
        finally:
            self._channel.close_receiving()

    def log_bytes(self) -> int:
        """Bytes that were printed by now."""
        return os.fstat(self._log.fileno()).st_size - self._log_start

    def _child(self) -> psutil.Process:
        """The child itself; a sandbox puts processes of its own before it.

        Raises:
            psutil.Error: it is gone.
        """
        if self._inner is None:
            process = psutil.Process(self.process.pid)
            while process.name() == SANDBOX_PROCESS and (children := process.children()):
                process = children[0]
            if process.name() == SANDBOX_PROCESS:
                return process
            self._inner = process
        return self._inner

    def memory(self, tree: bool) -> int:
        """Resident bytes of the process, or of its whole tree, memory-mapped files not counted."""
        total = 0
        with contextlib.suppress(psutil.Error):
            root = self._child()
            # Finding the children reads the whole process table.
            for process in (root, *(root.children(recursive=True) if tree else ())):
                with contextlib.suppress(psutil.Error, OSError):
                    total += _own_bytes(process)
        return total

    def stopped(self) -> bool:
        """Whether a signal or a debugger holds the process at this moment."""
        with contextlib.suppress(psutil.Error):
            return self._child().status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        return False

    def dump_stack(self) -> None:
        """Ask for a traceback in the log, of a child about to be killed."""
        with contextlib.suppress(psutil.Error):
            self._child().send_signal(signal.SIGUSR1)
            sleep(0.2)

    def kill(self) -> None:
        """End the child and every process that it started, in whatever session and environment that is by now."""
        kill_tree(self.process, self._mark, self._since, self._folder)
        self._channel.close_sending()
        self._log.close()


def _own_bytes(process: psutil.Process) -> int:
    if sys.platform == "linux":
        status = Path(f"/proc/{process.pid}/status").read_text()
        return 1024 * sum(map(int, re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+)", status, re.MULTILINE)))
    return int(process.memory_info().rss)


def kill_tree(process: subprocess.Popen[bytes], mark: str, since: float, folder: Path) -> None:
    """End a process that leads its own session, and all that it started; see `kill_marked` and `kill_inside`."""
    if process.poll() is None:
        _kill_descendants(process.pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kill_marked(mark, since)
    kill_inside(folder, since)


def _kill_descendants(pid: int) -> None:
    """Kill all that a live process started; on Linux, where it adopts its orphans, none can escape."""
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        root.suspend()
        _kill_all(lambda: root.children(recursive=True))


def kill_marked(mark: str, since: float = 0.0) -> None:
    """Kill the processes whose environment carries `mark` and that started after `since` (seconds of the epoch)."""
    _kill_all(lambda: _found(lambda process: process.environ().get(MARK) == mark, since))


def kill_inside(folder: Path, since: float = 0.0) -> None:
    """Kill the processes whose current directory is `folder` or in it, whatever session and environment they have.

    Not those of a terminal: somebody who looks into the folder.
    """

    def inside(process: psutil.Process) -> bool:
        return Path(process.cwd().removesuffix(" (deleted)")).is_relative_to(folder) and process.terminal() is None

    _kill_all(lambda: _found(inside, since))


@contextlib.contextmanager
def orphans_killed() -> Iterator[None]:
    """On Linux, kill at the end what was started in this block and lives on, however it has hidden itself.

    Meanwhile this process adopts what its children leave behind. No other thread may start a process in that time.
    """
    if sys.platform != "linux":
        yield
        return
    own = psutil.Process()
    before = {child.pid for child in own.children()}
    adopt_orphans(True)
    try:
        yield
    finally:
        _kill_all(lambda: [p for c in own.children() if c.pid not in before for p in (c, *c.children(recursive=True))])
        adopt_orphans(False)
        for child in own.children():
            if child.pid not in before:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, os.WNOHANG)


def _found(fits: Callable[[psutil.Process], bool], since: float) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.create_time() >= since and fits(process):
                found.append(process)
    return found


def _kill_all(find: Callable[[], list[psutil.Process]]) -> None:
    """Kill what is found until nothing is: a killed process takes a moment to end, and may have started another."""
    for _ in range(100):
        alive = False
        for process in find():
            with contextlib.suppress(psutil.Error):
                alive = alive or process.status() != psutil.STATUS_ZOMBIE
                process.kill()
        if not alive:
            return
        sleep(0.01)
