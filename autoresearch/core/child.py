"""The trusted child process: load the framework, train the candidate under the clock, score it, answer the parent.

Started by the executor as `python -P -m autoresearch.core.child READ_FD WRITE_FD`. Standard output and error are the
experiment's log. The validation rows come over the pipe after `train` has returned.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import importlib.util
import os
import queue
import secrets
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from time import monotonic as _now
from types import ModuleType
from typing import Any

from autoresearch.core import measure, registry
from autoresearch.core.channel import Channel, Message
from autoresearch.core.contract import Backend, DeviceInfo, Trained
from autoresearch.core.dataset import open_for_training
from autoresearch.core.errors import AutoresearchError, BackendUnavailable, CandidateFailure
from autoresearch.core.experiment import ExperimentRun, public
from autoresearch.core.guard import Guard
from autoresearch.core.linux import adopt_orphans, die_with_parent
from autoresearch.core.sandbox import kernel_folders
from autoresearch.core.task import Task

PARENT_GONE = 70
_KEPT: list[Trained] = []
GATES = ("clock", *measure.GATES, "guard")
"""In the order in which they end: the guard watches from before the candidate is loaded."""


def _listen(channel: Channel, inbox: queue.Queue[Message]) -> None:
    """Pass on what the parent sends; without a parent there is nobody to train for."""
    while True:
        try:
            inbox.put(channel.receive())
        except Exception:
            os._exit(PARENT_GONE)


def _backend(name: str) -> Backend:
    """Import a backend.

    Raises:
        BackendUnavailable: its framework isn't installed.
    """
    try:
        return registry.load(name)
    except ImportError as error:
        hint = registry.facts(name).INSTALL_HINT
        raise BackendUnavailable(f"the framework of backend {name!r} is not installed: {error}", hint) from error


def _load(path: Path) -> ModuleType:
    """Import the candidate from its file, so that tracebacks and compilers find its lines."""
    spec = importlib.util.spec_from_file_location("train", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train"] = module
    spec.loader.exec_module(module)
    return module


def _where(error: BaseException, path: Path) -> str:
    """The candidate's line that an error came through, for the reason shown to people."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f" (train.py line {lines[-1]})" if lines else ""


def _measure(
    channel: Channel, inbox: queue.Queue[Message], request: dict[str, Any], passed: list[str]
) -> dict[str, Any]:
    """One measurement; the fields of a Result that the child knows. Notes the gates that it came through in `passed`.

    Raises:
        CandidateFailure: the typed end of a candidate that failed.
    """
    # What was chosen once for the run, under its comparability key; a probe here could choose otherwise.
    device = DeviceInfo(**request["device"])
    backend = _backend(device.backend)
    task = Task(**request["task"])
    dataset = open_for_training(Path(request["dataset"]))
    seed = int(request["seed"])
    path = Path(request["candidate"])
    run = ExperimentRun(
        backend,
        device,
        task,
        dataset.vocab_size,
        dataset.rows("train"),
        seed,
        request["max_rows"],
        lambda event, **data: channel.send({"event": event, **data}),
    )
    facts = registry.facts(device.backend)
    guard = Guard(
        path.parent, Path(request["cache"]), kernel_folders(os.environ), facts.ALLOWED_IMPORTS, facts.COMPUTES_WITH
    )
    # Before the generators are seeded and the candidate is loaded.
    before = _probe(backend, device, request)
    backend.seed(seed)
    # A byte-code file written next to a module would be a write outside the scratch directory.
    sys.dont_write_bytecode = True
    guard.arm()
    try:
        trained = _train(backend, run, path)
        guard.check()
        passed.append("clock")
        channel.send({"event": "clock_stop", "steps": run.clock.steps})
        machine = {
            "probe_before": before,
            "probe_after": _probe(backend, device, request),
            "step_drift": run.clock.drift(),
        }
        _, arrays = inbox.get()
        start = _now()
        evaluator = measure.Evaluator(
            backend,
            device,
            trained,
            dataset.vocab_size,
            arrays["token_bytes"],
            task.eval_rows,
            run.clock.elapsed / run.tokens,
            guard.check,
            passed,
        )
        # A seed that the candidate can't know, so that no leak steers clear of the probes.
        held_out = {name: rows for name, rows in arrays.items() if name not in ("val", "token_bytes")}
        val, others = evaluator.measure(arrays["val"], held_out, secrets.randbits(64))
        # The candidate's code can still run, e.g. in a method of its model, so the guard stays armed for good.
        result = _result(backend, device, run, trained, val, others, _now() - start, machine)
        guard.check()
        passed.append("guard")
    except BaseException as error:
        guard.disarm()
        guard.check()
        run.check()
        if isinstance(error, CandidateFailure):
            raise
        traceback.print_exc(file=sys.__stderr__)
        if isinstance(error, MemoryError) or backend.out_of_memory(error):
            raise CandidateFailure("out_of_memory", f"{type(error).__name__}: {error}"[:300]) from error
        raise CandidateFailure(
            "crash", f"{type(error).__name__}: {error}".splitlines()[0][:300] + _where(error, path)
        ) from error
    # Nor may it run when its model is thrown away, before the result is sent.
    _KEPT.append(trained)
    return {**result, "guards": passed}


