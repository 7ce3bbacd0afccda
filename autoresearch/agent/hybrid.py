"""A mix of proposers, each with its share of the experiments.

Whose turn it is follows from who made the experiments so far, and who rests from the latest failures: both are in the
Context, so a resumed search goes on as if it had never stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from autoresearch.agent.ledger import RoundCapReached
from autoresearch.agent.proposer import Context, Proposal, Proposer, RoundFailed
from autoresearch.core.errors import UsageError
from autoresearch.core.records import Outage

MOST_BEHIND = 2.0
"""Turns that a part catches up with at most: a run may have been begun by another agent, and a part may have failed for
long."""
MOST_REST = 32
"""Experiments that a part is left out for at most, after it has failed again and again."""


class Hybrid:
    """Asks the part that is furthest behind its share; where that has nothing or fails, the next one.

    A refused proposal is a turn like any other: a part that makes nothing but duplicates doesn't hold the others up.
    A cap on cost that one part reaches ends the search, as it does without a mix.

    Args:
        parts: proposers and their shares; positive, of any sum.

    Raises:
        UsageError: two parts have the same name, so that their experiments couldn't be told apart.
    """

    def __init__(self, parts: Sequence[tuple[Proposer, float]]) -> None:
        self.parts = tuple(part for part, _ in parts)
        whole = sum(share for _, share in parts)
        self._shares = {part.name: share / whole for part, share in parts}
        if len(self._shares) < len(parts):
            twice = next(name for name, count in Counter(part.name for part in self.parts).items() if count > 1)
            raise UsageError(f"two agents of the mix are called {twice!r}", "leave one of them out")
        self.name = ",".join(f"{part.name}@{share:g}" for part, share in parts)

    @property
    def paid(self) -> bool:
        """Whether any part's calls cost something."""
        return any(getattr(part, "paid", False) for part in self.parts)

    def propose(self, context: Context) -> Proposal | None:
        """The next candidate, with the name of the part that made it; None when no part has any left.

        Raises:
            RoundFailed: of all parts that have something left, each failed.
            CostCapReached: of the part that was asked.
        """
        number, failed = _next_number(context), list[Outage]()
        for part in self._order(context):
            try:
                proposal = part.propose(_for(part, context))
            except RoundFailed as failure:
                failed.append(Outage(number, failure.kind, failure.reason, part.name))
            except RoundCapReached as cap:
                failed.append(Outage(number, "cap", str(cap), part.name))
            else:
                if proposal is not None:
                    made_by = proposal.proposer or part.name
                    return replace(proposal, proposer=made_by, outages=(*failed, *proposal.outages))
        if failed:
            told = "; ".join(f"{outage.proposer}: {outage.reason}" for outage in failed)
            raise RoundFailed(failed[0].kind, told, failed[0].proposer)
        return None

    def _order(self, context: Context) -> list[Proposer]:
        """The parts in the order in which they are asked; those that rest come last."""
        behind = self._behind(context)
        mending = context.mend.proposer if context.mend is not None else ""

        def place(part: Proposer) -> tuple[bool, bool, float]:
            return _rests(part.name, context), part.name != mending, -round(behind[part.name], 9)

        return sorted(self.parts, key=place)

    def _behind(self, context: Context) -> dict[str, float]:
        """How many turns each part is behind its share: it grows by the share each time, and falls by the turns had."""
        behind = dict(self._shares)
        for had in self._turns(context):
            for name, share in self._shares.items():
                now = behind[name] + share - (name == had)
                behind[name] = min(max(now, -MOST_BEHIND), MOST_BEHIND)
        return behind

    def _turns(self, context: Context) -> list[str]:
        """Who made the proposals of this run, in order, refused ones included; others than the parts left out."""
        made = [(trial.number, 1, trial.proposer) for trial in context.history]
        made += [(refusal.number, 0, refusal.proposer) for refusal in context.refusals]
        return [name for _, _, name in sorted(made, key=lambda turn: turn[:2]) if name in self._shares]


def _next_number(context: Context) -> int:
    return 1 + max((trial.number for trial in context.history), default=-1)


def _rests(name: str, context: Context) -> bool:
    """Whether a part failed so lately, or so often in a row, that it isn't its turn again."""
    made = [trial.number for trial in context.history if trial.proposer == name]
    made += [refusal.number for refusal in context.refusals if refusal.proposer == name]
    last = max(made, default=-1)
    failed = [outage.number for outage in context.outages if outage.proposer == name and outage.number > last]
    return bool(failed) and _next_number(context) < failed[-1] + min(MOST_REST, 2 ** min(len(failed) - 1, 60))


def _for(part: Proposer, context: Context) -> Context:
    """A crash is told as one's own to the part whose it is."""
    if context.mend is None or context.mend.proposer == part.name:
        return context
    return replace(context, mend=None, mend_source="")
