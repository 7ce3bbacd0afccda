"""Bits per byte, and the probes that a score must pass.

`val_bpb = Σ nats / (ln 2 · Σ bytes)` over the targets of fixed rows. The harness computes it from the logits that the
candidate's pure function gives for the inputs; a target is never shown to the candidate. Targets of zero bytes (special
tokens) count neither bytes nor nats, as in nanochat's `evaluate_bpb`.

Everything is computed in one static shape (eval_rows, T), the last batch padded, so that a framework compiles once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from time import monotonic as _now
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoresearch.core.contract import Backend, DeviceInfo, Trained
from autoresearch.core.errors import CandidateFailure

VERSION = 1
"""Part of the machine class: scores of different versions are never ranked against each other."""

PROBE_ROWS = 4
MAX_LOGITS_BYTES = 2**30
COMPILE_SECONDS = 150.0
"""Most that compiling the evaluation may add to its first call."""

# The same shape runs the same kernels, so an honest model moves by rounding alone; half precision keeps 8 to 11 bits
# of a logit that the soft cap bounds by 15.
_TOLERANCE = {"float32": 2e-4, "float16": 2e-2, "bfloat16": 6e-2}

GATES = ("shape", "finite", "causality", "isolation", "spot check", "no memory", "first call")


@dataclass(frozen=True)
class Score:
    """Sums over one split."""

    nats: float
    bytes: int
    tokens: int

    @property
    def bpb(self) -> float:
        """Bits per byte."""
        return self.nats / (math.log(2) * self.bytes)


class Evaluator:
    """Scores one `Trained` in one static shape.

    Args:
        backend: computes logits and nats.
        device: decides tolerances by its dtype.
        trained: the candidate's model.
        vocab_size: V; logits of another width are invalid.
        token_bytes: (V,) int, raw bytes of each token, 0 for special tokens.
        eval_rows: rows of the static shape; lowered where the logits (rows, T, V) in float32 would pass 1 GiB.
    """

    def __init__(
        self,
        backend: Backend,
        device: DeviceInfo,
        trained: Trained,
        vocab_size: int,
        token_bytes: NDArray[np.int32],
        eval_rows: int,
    ) -> None:
        self._backend = backend
        self._device = device
        self._trained = trained
        self._vocab = vocab_size
        self._token_bytes = token_bytes
        self._eval_rows = eval_rows
        self._tolerance = _TOLERANCE[device.dtype]
        self._seconds: list[float] = []

    def _rows_of(self, seq_len: int) -> int:
        fitting = max(1, MAX_LOGITS_BYTES // (4 * seq_len * self._vocab))
        rows = min(self._eval_rows, fitting)
        # Sharding splits the rows axis evenly.
        return max(self._device.count, rows - rows % self._device.count)

    def _batches(self, rows: NDArray[Any]) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32], int]]:
        """(inputs, targets, real rows) in the static shape."""
        size = self._rows_of(rows.shape[1] - 1)
        for start in range(0, len(rows), size):
            block = np.zeros((size, rows.shape[1]), np.int32)
            real = min(size, len(rows) - start)
            block[:real] = rows[start : start + real]
            yield np.ascontiguousarray(block[:, :-1]), np.ascontiguousarray(block[:, 1:]), real

    def _nats(self, inputs: NDArray[np.int32], targets: NDArray[np.int32]) -> NDArray[np.float32]:
        start = _now()
        put = self._backend.put
        nats = self._backend.nats(self._trained, put(inputs, self._device), put(targets, self._device))
        self._seconds.append(_now() - start)
        if nats.shape != targets.shape:
            raise CandidateFailure("invalid", f"scores have the shape {nats.shape}, not {targets.shape}")
        return nats

    def _logits(self, inputs: NDArray[np.int32]) -> NDArray[np.float32]:
        keep = min(PROBE_ROWS, len(inputs))
        logits = self._backend.logits(self._trained, self._backend.put(inputs, self._device), keep)
        expected = (keep, inputs.shape[1], self._vocab)
        if logits.shape != expected:
            raise CandidateFailure("invalid", f"logits have the shape {logits.shape}, not {expected} (rows, T, V)")
        return logits

    def score(self, rows: NDArray[Any]) -> Score:
        """Σ nats and Σ bytes over all targets of `rows` (N, T + 1).

        Raises:
            CandidateFailure: "diverged" where a score is NaN or infinite.
        """
        nats = 0.0
        count = 0
        tokens = 0
        for inputs, targets, real in self._batches(rows):
            scored = self._nats(inputs, targets)[:real]
            weight = self._token_bytes[targets[:real]]
            if not np.isfinite(scored).all():
                raise CandidateFailure("diverged", "the validation loss is not finite")
            nats += float(np.sum(scored, dtype=np.float64, where=weight > 0))
            count += int(weight.sum(dtype=np.int64))
            tokens += int(targets[:real].size)
        return Score(nats, count, tokens)

    def measure(self, val: NDArray[Any], test: NDArray[Any], seed: int) -> tuple[Score, Score | None]:
        """Score both splits and run every probe of GATES.

        Args:
            val: validation rows (N, T + 1).
            test: rows that are scored and kept from every proposer; may be empty.
            seed: of the perturbations.

        Raises:
            CandidateFailure: the first probe that fails, "invalid", or "diverged" for scores that aren't finite.
        """
        inputs, targets, real = next(self._batches(val))
        first = self._nats(inputs, targets)
        val_score = self.score(val)
        test_score = self.score(test) if len(test) else None
        logits = self._logits(inputs)
        self._check_spot(first, logits, targets)
        self._check_causality(inputs, logits, real, seed)
        again = self._nats(inputs, targets)
        if (moved := float(np.abs(again - first)[:real].max())) > self._tolerance:
            raise CandidateFailure("invalid", f"no memory: the same rows scored twice differ by {moved:.2g} nats")
        self._check_first_call()
        return val_score, test_score

    def _check_spot(self, nats: NDArray[np.float32], logits: NDArray[np.float32], targets: NDArray[np.int32]) -> None:
        """A few rows again in NumPy float64, from the logits alone."""
        if not np.isfinite(logits).all():
            raise CandidateFailure("diverged", "the logits are not finite")
        wide = logits.astype(np.float64)
        wide -= wide.max(axis=-1, keepdims=True)
        log_sum = np.log(np.exp(wide).sum(axis=-1))
        expected = log_sum - np.take_along_axis(wide, targets[: len(wide), :, None], axis=-1)[..., 0]
        if (error := float(np.abs(expected - nats[: len(wide)]).max())) > self._tolerance:
            raise CandidateFailure("invalid", f"spot check: scores differ from their logits by {error:.2g} nats")

    def _check_causality(self, inputs: NDArray[np.int32], logits: NDArray[np.float32], real: int, seed: int) -> None:
        """Change later tokens and other rows: logits of earlier positions must not move.

        The probed rows are cut at positions spread over the row; where there is more than one, the first stays whole,
        so that it shows whether rows see each other.
        """
        rows, seq_len = inputs.shape
        rng = np.random.default_rng([seed, 0xCA5A])
        changed = rng.integers(0, self._vocab, inputs.shape, dtype=np.int32)
        # Every token after the cut differs, so that no leak hides behind a chance repeat.
        changed = np.where(changed == inputs, (changed + 1) % self._vocab, changed)
        probed = min(len(logits), real)
        cuts = [int(c) for c in rng.integers(1, seq_len, size=probed)] if seq_len > 1 else [1] * probed
        cuts[-1] = max(1, seq_len // 2)
        if rows > 1 and probed > 1:
            cuts[0] = seq_len
        for row, cut in enumerate(cuts):
            changed[row, :cut] = inputs[row, :cut]
        after = self._logits(changed)
        for row, cut in enumerate(cuts):
            moved = float(np.abs(after[row, :cut] - logits[row, :cut]).max())
            if not moved <= self._tolerance:
                what = "isolation: other rows of the batch" if cut == seq_len else f"causality: tokens from {cut} on"
                raise CandidateFailure("invalid", f"{what} change earlier logits by {moved:.2g}")

    def _check_first_call(self) -> None:
        """Work put off until the first evaluation call shows as its time."""
        first, *rest = self._seconds
        allowed = 10 * median(rest) + (COMPILE_SECONDS if self._device.compile else 2.0)
        if first > allowed:
            raise CandidateFailure(
                "invalid",
                f"first call: the first evaluation call took {first:.1f} s, at most {allowed:.1f} s is allowed",
            )
