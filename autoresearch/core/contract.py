"""The seam: what a train.py is handed, what it returns, and what a backend's device.py does.

Coarse on purpose. A train.py is idiomatic code of its framework; the harness around it only draws the clock,
hands out the data and scores what comes back. Arrays of the framework are `Any` here: this module is imported
by the loop, which loads no framework.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Status = Literal["ok", "crash", "timeout", "diverged", "out_of_memory", "invalid"]
Verdict = Literal["keep", "discard", "crash", "timeout", "diverged", "out_of_memory", "invalid"]


@dataclass(frozen=True)
class DeviceInfo:
    """What `device.py` found and chose; `reasons` says why, by field name."""

    backend: str
    platform: str
    """Kind of device: "cuda", "mps", "metal", "tpu", "cpu"."""
    name: str
    """Model of the accelerator, or of the processor with its thread count."""
    count: int
    """Local devices used together."""
    framework: str
    """Name and version, e.g. "torch 2.13.0"."""
    dtype: str
    """Compute dtype: "bfloat16", "float16" or "float32". Matrices keep float32 master weights in any case."""
    attention: str
    """Attention provider, e.g. "flash3", "flex", "sdpa"."""
    compile: bool
    """Whether a train.py should compile its step."""
    peak_flops: float | None
    """FLOP/s of all devices together in `dtype`; None where unknown."""
    memory_bytes: int
    """Memory that a candidate may use: of the device, or of the machine where both share it."""
    reasons: dict[str, str] = field(default_factory=dict)
    fetch: tuple[str, ...] = ()
    """A command, with its arguments, that fetches from a hub what would make this device faster; () for none."""

    def machine_class(self) -> str:
        """The part of a comparability key that the machine decides."""
        return f"{self.backend}/{self.name} x{self.count}/{self.framework}/{self.dtype}"


class Trained(NamedTuple):
    """What `train` returns."""

    logits: Callable[[Any, Any], Any]
    """(params, tokens (B, T) int) -> (B, T, V); pure. The harness calls and compiles it."""
    params: Any
    """A pytree or a module: the harness counts it, waits for it and passes it back."""


class Experiment(Protocol):
    """All that a train.py may know and use."""

    vocab_size: int
    seq_len: int
    seed: int
    device: DeviceInfo
    max_rows: int
    """Most rows of one micro-batch; halved by the harness after running out of memory."""

    @property
    def progress(self) -> float:
        """Share of the budget used when the current batch was drawn, 0..1, for schedules."""

    def dummy_batch(self, rows: int, accumulation: int = 1) -> tuple[Any, Any]:
        """Random tokens of the shapes that `batches` yields, to compile on; the clock stands still."""

    def batches(self, rows: int, accumulation: int = 1) -> Iterator[tuple[Any, Any]]:
        """Yield (inputs, targets), each (accumulation, rows, T) int on the device, once per optimizer step.

        May be called once. The first item starts the clock; the iterator ends before a step that would not fit.
        """

    def log(self, loss: Any) -> None:
        """Take this step's scalar loss; call once per step. Waits for the step before, so two are in flight."""

    def report(self, **facts: float | int | str) -> None:
        """Record untrusted facts, e.g. depth, flops_per_token."""


class Backend(Protocol):
    """What the harness asks of a framework; a module `device` in the backend's package satisfies it.

    It is imported in the child only. No call keeps state except the compile cache of `nats` and `logits`.
    """

    def describe(self, device: str = "auto", budget_seconds: float | None = None) -> DeviceInfo:
        """Probe the machine. `device` is "auto" or a platform, e.g. "cpu".

        `budget_seconds`, the training time of one measurement, lets it judge whether compiling pays.
        Raises BackendUnavailable with the install hint.
        """

    def seed(self, n: int) -> None:
        """Seed every generator of the framework."""

    def put(self, tokens: NDArray[np.int32], device: DeviceInfo) -> Any:
        """Copy host tokens to the device, asynchronously where possible; `tokens` is not written to again.

        Sharded on the rows axis (the last but one) where count > 1.
        """

    def wait(self, value: Any) -> None:
        """Block until every array in `value` (a pytree, a module, a scalar) is computed."""

    def nats(self, trained: Trained, inputs: Any, targets: Any) -> NDArray[np.float32]:
        """Negative log-likelihood of each target, (B, T), in float32, without gradients.

        Compiled once, where that pays for the seconds that scoring takes.
        """

    def logits(self, trained: Trained, inputs: Any, positions: NDArray[np.int32]) -> NDArray[np.float32]:
        """The logits of each row at its own `positions` (B, n), on the host, (B, n, V) float32.

        Computed in the shape of `nats`.
        """

    def count(self, params: Any) -> int:
        """Scalar parameters."""

    def peak_memory_bytes(self, device: DeviceInfo) -> int:
        """Peak of device memory since the process started; of host memory where that is the device's."""

    def probe(self, device: DeviceInfo, seconds: float) -> float:
        """FLOP/s of the device in matrix products of a fixed size, repeated for about `seconds`.

        The rate over the whole time, not the fastest call, so that a busy machine shows. Waits for the device.
        """

    def out_of_memory(self, error: BaseException) -> bool:
        """Whether `error` is the framework's way to say that memory ran out."""


