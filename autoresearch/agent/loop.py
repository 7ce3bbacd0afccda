"""The loop: propose, try, remember; until a stop condition.

The state is what the journal adds up to. So a search that was killed goes on from where it was: a proposal is not
asked for again, a measured row is not measured again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from autoresearch.agent.context import context_of, crash_to_mend, idea_of
from autoresearch.agent.instructions import KNOWLEDGE, Instructions
from autoresearch.agent.lab import Lab
from autoresearch.agent.ledger import Ledger, RoundCapReached
from autoresearch.agent.proposer import NOT_REVIEWED, Context, Proposal, Proposer, RoundFailed
from autoresearch.agent.stop import Ending, Stopped, Stops, capped
from autoresearch.core.awake import kept_awake
from autoresearch.core.errors import AutoresearchError, CostCapReached
from autoresearch.core.process import one_line
from autoresearch.core.standing import standing_of
from autoresearch.core.view import View, note_of

REFUSALS_IN_A_ROW = 100
"""After so many duplicates and unusable proposals the proposer has nothing new."""
PAID_REFUSALS_IN_A_ROW = 5
"""After so many, where each costs something, the round has failed."""
SHOWN = frozenset({"run", "resumed", "decided", "anchored", "withdrawn", "charged", "stopped"})
"""Events that change where the search stands."""


def search(
    lab: Lab, proposer: Proposer, view: View, ledger: Ledger | None = None, stops: Stops | None = None
) -> Ending:
    """Search until a stop condition, a cap on cost, or too many failed rounds in a row.

    Args:
        lab: of the run, which is started or taken up where it was.
        proposer: produces candidates.
        view: told what is refused, and of outages.
        ledger: that the proposer charges its calls to; None makes one.
        stops: by which the proposer waits; None makes them of the run's settings.

    Returns:
        Why it ended.

    Raises:
        AutoresearchError: the baseline fails, or the machine does.
        KeyboardInterrupt, BrokenPipeError: after the stop was recorded; nobody reads what the view writes.
    """
    reason = "a defect of autoresearch"
    try:
        with kept_awake():
            settings = lab.run.settings
            ledger = ledger or Ledger(lab.log, lab.history, settings.caps, settings.stop.max_cost)
            stops = stops or Stops(settings.stop, lab.history, view.note)
            ending = _Search(lab, proposer, view, ledger, stops).until_stop()
            reason = ending.reason
    except AutoresearchError as error:
        reason = error.message
        raise
    except KeyboardInterrupt:
        reason = "interrupted"
        raise
    except BrokenPipeError:  # of the view: every other pipe is looked after where it is
        reason = "the output was closed"
        raise
    finally:
        lab.log("stopped", reason=reason)
    return ending


class _Search:
    """One process's part of a search."""

    def __init__(self, lab: Lab, proposer: Proposer, view: View, ledger: Ledger, stops: Stops) -> None:
        self._lab, self._proposer, self._view, self._ledger, self._stops = lab, proposer, view, ledger, stops
        self._refused = 0
        """Proposals in a row."""
        run = lab.run
        knowledge = run.workspace.directory / KNOWLEDGE
        self._instructions = Instructions(run.program, run.program_path, knowledge, view.note)
        lab.on_change = self._changed

    def _changed(self, event: str) -> None:
        if event in SHOWN:
            settings, elsewhere = self._lab.run.settings, self._ledger.elsewhere
            standing = standing_of(self._lab.history, settings.stop, settings.caps, self._stops.started, elsewhere)
            self._view.standing(standing)

    def until_stop(self) -> Ending:
        self._lab.begin()
        while (ending := self._stops.met()) is None:
            self._lab.settle()
            try:
                if (last := self._round()) is not None:
                    return last
            except RoundFailed as failure:
                ending = self._failed(failure.kind, failure.reason, failure.proposer)
            except RoundCapReached as cap:
                ending = self._failed("cap", str(cap))
            except CostCapReached as cap:
                return capped(cap)
            except Stopped as stopped:
                return stopped.ending
            if ending is not None:
                return ending
        return ending

    def _round(self) -> Ending | None:
        """One proposal, and what becomes of it; how the search ended where there is none left."""
        context = self._context()
        proposal = self._proposer.propose(context)
        if proposal is None:
            return self._nothing_left()
        self._say(proposal)
        proposal = replace(proposal, cost_usd=self._ledger.round_usd, facts=self._facts(proposal, context))
        if problem := self._lab.problem(proposal):
            return self._refuse(proposal, problem)
        self._refused = 0
        self._lab.finish(self._lab.record(proposal, proposal.proposer or self._proposer.name))
        return None

    def _say(self, proposal: Proposal) -> None:
        """Write down what went wrong on the way to a proposal that was made all the same."""
        for outage in proposal.outages:
            told = {"kind": outage.kind, "reason": one_line(outage.reason), "proposer": outage.proposer}
            self._lab.log("failed", n=self._lab.history.next_number, **told)
            self._view.note(f"  {outage.proposer}: no proposal: {outage.kind}: {told['reason']}; another agent goes on")
        review = str(proposal.facts.get("review", ""))
        if review.startswith(NOT_REVIEWED):
            self._view.note(f"  {review}")

    def _nothing_left(self) -> Ending:
        return Ending(f"no proposals are left ({self._proposer.name})")

    def _refuse(self, proposal: Proposal, problem: str) -> Ending | None:
        told = {
            "n": self._lab.history.next_number,
            "reason": problem,
            "hypothesis": proposal.hypothesis,
            "origin": proposal.origin,
            "proposer": proposal.proposer or self._proposer.name,
            "cost_usd": proposal.cost_usd,
        }
        self._lab.log("refused", **told)
        self._view.note(note_of({"event": "refused", **told}, self._lab.history))
        self._refused += not proposal.listed
        if any(paid for _, paid in parts_of(self._proposer)):
            if self._refused >= PAID_REFUSALS_IN_A_ROW:
                raise RoundFailed("refused", f"{self._refused} proposals in a row; the last: {problem}")
            return None
        return self._nothing_left() if self._refused >= REFUSALS_IN_A_ROW else None

    def _failed(self, kind: str, reason: str, proposer: str = "") -> Ending | None:
        """Write a failed round down and wait; or end the search after too many in a row."""
        history, outages = self._lab.history, self._lab.run.settings.outages
        self._refused, reason = 0, one_line(reason)
        proposer = proposer or self._proposer.name
        self._lab.log("failed", n=history.next_number, kind=kind, reason=reason, proposer=proposer)
        rounds, told = history.failed_rounds, f"no proposal: {kind}: {reason.rstrip('.')}"
        if rounds >= outages.rounds:
            return Ending(
                f"{rounds} rounds in a row gave {told}",
                AutoresearchError.exit_code,
                "run the same command again to go on, or choose another --agent",
            )
        seconds = min(outages.max_seconds, outages.pause_seconds * 2.0 ** min(rounds - 1, 60)) * random.uniform(
            0.75, 1.0
        )
        self._view.note(f"  {told}; trying again in {seconds:.0f} s (failed round {rounds} of {outages.rounds})")
        return self._stops.pause(seconds)

    def _context(self) -> Context:
        lab, run, incumbent = self._lab, self._lab.run, self._lab.incumbent
        self._ledger.begin_round()
        crash = crash_to_mend(lab.history, [name for name, paid in parts_of(self._proposer) if paid])
        return context_of(
            lab.history,
            incumbent,
            run.workspace.read(incumbent.commit),
            run.settings,
            run.device,
            self._instructions.program,
            mend=None if crash is None else (crash, run.workspace.read(crash.commit)),
            findings=self._instructions.knowledge,
            budget_usd=self._ledger.room(),
        )

    def _facts(self, proposal: Proposal, context: Context) -> dict[str, object]:
        """The proposal's, and the experiment that it mends."""
        facts = dict(proposal.facts)
        crash = context.mend
        if crash is not None and crash.proposer == (proposal.proposer or self._proposer.name):
            facts.setdefault("mend_of", idea_of(self._lab.history.experiments[crash.number]))
        return facts


def parts_of(proposer: Proposer) -> Iterator[tuple[str, bool]]:
    """Name of a proposer and whether it costs something; of a mix, those of each of its parts."""
    for part in getattr(proposer, "parts", (proposer,)):
        yield part.name, getattr(part, "paid", False)
