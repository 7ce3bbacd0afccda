"""The loop: propose, try, remember; until a stop condition.

The state is what the journal adds up to. So a search that was killed goes on from where it was: a proposal is not
asked for again, a measured row is not measured again.
"""

from __future__ import annotations

from datetime import datetime

from autoresearch.agent.context import context_of
from autoresearch.agent.lab import Lab
from autoresearch.agent.proposer import Context, Proposal, Proposer
from autoresearch.agent.stop import stop_reason
from autoresearch.core.awake import kept_awake
from autoresearch.core.errors import AutoresearchError
from autoresearch.core.view import View

REFUSALS_IN_A_ROW = 100
"""After so many duplicates and unusable proposals the proposer has nothing new."""


def search(lab: Lab, proposer: Proposer, view: View) -> str:
    """Search until a stop condition.

    Args:
        lab: of the run, which is started or taken up where it was.
        proposer: produces candidates.
        view: told what is refused.

    Returns:
        The stop condition that was met, in words.

    Raises:
        AutoresearchError: the baseline fails, or the machine does.
        KeyboardInterrupt: after the stop was recorded.
    """
    reason = "a defect of autoresearch"
    try:
        with kept_awake():
            reason = _until_stop(lab, proposer, view)
    except AutoresearchError as error:
        reason = error.message
        raise
    except KeyboardInterrupt:
        reason = "interrupted"
        raise
    finally:
        lab.log("stopped", reason=reason)
    return reason


def _until_stop(lab: Lab, proposer: Proposer, view: View) -> str:
    stop, started = lab.run.settings.stop, datetime.now()
    lab.begin()
    while not (reason := stop_reason(stop, lab.history, started, datetime.now())):
        lab.settle()
        proposal = _propose(lab, proposer, view)
        if proposal is None:
            return f"no proposals are left ({proposer.name})"
        lab.finish(lab.record(proposal, proposer.name))
    return reason


def _propose(lab: Lab, proposer: Proposer, view: View) -> Proposal | None:
    """The next candidate that can be tried; None when there is none left."""
    for _ in range(REFUSALS_IN_A_ROW):
        proposal = proposer.propose(_context(lab))
        if proposal is None:
            return None
        problem = lab.problem(proposal)
        if not problem:
            return proposal
        lab.log(
            "refused",
            n=lab.history.next_number,
            reason=problem,
            hypothesis=proposal.hypothesis,
            origin=proposal.origin,
            proposer=proposer.name,
            cost_usd=proposal.cost_usd,
        )
        view.note(f"  refused: {proposal.origin or proposal.hypothesis}: {problem}")
    return None


def _context(lab: Lab) -> Context:
    run, incumbent = lab.run, lab.incumbent
    source = run.workspace.read(incumbent.commit)
    return context_of(lab.history, incumbent, source, run.settings, run.device, run.program)
