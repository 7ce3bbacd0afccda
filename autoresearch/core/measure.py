"""Bits per byte, and the probes that a score must pass.

`val_bpb = Σ nats / (ln 2 · Σ bytes)` over the targets of fixed rows. The harness computes it from the logits that the
candidate's pure function gives for the inputs; a target is never shown to the candidate. Targets of zero bytes (special
tokens) count neither bytes nor nats, as in nanochat's `evaluate_bpb`.

Everything is computed in one static shape (eval_rows, T), the last batch padded, so that a framework compiles once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import monotonic as _now
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoresearch.core.contract import Backend, DeviceInfo, Trained
from autoresearch.core.errors import CandidateFailure

VERSION = 1
"""Part of the machine class: scores of different versions are never ranked against each other."""

PROBE_ROWS = 4
"""As many rows' logits come to the host, from positions spread over all rows of a batch."""
CUTS = 64
"""Positions that the causality probe cuts rows at: a leak at a share s of all positions escapes with (1 − s)^CUTS."""
MAX_ROUNDS = 8
CHECKS = 8
"""Looks at the harness while one split is scored."""
MAX_LOGITS_BYTES = 2**30
COMPILE_SECONDS = 150.0
"""Most that compiling the evaluation may add to its first call, and to all of them together."""
SLACK_SECONDS = 2.0
"""Most that the machine may add to a call for which nothing is compiled, and to all of them together."""
SLOWEST = 10
"""Times the usual that one call may take."""
MEAN = 5
"""Times their median that all calls may take on average, so that no work is spread over many of them."""

# The same shape runs the same kernels, so an honest model moves by rounding alone; half precision keeps 8 to 11 bits
# of a logit that the soft cap bounds by 15.
_TOLERANCE = MappingProxyType({"float32": 2e-4, "float16": 2e-2, "bfloat16": 6e-2})
_DRIFT = 0.1
"""Share of the tolerance that the mean over all cuts may move by: rounding has no direction, a leak has one."""

GATES = ("shape", "finite", "no memory", "causality", "isolation", "spot check", "call time")
"""In the order in which they run."""


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


@dataclass(frozen=True)
class _Spot:
    """What the spot check looks at."""

    rows: NDArray[np.intp]
    """Of the split, at most as many as a batch has."""
    positions: NDArray[np.int32]
    """(B, n) of each row of the batch."""


