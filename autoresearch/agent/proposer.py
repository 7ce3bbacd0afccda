"""The seam between the loop and whatever produces the next candidate.

A Context is plain data: it can be serialised, holds no secret and no number of the test split. The loop never asks
a proposer to remember anything: all it may build on is in the Context, so a resumed run goes on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from autoresearch.core.contract import Verdict
from autoresearch.core.records import Outage, Refusal

NOT_REVIEWED = "not reviewed"
"""So begins the fact `review` of a proposal that a reviewer should have read and couldn't."""


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
    proposer: str = ""
    """Who proposed it: the name of a proposer."""
    change: str = ""
    """Equal for trials that made the same edit, also of different sources; "" where that isn't known."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """Of its latest measurement that went well: steps, tokens, seconds, parameters, memory, utilisation."""
    loss_curve: tuple[tuple[float, float], ...] = ()
    """(share of the budget, training loss in nats per token) of that measurement, at most 100 points."""


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
    refusals: tuple[Refusal, ...] = ()
    """Proposals that were turned down before any training, in order."""
    outages: tuple[Outage, ...] = ()
    """Rounds that gave no proposal, in order."""
    findings: str = ""
    """Text of knowledge.md: what people and earlier runs learned."""
    guidance: str = ""
    """What the loop asks of this round beyond the ordinary, e.g. something bolder after many discards."""
    mend: Trial | None = None
    """A crash of the proposer's own latest candidate that it may mend now; `mend_source` is that train.py."""
    mend_source: str = ""
    budget_usd: float | None = None
    """Dollars that this proposal may cost at most; None where no cap is set."""

    def to_json(self) -> dict[str, Any]:
        """The same as JSON takes it."""
        return {**asdict(self), "origins": sorted(self.origins)}


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
    expected_bpb: float | None = None
    """By how much the proposer expects val_bpb to change; negative is better."""
    cost_usd: float = 0.0
    """What its calls cost; told here, charged by the ledger."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """For the journal, e.g. the model's name."""
    proposer: str = ""
    """Of a mix, the name of the part that made it; "" is the proposer that was asked."""
    outages: tuple[Outage, ...] = ()
    """Of a mix, the parts that were asked before that one and failed."""
    listed: bool = False
    """Comes from a finite list: however many of them are refused in a row, the next one may be good."""


class RoundFailed(Exception):
    """No proposal came of a call, and no candidate is to blame: an outage, a refusal, an answer without an edit.

    The loop journals it, waits, and asks again; see `core.agent_settings.Outages`.
    """

    def __init__(self, kind: str, reason: str, proposer: str = "") -> None:
        """
        Args:
            kind: one word for the journal, e.g. "overloaded", "timeout", "refusal", "no edit".
            reason: in words, one line.
            proposer: of a mix, the name of the part that failed; "" is the proposer that was asked.
        """
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.proposer = proposer


class Proposer(Protocol):
    """Produces candidates, one a call.

    One whose calls cost something says so with an attribute `paid = True`: it is given up sooner when its proposals
    are refused in a row, and may mend its own crashes (`Context.mend`). A mix of proposers holds them in `parts`.
    """

    name: str

    def propose(self, context: Context) -> Proposal | None:
        """The next candidate, or None when there is none left.

        Raises:
            RoundFailed: see there.
            CostCapReached: the next call could cost more than a cap allows.
            Stopped: a stop condition was met while it waited; see `agent.stop`.
        """