class BackendFacts(Protocol):
    """What the package of a backend states without importing its framework."""

    TITLE: str
    """For people, e.g. "CUDA PyTorch"."""
    INSTALL_HINT: str
    """A command that installs the framework."""
    RANK: int | None
    """Preference where a search chooses its backend itself, lowest first; None is never chosen."""
    BASELINE: Path
    """The reference train.py."""
    ALLOWED_IMPORTS: frozenset[str]
    """Top-level modules that a candidate may import besides the harmless ones of the standard library."""
    COMPUTES_WITH: frozenset[str]
    """Modules, with those below them, whose functions `nats` and `logits` look up after a candidate was loaded, e.g.
    where they are traced then. None where device.py took its functions before and they look up no others."""

    def environment(self, device: str) -> dict[str, str]:
        """Variables that the child needs before its framework loads (allocator, thread counts)."""


def run_experiment() -> None:
    """What `python train.py` does in a workspace: one measurement, by the command `autoresearch experiment`."""
    command = [
        sys.executable,
        "-m",
        "autoresearch",
        "experiment",
        "--workspace",
        str(Path(sys.argv[0]).resolve().parent),
    ]
    os.execv(sys.executable, [*command, *sys.argv[1:]])


@dataclass(frozen=True)
class Result:
    """One measurement. Also the document of `autoresearch experiment --json` and of the journal."""

    status: Status
    reason: str = ""
    suspect: str = ""
    """Why the machine, not the candidate, may have changed the score; "" where nothing was seen."""
    val_bpb: float | None = None
    """Bits per UTF-8 byte over the validation rows; None unless status is "ok"."""
    val_bytes: int = 0
    val_tokens: int = 0
    train_seconds: float = 0.0
    setup_seconds: float = 0.0
    eval_seconds: float = 0.0
    total_seconds: float = 0.0
    steps: int = 0
    tokens: int = 0
    tokens_per_second: float = 0.0
    num_params: int = 0
    peak_memory_bytes: int = 0
    mfu: float | None = None
    """Model FLOPs utilisation, 0..1, from the candidate's own flops_per_token; None where unknown."""
    seed: int = 0
    comparability_key: str = ""
    source_hash: str = ""
    guards: tuple[str, ...] = ()
    """Gates that this measurement came through, in their order; of one that failed, those that had run by then. First
    "sandbox" where it ran in one."""
    harness_hash: str = ""
    """Of the package's own source, see `harness.harness_hash`."""
    max_rows: int = 0
    probe_before: float | None = None
    """FLOP/s of the device probe before the candidate was loaded; None where it was not probed."""
    probe_after: float | None = None
    """FLOP/s of the device probe between training and scoring."""
    step_drift: float | None = None
    """How much slower steps became, see `Clock.drift`; None where too few or too short ones were made to tell."""
    facts: dict[str, float | int | str] = field(default_factory=dict)
    """What the candidate reported about itself; untrusted."""
    loss_curve: tuple[tuple[float, float], ...] = ()
    """(progress, training loss in nats per token), thinned to at most 100 points."""
    log_tail: str = ""
    """End of what the candidate printed, with its traceback; at most 4 KB, control characters stripped."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        """The inverse of `to_json`; unknown keys of later versions are ignored."""
        known = {f.name for f in fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        values["guards"] = tuple(values.get("guards", ()))
        values["loss_curve"] = tuple((p, loss) for p, loss in values.get("loss_curve", ()))
        return cls(**values)
