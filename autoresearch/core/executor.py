"""The parent's side of a measurement: start the child, watch its limits, kill its whole process tree.

Candidates run in a session of their own, with an allow-listed environment that holds no key, in a scratch directory
that is removed afterwards.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic as _now
from typing import Any

from numpy.typing import NDArray

from autoresearch.core import errors
from autoresearch.core.awake import Interruptions
from autoresearch.core.clock import TOLERANCE
from autoresearch.core.contract import DeviceInfo, Result
from autoresearch.core.dataset import Dataset
from autoresearch.core.errors import AutoresearchError, Failure
from autoresearch.core.harness import harness_hash
from autoresearch.core.process import ChildProcess, child_environment, log_tail, memory_bytes, one_line
from autoresearch.core.sandbox import GATE, Places, Sandbox, code_folders, kernel_folders
from autoresearch.core.scratch import scratch_folder
from autoresearch.core.task import Limits, Task

MAX_ROWS = 2**16
LOG_BYTES = 64 * 2**20
GRACE_SECONDS = 10.0
"""After the budget and its tolerance; a child that doesn't stop its clock by then hangs."""
LATENCY_SECONDS = 0.5
"""Of a message, on a busy machine."""
DESCRIBE_SECONDS = 300.0
_POLL_SECONDS = 0.1

OnEvent = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Request:
    """One measurement to make; plain data, so that it can be sent elsewhere."""

    source: str
    source_hash: str
    device: DeviceInfo
    """From `describe`."""
    task: Task
    limits: Limits
    seed: int
    comparability_key: str
    mark: str
    """In the environment of every process of this measurement, so that none is left behind, whatever happens."""
    held_out: Mapping[str, NDArray[Any]] | None = None
    """Rows (N, T + 1) by name that are scored too, for `Measurement.audit`; None is a part of the test split."""


@dataclass(frozen=True)
class Measurement:
    """A result, and apart from it what no proposer may see."""

    result: Result
    audit: Mapping[str, float]
    """Of a measurement that went well, for each held-out set of rows: test_bpb, test_bytes, test_tokens."""


class LocalExecutor:
    """Measures on this machine.

    Args:
        folder: of the run, where compiled code is kept for its next measurement; None keeps none.
        sandbox: in which children are started; None starts them outside any.
    """

    def __init__(self, folder: Path | None = None, sandbox: Sandbox | None = None) -> None:
        self._folder = folder
        self._sandbox = sandbox

    def describe(self, backend: str, device: str, budget_seconds: float | None = None) -> DeviceInfo:
        """Ask a child what `backend` finds on this machine.

        Raises:
            BackendUnavailable: the framework or the device is not here.
            AutoresearchError: the probe crashed or hung; the hint holds the end of its output.
        """
        with scratch_folder() as scratch:
            log = scratch / "describe.log"
            environment = child_environment(backend, device, scratch, self._caches(scratch))
            child = ChildProcess(environment, scratch, log, uuid.uuid4().hex, self._wrap(environment, scratch))
            try:
                child.ask({"do": "describe", "backend": backend, "device": device, "budget": budget_seconds})
                _, message = child.inbox.get(timeout=DESCRIBE_SECONDS)
            except queue.Empty:
                message = None
            finally:
                child.kill()
            if message is None or message["event"] not in ("device", "error"):
                raise AutoresearchError(f"backend {backend!r} could not describe this machine", log_tail(log)[-600:])
        if message["event"] == "error":
            raise _error(message)
        message.pop("event")
        return DeviceInfo(**message)

    def measure(self, request: Request, dataset: Dataset, log: Path, on_event: OnEvent = lambda _: None) -> Measurement:
        """Train and score one candidate.

        A candidate that runs out of memory before its clock starts is started again with half the rows in a
        micro-batch; it keeps its total batch by accumulating more of them.

        Args:
            request: what to measure.
            dataset: opened and verified.
            log: what the child prints is appended here.
            on_event: told of "started", "clock_start", "progress", "clock_stop", "halved"; `seconds` is the time since
                the clock started.

        Raises:
            AutoresearchError: the machine failed, not the candidate.
        """
        max_rows = MAX_ROWS
        while True:
            with scratch_folder() as scratch:
                caches = self._caches(scratch)
                environment = child_environment(request.device.backend, request.device.platform, scratch, caches)
                wrap = self._wrap(environment, scratch, dataset)
                attempt = _Attempt(request, dataset, log, on_event, scratch, max_rows, self._sandbox)
                measured = attempt.run(environment, caches, wrap)
            if measured.result.status == "out_of_memory" and not attempt.clock_started and attempt.rows > 1:
                max_rows = attempt.rows // 2
                on_event({"event": "halved", "max_rows": max_rows, "reason": measured.result.reason})
                continue
            return measured

    def _caches(self, scratch: Path) -> Path:
        path = (self._folder or scratch) / "compile"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _wrap(
        self, environment: Mapping[str, str], scratch: Path, dataset: Dataset | None = None
    ) -> Callable[[list[str]], list[str]]:
        """What puts a command into the sandbox, with all that a measurement needs and nothing of other ones."""
        if self._sandbox is None:
            return list
        readable = [*code_folders(environment), *kernel_folders(environment)]
        private = [self._folder.parent] if self._folder else []
        if dataset is not None:
            readable += dataset.training_files()
            private.append(dataset.path.parent)
        places = Places(scratch, self._caches(scratch), tuple(readable), tuple(private))
        return partial(self._sandbox.command, places=places)