def _result(
    backend: Backend,
    device: DeviceInfo,
    run: ExperimentRun,
    trained: Trained,
    val: measure.Score,
    others: Mapping[str, measure.Score],
    eval_seconds: float,
    machine: Mapping[str, float | None],
) -> dict[str, Any]:
    """What the child knows of a measurement that went well."""
    seconds = run.clock.elapsed
    rate = run.tokens / seconds
    flops = run.facts.get("flops_per_token")
    known = isinstance(flops, int | float) and device.peak_flops
    return {
        "val_bpb": val.bpb,
        "val_bytes": val.bytes,
        "val_tokens": val.tokens,
        "train_seconds": seconds,
        "eval_seconds": eval_seconds,
        "steps": run.clock.steps,
        "tokens": run.tokens,
        "tokens_per_second": rate,
        "num_params": backend.count(trained.params),
        "peak_memory_bytes": backend.peak_memory_bytes(device),
        "mfu": float(flops) * rate / device.peak_flops if known else None,  # type: ignore[arg-type, operator]
        **machine,
        "facts": run.facts,
        "loss_curve": run.curve(),
        "audit": {
            f"{name}_{what}": getattr(score, what)
            for name, score in others.items()
            for what in ("bpb", "bytes", "tokens")
        },
    }


def _probe(backend: Backend, device: DeviceInfo, request: Mapping[str, Any]) -> float | None:
    """FLOP/s of the device at this moment; None where the request has no time for it, or the device no memory."""
    seconds = float(request["probe_seconds"])
    if not seconds:
        return None
    try:
        return backend.probe(device, seconds)
    except Exception as error:
        if isinstance(error, MemoryError) or backend.out_of_memory(error):
            return None
        raise


def _train(backend: Backend, run: ExperimentRun, path: Path) -> Trained:
    """Load and run the candidate up to the end of its clock."""
    train = getattr(_load(path), "train", None)
    if not callable(train):
        raise CandidateFailure("invalid", "train.py defines no function train(experiment)")
    trained = train(public(run))
    if not isinstance(trained, Trained) or not callable(trained.logits):
        raise CandidateFailure(
            "invalid", f"train must return contract.Trained(logits, params), received {type(trained).__name__}"
        )
    run.finish(trained.params)
    return trained


def _answer(channel: Channel, inbox: queue.Queue[Message]) -> None:
    request, _ = inbox.get()
    channel.seal = request.pop("seal")
    passed: list[str] = []
    try:
        if request["do"] == "describe":
            device = _backend(request["backend"]).describe(request["device"], request["budget"])
            channel.send({"event": "device", **dataclasses.asdict(device)})
        else:
            channel.send({"event": "result", **_measure(channel, inbox, request, passed)})
    except CandidateFailure as failure:
        print(f"{failure.status}: {failure.reason}", file=sys.__stderr__)
        end = {"event": "failure", "status": failure.status, "reason": failure.reason, "guards": passed}
        channel.send(end)
    except AutoresearchError as error:
        channel.send({"event": "error", "type": type(error).__name__, "message": error.message, "hint": error.hint})


def _tie_to_parent() -> None:
    """On Linux: die with the parent, be the first to go where memory runs out, and adopt every descendant."""
    if sys.platform != "linux":
        return
    die_with_parent()
    adopt_orphans(True)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def main() -> None:
    """Answer one request of the parent."""
    channel = Channel(int(sys.argv[1]), int(sys.argv[2]))
    for fd in (int(sys.argv[1]), int(sys.argv[2])):
        os.set_inheritable(fd, False)
    faulthandler.enable()
    # The parent asks where a candidate hangs before it kills it.
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    _tie_to_parent()
    inbox: queue.Queue[Message] = queue.Queue()
    threading.Thread(target=_listen, args=(channel, inbox), daemon=True).start()
    _answer(channel, inbox)
    # Everything was sent. The parent ends this process together with whatever it started: an interpreter's shutdown can
    # hang, and what outlives its parent is hard to find.
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
