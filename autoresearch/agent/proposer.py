"""The seam between the loop and whatever produces the next candidate.

A Context is plain data: it can be serialised, holds no secret and no number of the test split. The loop never asks
a proposer to remember anything: all it may build on is in the Context, so a resumed run goes on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from autoresearch.core.contract import Verdict


@dataclass(frozen=True)
class Trial:
    """One decided experiment, as a proposer is told about it."""

    number: int
    verdict: Verdict
    reason: str
    val_bpb: float | None
    """Mean over the experiment's measurements; None after a failure."""
    hypothesis: str
    category: str
    parent: int
    """Number of the experiment that was the incumbent when this one was proposed."""
    constants: Mapping[str, Any]
    """Values of the hyper-parameter section."""
    commit: str
    log_tail: str = ""
    withdrawn: bool = False
    """Kept first; then fresh measurements of it were no better than what it had replaced."""


@dataclass(frozen=True)
class Context:
    """Everything a proposer may know."""

    program: str
    """Text of program.md."""
    incumbent: Trial
    incumbent_source: str
    task: Mapping[str, Any]
    device: Mapping[str, Any]
    spread: float
    """Standard deviation of val_bpb between seeds of one source."""
    history: tuple[Trial, ...]
    """All decided experiments in order, the baseline (number 0) first."""
    origins: frozenset[str]
    """`Proposal.origin` of everything proposed before in this run, refused proposals included."""
    seed: int
    """Differs for each call and is the same when a call is repeated after an interruption."""
    near_misses: tuple[Trial, ...] = ()
    """Trials of the history whose first gain wasn't borne out: perhaps good together with another change."""


@dataclass(frozen=True)
class Proposal:
    """A candidate and why it might be better."""

    source: str
    """The whole train.py."""
    hypothesis: str
    category: str = "other"
    origin: str = ""
    """Names the proposal where it comes from a finite list, e.g. a file of a script folder."""
    problem: str = ""
    """Why there is no candidate after all, e.g. a patch that doesn't apply; the loop records it and goes on."""
    cost_usd: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    """For the journal, e.g. the model's name."""


class Proposer(Protocol):
    """Produces candidates, one a call."""

    name: str

    def propose(self, context: Context) -> Proposal | None:
        """The next candidate, or None when there is none left."""