class _Attempt:
    """One child from its start to its end."""

    def __init__(
        self,
        request: Request,
        dataset: Dataset,
        log: Path,
        on_event: OnEvent,
        scratch: Path,
        max_rows: int,
        sandbox: Sandbox | None,
    ) -> None:
        self._request = request
        self._dataset = dataset
        self._log = log
        self._on_event = on_event
        self._scratch = scratch
        self._max_rows = max_rows
        self._sandbox = sandbox
        self._memory_limit = int(request.limits.memory_fraction * memory_bytes())
        self._begin = _now()
        self._interruptions = Interruptions()
        self._clock: list[float] = []
        """Stamps of the start and the end of the clock, as the parent saw them."""
        self._next_check = 0.0
        self._checks = 0
        self.rows = 0
        """Rows that the candidate last asked for."""

    @property
    def clock_started(self) -> bool:
        return bool(self._clock)

    def run(
        self, environment: dict[str, str], compile_cache: Path, wrap: Callable[[list[str]], list[str]]
    ) -> Measurement:
        candidate = self._scratch / "train.py"
        candidate.write_bytes(self._request.source.encode())
        self._log.parent.mkdir(parents=True, exist_ok=True)
        child = ChildProcess(environment, self._scratch, self._log, self._request.mark, wrap)
        try:
            child.ask(
                {
                    "do": "measure",
                    "device": asdict(self._request.device),
                    "task": asdict(self._request.task),
                    "dataset": str(self._dataset.path),
                    "candidate": str(candidate),
                    "cache": str(compile_cache),
                    "seed": self._request.seed,
                    "max_rows": self._max_rows,
                    "probe_seconds": self._request.limits.probe_seconds,
                }
            )
            self._on_event({"event": "started", "pid": child.process.pid})
            message = self._watch(child)
        finally:
            child.kill()
        return self._measurement(message)

    def _phase(self) -> tuple[str, float, float]:
        """Name of the phase, when it began, and its limit in seconds."""
        limits, budget = self._request.limits, self._request.task.train_seconds
        if not self._clock:
            return "set-up", self._begin, limits.setup_seconds
        if len(self._clock) == 1:
            return "training", self._clock[0], (1 + TOLERANCE) * budget + GRACE_SECONDS
        return "evaluation", self._clock[1], limits.eval_seconds

    def _watch(self, child: ChildProcess) -> dict[str, Any]:
        """The child's last word, or the limit that ended it."""
        while True:
            code = child.process.poll()
            timeout = _POLL_SECONDS if code is None else 2 * LATENCY_SECONDS
            self._interruptions.turn(timeout)
            try:
                stamp, message = child.inbox.get(timeout=timeout)
            except queue.Empty:
                if code is not None:
                    # A process that the candidate left behind may hold the pipe open.
                    return self._death(code)
                if over := self._over_limit(child):
                    return over
                continue
            if message is None:
                try:
                    return self._death(child.process.wait(timeout=GRACE_SECONDS))
                except subprocess.TimeoutExpired:
                    return _failure("invalid", "the candidate closed the result pipe")
            event = message["event"]
            if event in ("failure", "error") or (event == "result" and len(self._clock) == 2):
                return message
            if event == "rows":
                self.rows = int(message["rows"])
            elif event == "clock_start" and not self._clock:
                self._clock.append(stamp)
            elif event == "clock_stop" and len(self._clock) == 1:
                self._clock.append(stamp)
                self._send_rows(child)
            self._on_event({**message, "seconds": stamp - self._clock[0]} if self._clock else message)
            if over := self._over_limit(child):
                return over

    def _send_rows(self, child: ChildProcess) -> None:
        """The validation rows, only now that nothing can be trained on them."""
        val = self._dataset.rows("val")
        held_out = self._request.held_out
        if held_out is None:
            held_out = {"test": self._dataset.rows("test")[: max(1, len(val) // 4)]}
        child.send({"val": val, "token_bytes": self._dataset.token_bytes(), **held_out})

    def _over_limit(self, child: ChildProcess) -> dict[str, Any] | None:
        now = _now()
        if now < self._next_check:
            return None
        self._next_check = now + _POLL_SECONDS
        self._checks += 1
        self._interruptions.look(child.stopped())
        phase, since, limit = self._phase()
        if now - since > limit:
            child.dump_stack()
            return _failure("timeout", f"{phase} took more than {limit:.0f} s")
        if child.log_bytes() > LOG_BYTES:
            return _failure("invalid", f"more than {LOG_BYTES >> 20} MB were printed")
        if (used := child.memory(tree=self._checks % 10 == 0)) > self._memory_limit:
            return _failure(
                "out_of_memory",
                f"the process tree holds {used / 1e9:.1f} GB, the limit is {self._memory_limit / 1e9:.1f} GB",
            )
        return None

    def _measurement(self, message: dict[str, Any]) -> Measurement:
        if message["event"] == "error":
            raise _error(message)
        end = _now()
        start, stop = ([*self._clock, end, end])[:2]
        request = self._request
        common = {
            "total_seconds": end - self._begin,
            "suspect": str(self._interruptions),
            "setup_seconds": start - self._begin,
            "seed": request.seed,
            "comparability_key": request.comparability_key,
            "source_hash": request.source_hash,
            "harness_hash": harness_hash(),
            "guards": self._guards(message),
            "max_rows": self._max_rows,
            "log_tail": log_tail(self._log),
        }
        if message["event"] == "result":
            audit = message.pop("audit")
            result = Result.from_json({"status": "ok", **message, **common})
            if reason := self._wrong_clock(result.train_seconds, stop - start):
                guards = tuple(gate for gate in result.guards if gate != "clock")
                return Measurement(replace(result, status="invalid", reason=reason, val_bpb=None, guards=guards), {})
            return Measurement(result, audit)
        status: Failure = message["status"]
        reason = one_line(message["reason"])
        facts = {"status": status, "reason": reason, "train_seconds": stop - start if self._clock else 0.0}
        return Measurement(Result.from_json({**common, **facts}), {})

    def _guards(self, message: Mapping[str, Any]) -> list[str]:
        """The gates that were passed: by the child's last word, or as far as this side saw them."""
        seen = ["clock"] if len(self._clock) == 2 else []
        return [*([GATE] if self._sandbox else []), *message.get("guards", seen)]

    def _death(self, code: int) -> dict[str, Any]:
        """A child that ended without a word."""
        if self._sandbox and self._sandbox.shell_codes and code > 128:
            code = 128 - code
        if code == -signal.SIGKILL:
            return _failure("out_of_memory", "the system killed the process, most likely because memory ran out")
        if code < 0:
            return _failure("crash", f"the process was ended by signal {-code} ({signal.strsignal(-code)})")
        return _failure("crash", f"the process ended with exit code {code} before it was scored")

    def _wrong_clock(self, counted: float, seen: float) -> str:
        """Why the child's training time isn't believed; "" where it is.

        Both clocks are monotonic and differ by the latency of messages. A candidate could reach that of the child.
        """
        budget = self._request.task.train_seconds
        if abs(seen - counted) > LATENCY_SECONDS + 0.02 * seen:
            return f"the child counted {counted:.1f} s of training, the parent {seen:.1f} s"
        if seen > (1 + TOLERANCE) * budget + 2 * LATENCY_SECONDS:
            return f"training took {seen:.1f} s, the budget is {budget:.1f} s"
        return ""


def _failure(status: Failure, reason: str) -> dict[str, Any]:
    return {"event": "failure", "status": status, "reason": reason}


def _error(message: Mapping[str, Any]) -> AutoresearchError:
    """The child's error, in its own class."""
    kind = getattr(errors, str(message.get("type")), AutoresearchError)
    if not (isinstance(kind, type) and issubclass(kind, AutoresearchError)):
        kind = AutoresearchError
    return kind(str(message.get("message")), str(message.get("hint", "")))
