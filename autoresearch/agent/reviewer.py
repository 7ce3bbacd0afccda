"""A second, cheaper model that reads a proposal before it is trained, and may veto it.

It has a conversation of its own and sees none of the writer's: only what the writer handed in, and the same history.
What can be told exactly (the same program again) is told first, for nothing. A reviewer that can't be reached or
doesn't answer as asked vetoes nothing: an optional check must not stop a night.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from difflib import unified_diff
from typing import Any

from autoresearch.agent.claude_answer import Answer
from autoresearch.agent.claude_client import ClaudeClient, Wait, sleep_through
from autoresearch.agent.digest import digest
from autoresearch.agent.ledger import Ledger, RoundCapReached
from autoresearch.agent.precedent import precedents
from autoresearch.agent.prices import Prices
from autoresearch.agent.proposer import NOT_REVIEWED, Context, Proposal, Proposer, RoundFailed
from autoresearch.agent.quoting import RULE, head, quoted
from autoresearch.core import agent_settings
from autoresearch.core.agent_settings import Outages
from autoresearch.core.errors import AutoresearchError
from autoresearch.core.process import one_line
from autoresearch.core.workspace import TRAIN

KINDS = ("duplicate", "dead end", "cheating", "dead code", "other")
RETRIES = 1
"""Of a review at most: the candidate waits."""
TIMEOUT_SECONDS = 120.0
DIFF_BYTES = 24_000
MOST_PRECEDENTS = 5

_TASK = f"""\
You review proposals in an automatic search for better training code. Each proposal is an edit of `{TRAIN}`, which is
then trained for a fixed time and scored by `val_bpb` of held-out text; lower is better. A training run is what the
search has least of: say whether this proposal is worth one. You see the edit, what its writer expects of it, and what
the run has shown so far.

Veto it only for one of these reasons, and only where you can say exactly why:
- duplicate: the same was tried before from the same state, or it does the same as the present file.
- dead end: the experiments so far show that it can't help.
- cheating: it would look better without predicting text better, e.g. it touches what is measured, leaks later tokens to
  earlier ones, or does work outside of the clock.
- dead code: what it changes has no effect when the file is run.
- other: it can't run at all.
A bold idea that will probably fail is no reason: accept it. Judge for yourself; the writer may be wrong.

Call the tool `review` once, and say nothing else.

{RULE}"""

_TOOL: dict[str, Any] = {
    "name": "review",
    "description": "Hand in your judgement of the proposal.",
    "input_schema": {
        "type": "object",
        "properties": {
            "verdict": {"type": "string", "enum": ["accept", "veto"]},
            "kind": {"type": "string", "enum": list(KINDS), "description": "Of a veto; other where you accept."},
            "reason": {"type": "string", "description": "One or two sentences."},
        },
        "required": ["verdict", "kind", "reason"],
        "additionalProperties": False,
    },
}


class Reviewed:
    """A proposer whose proposals are read by a second model; a vetoed one becomes a proposal with a problem.

    Args:
        writer: whose proposals are reviewed; its name is kept.
        settings: the reviewer's model.
        ledger: where each review is charged, to the agent "reviewer".
        outages: how long is retried.
        prices: of models.
        problem: why a proposal would be refused anyway, "" where it wouldn't; such a one is not reviewed.
        wait: of the pauses between two tries of a request.
    """

    def __init__(
        self,
        writer: Proposer,
        settings: agent_settings.Reviewer,
        ledger: Ledger,
        outages: Outages,
        prices: Prices,
        problem: Callable[[Proposal], str] = lambda proposal: proposal.problem,
        wait: Wait = sleep_through,
    ) -> None:
        self.writer, self.name, self.paid = writer, writer.name, getattr(writer, "paid", False)
        self._settings, self._ledger, self._problem = settings, ledger, problem
        patience = replace(outages, retries=min(outages.retries, RETRIES))
        self._client = ClaudeClient(settings.model, ledger, prices, patience, TIMEOUT_SECONDS, "reviewer", wait)

    def propose(self, context: Context) -> Proposal | None:
        """The writer's proposal, as it is or vetoed. The fact `review` says what the reviewer said.

        Raises:
            RoundFailed, RoundCapReached, CostCapReached: of the writer.
        """
        proposal = self.writer.propose(context)
        if proposal is None or self._problem(proposal):
            return proposal
        try:
            verdict, said = self._review(context, proposal)
        except (RoundFailed, RoundCapReached) as failure:
            verdict, said = "accept", f"{NOT_REVIEWED}: {failure}"
        except AutoresearchError as error:
            # A cap on cost too: the proposal is paid for, and the next call will meet the cap.
            verdict, said = "accept", f"{NOT_REVIEWED}: {error.message}"
        problem = f"vetoed by the reviewer: {said}" if verdict == "veto" else ""
        facts = {**proposal.facts, "review": one_line(said)}
        return replace(proposal, problem=one_line(problem), facts=facts, cost_usd=self._ledger.round_usd)

    def _review(self, context: Context, proposal: Proposal) -> tuple[str, str]:
        """The verdict and what the reviewer said.

        Raises:
            RoundFailed, RoundCapReached, AutoresearchError: there is none.
        """
        answer = self._client.ask(
            [{"type": "text", "text": _TASK}],
            [_TOOL],
            [{"role": "user", "content": [{"type": "text", "text": _message(context, proposal)}]}],
            self._settings.max_tokens,
            purpose="review",
        )
        return _verdict(answer)


def _message(context: Context, proposal: Proposal) -> str:
    before, after = context.incumbent_source.splitlines(), proposal.source.splitlines()
    diff = "\n".join(unified_diff(before, after, f"{TRAIN}, the incumbent", f"{TRAIN}, proposed", "", "", 4, ""))
    expected = "" if proposal.expected_bpb is None else f"\nIt expects val_bpb to change by {proposal.expected_bpb:+g}."
    return "\n\n".join(
        (
            digest(context).strip(),
            "# The proposal",
            quoted("the writer's hypothesis", head(one_line(proposal.hypothesis), 500)) + expected,
            quoted("the edit, as a unified diff", head(diff, DIFF_BYTES)),
            *_known(context, proposal),
            "Is it worth a training run?",
        )
    )


def _known(context: Context, proposal: Proposal) -> Iterator[str]:
    known = [f"- #{trial.number}, {trial.verdict}: {same}" for trial, same in precedents(context, proposal.source)]
    if known:
        yield "\n".join(["Experiments that did the same in part:", *known[:MOST_PRECEDENTS]])


def _verdict(answer: Answer) -> tuple[str, str]:
    """
    Raises:
        RoundFailed: the answer isn't one use of the tool, as asked.
    """
    uses = [block for block in answer.content if block["type"] == "tool_use"]
    match [use.get("input") for use in uses if use["name"] == "review"]:
        case [{"verdict": "accept" | "veto" as verdict, "reason": str(reason), **more}] if reason.strip():
            kind = more.get("kind")
            said = f"{kind}: {reason}" if verdict == "veto" and kind in KINDS else reason
            return verdict, said
    raise RoundFailed("malformed", f"the reviewer gave no verdict (it stopped for {answer.stop_reason})")