class Evaluator:
    """Scores one `Trained` in one static shape.

    Args:
        backend: computes logits and nats.
        device: decides tolerances by its dtype.
        trained: the candidate's model.
        vocab_size: V; logits of another width are invalid.
        token_bytes: (V,) int, raw bytes of each token, 0 for special tokens.
        eval_rows: rows of the static shape; lowered where the logits (rows, T, V) in float32 would pass 1 GiB.
        token_seconds: what a token took in training. Scoring one takes less, so that slow calls don't excuse a slower
            one; None where it is not known.
        check: raises where the harness is no longer what it was. Called about CHECKS times after calls that the
            candidate can't foresee, so that nothing is replaced for the calls between two looks.
        passed: the gates of GATES that let the candidate pass are noted here, one after the other.
    """

    def __init__(
        self,
        backend: Backend,
        device: DeviceInfo,
        trained: Trained,
        vocab_size: int,
        token_bytes: NDArray[np.int32],
        eval_rows: int,
        token_seconds: float | None = None,
        check: Callable[[], None] = lambda: None,
        passed: list[str] | None = None,
    ) -> None:
        self._backend = backend
        self._device = device
        self._trained = trained
        self._vocab = vocab_size
        self._token_bytes = token_bytes
        self._eval_rows = eval_rows
        self._token_seconds = token_seconds
        self._check = check
        self._check_share = 0.0
        self._surprise = np.random.default_rng()
        self._passed = [] if passed is None else passed
        self._tolerance = _TOLERANCE[device.dtype]
        self._seconds: list[float] = []
        self._first_seconds: dict[str, float] = {}

    def _rows_of(self, seq_len: int) -> int:
        fitting = max(1, MAX_LOGITS_BYTES // (4 * seq_len * self._vocab))
        rows = min(self._eval_rows, fitting)
        # Sharding splits the rows axis evenly.
        return max(self._device.count, rows - rows % self._device.count)

    def _batch(self, rows: NDArray[Any], index: int) -> tuple[NDArray[np.int32], NDArray[np.int32], int]:
        """(inputs, targets, real rows) of one batch in the static shape."""
        size = self._rows_of(rows.shape[1] - 1)
        chosen = rows[index * size : (index + 1) * size]
        block = np.zeros((size, rows.shape[1]), np.int32)
        block[: len(chosen)] = chosen
        return np.ascontiguousarray(block[:, :-1]), np.ascontiguousarray(block[:, 1:]), len(chosen)

    def _timed(self, what: str, start: float) -> None:
        """Note how long a call took, the first of its kind apart."""
        seconds = _now() - start
        if what in self._first_seconds:
            self._seconds.append(seconds)
        else:
            self._first_seconds[what] = seconds

    def _nats(self, inputs: NDArray[np.int32], targets: NDArray[np.int32]) -> NDArray[np.float32]:
        start = _now()
        # Copies: what a candidate writes into its inputs must not reach the probes, which are made of the same rows.
        mine, wanted = (self._backend.put(tokens.copy(), self._device) for tokens in (inputs, targets))
        nats = self._backend.nats(self._trained, mine, wanted)
        self._timed("nats", start)
        if self._surprise.random() < self._check_share:
            self._check()
        if nats.shape != targets.shape:
            raise CandidateFailure("invalid", f"scores have the shape {nats.shape}, not {targets.shape}")
        return nats

    def _logits(self, inputs: NDArray[np.int32], positions: NDArray[np.int32]) -> NDArray[np.float32]:
        start = _now()
        logits = self._backend.logits(self._trained, self._backend.put(inputs.copy(), self._device), positions.copy())
        self._timed("logits", start)
        expected = (*positions.shape, self._vocab)
        if logits.shape != expected:
            raise CandidateFailure("invalid", f"logits have the shape {logits.shape}, not {expected} (rows, n, V)")
        return logits

    def _scored(self, rows: NDArray[Any]) -> tuple[Score, NDArray[np.float32]]:
        """Sums over all targets, and the nats (N, T) of each."""
        nats = 0.0
        count = 0
        kept = []
        for index in range(-(-len(rows) // self._rows_of(rows.shape[1] - 1))):
            inputs, targets, real = self._batch(rows, index)
            scored = self._nats(inputs, targets)
            if not np.isfinite(scored[:real]).all():
                raise CandidateFailure("diverged", "the validation loss is not finite")
            weight = self._token_bytes[targets[:real]]
            nats += float(np.sum(scored[:real], dtype=np.float64, where=weight > 0))
            count += int(weight.sum(dtype=np.int64))
            kept.append(scored[:real].copy())
        return Score(nats, count, rows[:, 1:].size), np.concatenate(kept)

    def score(self, rows: NDArray[Any]) -> Score:
        """Σ nats and Σ bytes over all targets of `rows` (N, T + 1).

        Raises:
            CandidateFailure: "diverged" where a score is NaN or infinite.
        """
        return self._scored(rows)[0]

    def measure(
        self, val: NDArray[Any], held_out: Mapping[str, NDArray[Any]], seed: int
    ) -> tuple[Score, dict[str, Score]]:
        """Score the validation rows and every other set of rows, and run every probe of GATES.

        Args:
            val: validation rows (N, T + 1).
            held_out: by name, rows that are scored and kept from every proposer; an empty set has no score.
            seed: of the probes; the candidate must not be able to foresee it.

        Raises:
            CandidateFailure: the first probe that fails, "invalid", or "diverged" for scores that aren't finite.
        """
        rng = np.random.default_rng(seed)
        size = self._rows_of(val.shape[1] - 1)
        full = len(val) // size
        probed = int(rng.integers(full)) if full else 0
        self._check_share = CHECKS * size / len(val)
        inputs, targets, real = self._batch(val, probed)
        # A wrong shape is named before anything is computed with it; no row of the split is shown before it is scored.
        spot = self._spot(len(val), size, inputs.shape[1], rng.spawn(1)[0])
        self._logits(np.zeros_like(inputs), np.zeros_like(spot.positions))
        self._passed.append("shape")
        val_score, all_nats = self._scored(val)
        nats = all_nats[probed * size : probed * size + real]
        held_out_scores = {name: self.score(rows) for name, rows in held_out.items() if len(rows)}
        self._passed.append("finite")
        again = self._nats(inputs, targets)
        if not (moved := float(np.abs(again[:real] - nats).max())) <= self._tolerance:
            raise CandidateFailure("invalid", f"no memory: the same rows scored twice differ by {moved:.2g} nats")
        self._passed.append("no memory")
        self._check_causality(inputs, targets, nats, real, rng)
        self._passed += ["causality", "isolation"]
        self._check_spot(val, all_nats, spot)
        self._passed.append("spot check")
        self._check_calls(inputs.size)
        self._passed.append("call time")
        return val_score, held_out_scores

    def _spot(self, count: int, size: int, seq_len: int, rng: np.random.Generator) -> _Spot:
        """Rows that can't be foreseen while they are scored.

        One of each place in a batch, and of as many batches as there are places.
        """
        places = rng.permutation(size)
        rows = size * np.resize(rng.permutation(-(-count // size)), size) + places
        if count >= size:
            # The last batch is padded.
            rows = np.where(rows < count, rows, size * rng.integers(count // size, size=size) + places)
        rows = rows[rows < count]
        each = min(seq_len, -(-PROBE_ROWS * seq_len // size))
        # Row by row: for all of them at once, a permutation of all positions would be held for each.
        drawn = [rng.permutation(seq_len)[:each] for _ in range(size)]
        return _Spot(rows, np.array(drawn, np.int32))

    def _check_spot(self, rows: NDArray[Any], nats: NDArray[np.float32], spot: _Spot) -> None:
        """Some targets of each drawn row again in NumPy float64, from the logits alone.

        The rows stand in one batch, in places other than those they were scored in: that rows don't see each other has
        been checked before.
        """
        block = np.zeros((len(spot.positions), rows.shape[1]), np.int32)
        block[: len(spot.rows)] = rows[spot.rows]
        real = len(spot.rows)
        positions = spot.positions[:real]
        logits = self._logits(np.ascontiguousarray(block[:, :-1]), spot.positions)[:real]
        if not np.isfinite(logits).all():
            raise CandidateFailure("diverged", "the logits are not finite")
        wide = logits.astype(np.float64)
        peak = wide.max(axis=-1, keepdims=True)
        # Where float32 is coarser than what is told apart, a sum of exponentials tells nothing.
        if (coarse := float(np.spacing(np.float32(np.abs(peak).max())))) > self._tolerance:
            raise CandidateFailure("invalid", f"spot check: logits so large that float32 keeps them to {coarse:.2g}")
        wide -= peak
        log_sum = np.log(np.exp(wide).sum(axis=-1))
        targets = np.take_along_axis(block[:real, 1:], positions, axis=1)
        expected = log_sum - np.take_along_axis(wide, targets[..., None], axis=-1)[..., 0]
        scored = np.take_along_axis(nats[spot.rows], positions, axis=1)
        if not (error := float(np.abs(expected - scored).max())) <= self._tolerance:
            raise CandidateFailure("invalid", f"spot check: scores differ from their logits by {error:.2g} nats")

    def _check_causality(
        self,
        inputs: NDArray[np.int32],
        targets: NDArray[np.int32],
        nats: NDArray[np.float32],
        real: int,
        rng: np.random.Generator,
    ) -> None:
        """Change later tokens and other rows: the scores of the same targets at earlier positions must not move.

        Every real row is cut somewhere, in several rounds whose cuts are spread over the row. In each round where there
        are several rows, one stays whole, which shows whether rows see each other.
        """
        seq_len = inputs.shape[1]
        rounds = min(MAX_ROUNDS, -(-CUTS // real))
        spread = (rng.permutation(rounds * real) + rng.random(rounds * real)) / (rounds * real)
        cuts = (1 + (seq_len - 1) * spread).astype(int).reshape(rounds, real)
        edges = []
        for n, ends in enumerate(cuts):
            if real > 1:
                ends[n % real] = seq_len
            changed = rng.integers(0, self._vocab, inputs.shape, dtype=np.int32)
            # Every token after the cut differs, so that no leak hides behind a chance repeat.
            changed = np.where(changed == inputs, (changed + 1) % self._vocab, changed)
            earlier = np.arange(seq_len) < ends[:, None]  # (real, T)
            changed[:real] = np.where(earlier, inputs[:real], changed[:real])
            moved = np.where(earlier, self._nats(changed, targets)[:real] - nats, 0.0)
            worst = np.abs(moved).max(axis=1)
            if (bad := ~(worst <= self._tolerance)).any():
                row = max(np.flatnonzero(bad), key=lambda row: ends[row])
                what = "isolation: other rows of the batch" if ends[row] == seq_len else "causality: later tokens"
                raise CandidateFailure("invalid", f"{what} change earlier scores by {worst[row]:.2g} nats")
            edges.append(moved[np.arange(real), ends - 1])
        if (drift := abs(float(np.mean(edges)))) > _DRIFT * self._tolerance:
            raise CandidateFailure("invalid", f"causality: later tokens change earlier scores by {drift:.2g} nats")

    def _check_calls(self, tokens: int) -> None:
        """Work put off until the evaluation shows as the time of its calls, of `tokens` each."""
        middle = median(self._seconds)
        trained = math.inf if self._token_seconds is None else self._token_seconds * tokens
        usual = SLOWEST * min(middle, trained)
        slack = COMPILE_SECONDS if self._device.compile else SLACK_SECONDS
        later = usual + SLACK_SECONDS
        calls = [(f"the first call for {what}", taken, usual + slack) for what, taken in self._first_seconds.items()]
        calls.append(("a later call", max(self._seconds), later))
        everything = [*self._first_seconds.values(), *self._seconds]
        calls.append(("all calls", sum(everything), len(everything) * min(usual, MEAN * middle) + slack))
        for what, taken, allowed in calls:
            if taken > allowed:
                raise CandidateFailure(
                    "invalid", f"call time: {what} took {taken:.1f} s, at most {allowed:.1f} s is allowed"
                )
