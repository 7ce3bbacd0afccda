"""What a journal's events tell of: experiments, measurements, refused proposals, calls and failed rounds, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from autoresearch.core.contract import Result, Verdict


class Started(NamedTuple):
    """A measurement that began."""

    k: int
    seed: int
    mark: str
    """By which its processes are found after the search was killed."""


class Refusal(NamedTuple):
    """A proposal that was turned down before any training."""

    number: int
    """That it would have had."""
    reason: str
    hypothesis: str
    origin: str
    proposer: str = ""


class Charge(NamedTuple):
    """What one call cost, or may cost at most while it is under way."""

    time: datetime
    usd: float
    agent: str
    n: int
    """Number of the experiment that it was to propose."""


class Outage(NamedTuple):
    """A round that gave no proposal."""

    number: int
    """Of the experiment that it was to propose."""
    kind: str
    reason: str
    proposer: str


class Prior(NamedTuple):
    """What earlier runs measured of the spread under one comparability key."""

    square: float
    """Sum of squared deviations from the mean of each group, in (bits per byte)²."""
    dof: int
    """Degrees of freedom."""


class Calibrating(NamedTuple):
    """A calibration that is under way, or was cut off."""

    number: int
    """Of the experiment that is measured."""
    key: str
    """Comparability key."""
    first: int
    """k of its first measurement."""
    points: Mapping[int, float] = {}
    """Score in bits per byte by fixed number of steps."""


class Counts(NamedTuple):
    """All without the baseline."""

    experiments: int
    """Decided ones."""
    measurements: int
    kept: int
    discarded: int
    """Withdrawn keeps among them."""
    failed: int


@dataclass(frozen=True)
class Record:
    """One experiment as far as it got."""

    number: int
    blob: str
    """Object name of its train.py, readable before there is a commit."""
    hypothesis: str
    category: str
    proposer: str
    origin: str
    source_hash: str
    normalized_hash: str
    constants: Mapping[str, Any]
    diff_lines: int
    parent: int | None
    """Number of the incumbent that it was made from; None for the baseline."""
    code_size: int = 0
    """Lines of code; 0 where an earlier version wrote the journal, so that no tie is decided by it."""
    change_hash: str = ""
    """Equal for the same edit of another source, see `candidate.change_hash`; "" where there is none."""
    commit: str = ""
    """"" while there is none."""
    unfinished: Started | None = None
    """The measurement that was started and not measured."""
    results: tuple[Result, ...] = ()
    """By k."""
    places: tuple[int, ...] = ()
    """Of each of them, its place among all results of the run."""
    verdict: Verdict | None = None
    """None while it is undecided."""
    reason: str = ""
    val_bpb: float | None = None
    """That was decided on; None after a failure."""
    value: float | None = None
    """What a kept experiment is worth when the next is judged against it; the score where nothing else is said."""
    value_n: int = 0
    """Fresh measurements behind `value`."""
    value_key: str = ""
    """Conditions of the measurements behind `value`, see `History.conditions`."""
    decided_key: str = ""
    """Conditions of the measurements that it was judged by."""
    near_miss: bool = False
    """Discarded, though its first score was an unclear gain: perhaps good together with another one."""
    withdrawn: str | None = None
    """Why a keep was taken back."""
    proposed_at: datetime | None = field(default=None, compare=False)
    decided_at: datetime | None = field(default=None, compare=False)
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Of the proposal, e.g. the model, or `mend_of`: the experiment whose crash it mends."""

    @property
    def kept(self) -> bool:
        return self.verdict == "keep" and self.withdrawn is None

    @property
    def failed(self) -> bool:
        return self.verdict not in (None, "keep", "discard")
