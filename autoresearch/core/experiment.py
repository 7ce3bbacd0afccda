"""What a train.py is handed, `public`, and the trusted side of it, `ExperimentRun`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from time import monotonic as _now
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoresearch.core.clock import Clock
from autoresearch.core.contract import Backend, DeviceInfo, Experiment
from autoresearch.core.errors import CandidateFailure, Failure
from autoresearch.core.rows import RowStream
from autoresearch.core.task import Task

Emit = Callable[..., None]
"""Sends one message to the parent: `emit("progress", step=…)`."""

CURVE_POINTS = 100
PROGRESS_SECONDS = 0.5


def _silent(event: str, **data: Any) -> None:
    """Emit to nobody."""


class ExperimentRun:
    """One training run under the clock.

    Args:
        backend: puts tokens on the device and waits for it.
        device: what the backend described.
        task: sequence length and budget.
        vocab_size: of the tokenizer that encoded `rows`.
        rows: packed training rows (N, T + 1), any integer type, not copied.
        seed: orders the rows; the candidate seeds its own generators from it.
        max_rows: most rows of a micro-batch.
        emit: told of rows asked for, the start of the clock, and progress.

    Raises:
        DataError: `rows` is empty.
    """

    def __init__(
        self,
        backend: Backend,
        device: DeviceInfo,
        task: Task,
        vocab_size: int,
        rows: NDArray[Any],
        seed: int,
        max_rows: int,
        emit: Emit = _silent,
    ) -> None:
        self.vocab_size = vocab_size
        self.seq_len = task.seq_len
        self.seed = seed
        self.device = device
        self.max_rows = max_rows
        self.facts: dict[str, float | int | str] = {}
        self.losses: list[tuple[float, float]] = []
        self._backend = backend
        self._clock = Clock(task.train_seconds, task.train_steps)
        self._stream = RowStream(rows, seed)
        self._dummy = np.random.default_rng(seed)
        self._emit = emit
        self._tokens_per_step = 0
        self._drawn = False
        self._logged = True
        self._pending: tuple[float, Any] | None = None
        self._failure: CandidateFailure | None = None
        self._last_emit = 0.0
        # An untrained model with a soft-capped head is near ln V; three times that is an explosion, not a spike.
        self._explosion = 3.0 * math.log(vocab_size)

    @property
    def progress(self) -> float:
        return self._clock.progress

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def tokens(self) -> int:
        """Tokens trained on."""
        return self._clock.steps * self._tokens_per_step

    def _shape(self, rows: int, accumulation: int) -> tuple[int, int]:
        if not (isinstance(rows, int) and isinstance(accumulation, int) and rows >= 1 and accumulation >= 1):
            raise self._failed(
                "invalid", f"rows and accumulation must be positive integers, received {rows!r} and {accumulation!r}"
            )
        if rows > self.max_rows:
            raise self._failed("invalid", f"{rows} rows asked for, experiment.max_rows is {self.max_rows}")
        self._emit("rows", rows=rows)
        return accumulation, rows

    def dummy_batch(self, rows: int, accumulation: int = 1) -> tuple[Any, Any]:
        shape = (*self._shape(rows, accumulation), self.seq_len)
        return self._put(*(self._dummy.integers(0, self.vocab_size, shape, dtype=np.int32) for _ in range(2)))

    def batches(self, rows: int, accumulation: int = 1) -> Iterator[tuple[Any, Any]]:
        if self._drawn:
            raise self._failed("invalid", "experiment.batches was called twice")
        self._drawn = True
        return self._batches(*self._shape(rows, accumulation))

    def _batches(self, accumulation: int, rows: int) -> Iterator[tuple[Any, Any]]:
        self._tokens_per_step = accumulation * rows * self.seq_len

        def gather() -> tuple[NDArray[np.int32], NDArray[np.int32]]:
            block = self._stream.take(accumulation * rows).reshape(accumulation, rows, self.seq_len + 1)
            # Copies, also of one row: its view has other strides than a dummy batch, and would be compiled for again.
            return block[..., :-1].copy(), block[..., 1:].copy()

        # The worker touches NumPy alone; frameworks see one thread.
        with ThreadPoolExecutor(1, thread_name_prefix="rows") as worker:
            ahead: Future[tuple[NDArray[np.int32], NDArray[np.int32]]] = worker.submit(gather)
            while self._next_step():
                inputs, targets = ahead.result()
                ahead = worker.submit(gather)
                yield self._put(inputs, targets)

    def _put(self, inputs: NDArray[np.int32], targets: NDArray[np.int32]) -> tuple[Any, Any]:
        return self._backend.put(inputs, self.device), self._backend.put(targets, self.device)

    def _next_step(self) -> bool:
        if not self._logged:
            raise self._failed("invalid", "a batch was drawn before experiment.log was called for the last one")
        # Where dispatch returns at once, the first intervals say nothing about a step; near the end each one counts.
        if self._pending is not None and (self._clock.steps < 3 or self._clock.near_end()):
            self._settle()
        first = not self._clock.started
        if first:
            self._emit("clock_start")
        drawn = self._clock.draw()
        self._logged = not drawn
        return drawn

    def log(self, loss: Any) -> None:
        if self._logged:
            raise self._failed("invalid", "experiment.log was called without a new batch")
        self._logged = True
        before, self._pending = self._pending, (self._clock.progress, loss)
        if before is not None:
            self._take(*before)
        now = _now()
        if now - self._last_emit >= PROGRESS_SECONDS and self.losses:
            self._last_emit = now
            self._emit(
                "progress",
                step=self._clock.steps,
                progress=self._clock.progress,
                loss=self.losses[-1][1],
                tokens_per_second=self.tokens / max(self._clock.elapsed, 1e-9),
            )

    def _settle(self) -> None:
        """Wait for the loss in flight."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._take(*pending)

    def _take(self, progress: float, loss: Any) -> None:
        value = float(loss)
        step = len(self.losses)
        self.losses.append((progress, value))
        if not math.isfinite(value):
            raise self._failed("diverged", f"the training loss is {value} at step {step}")
        if value > self._explosion:
            raise self._failed(
                "diverged", f"the training loss is {value:.1f} at step {step}, above 3 ln V = {self._explosion:.1f}"
            )

    def _failed(self, status: Failure, reason: str) -> CandidateFailure:
        """Remember the first failure, so that a candidate that catches it gains nothing."""
        failure = CandidateFailure(status, reason)
        self._failure = self._failure or failure
        return failure

    def check(self) -> None:
        """Raise the first failure, also where the candidate caught it.

        Raises:
            CandidateFailure: as it was.
        """
        if self._failure is not None:
            raise self._failure

    def report(self, **facts: float | int | str) -> None:
        for name, value in facts.items():
            if not (_is_fact(value) and name.isidentifier() and len(name) <= 50 and len(self.facts) < 50):
                raise self._failed(
                    "invalid",
                    "experiment.report takes at most 50 short names with finite numbers or short printable texts, "
                    f"received {name!r:.80} = {value!r:.80}",
                )
            self.facts[name] = value

    def finish(self, params: Any) -> None:
        """Stop the clock once every array in `params` is computed, and judge the budget.

        Raises:
            CandidateFailure: "diverged" for the last loss, "invalid" for no step or an overrun budget.
        """
        self._backend.wait(params)
        self._clock.stop()
        self.check()
        self._settle()
        if not self._clock.steps:
            raise self._failed("invalid", "train returned without drawing a batch")
        if over := self._clock.overshoot():
            raise self._failed(
                "invalid",
                f"training took {self._clock.elapsed:.3g} s, {over:.2g} s beyond the budget and its tolerance",
            )

    def curve(self) -> tuple[tuple[float, float], ...]:
        """(progress, loss) at no more than CURVE_POINTS steps, the last one included."""
        stride = max(1, math.ceil(len(self.losses) / CURVE_POINTS))
        return tuple((round(p, 4), round(loss, 5)) for p, loss in self.losses[::-1][::stride][::-1])


def _is_fact(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= 200 and value.isprintable()
    return isinstance(value, float | int) and abs(value) < 1e300


def public(run: ExperimentRun) -> Experiment:
    """What a candidate gets: the names of the contract, read-only; no attribute leads to the clock or the rows."""

    class Public:
        __slots__ = ()
        vocab_size = run.vocab_size
        seq_len = run.seq_len
        seed = run.seed
        device = replace(run.device)
        max_rows = run.max_rows
        progress = property(lambda _: run.progress)

        def dummy_batch(self, rows: int, accumulation: int = 1) -> tuple[Any, Any]:
            return run.dummy_batch(rows, accumulation)

        def batches(self, rows: int, accumulation: int = 1) -> Iterator[tuple[Any, Any]]:
            return run.batches(rows, accumulation)

        def log(self, loss: Any) -> None:
            run.log(loss)

        def report(self, **facts: float | int | str) -> None:
            run.report(**facts)

    return Public()
