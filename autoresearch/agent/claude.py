"""The agent claude: a conversation of its own for each experiment, with tools to edit train.py and look things up.

No conversation outlives its proposal: what a later one may build on is in the journal. An answer is never guessed at:
an edit that doesn't apply, a submission that can't be trained and an answer without any are given back a few times with
what was wrong; then the round has failed, and no experiment is spent on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autoresearch.agent.claude_answer import Answer
from autoresearch.agent.claude_client import ClaudeClient, Wait, sleep_through
from autoresearch.agent.claude_prompt import MINUTES, is_mending, prompt_of
from autoresearch.agent.claude_tools import Desk, Reply
from autoresearch.agent.ledger import Ledger, Usage
from autoresearch.agent.prices import Prices
from autoresearch.agent.proposer import Context, Proposal, RoundFailed
from autoresearch.agent.reader import Reader
from autoresearch.core import agent_settings
from autoresearch.core.agent_settings import Outages
from autoresearch.core.process import one_line

LAST_ANSWERS = 2
"""So many answers before the end it is said how many are left."""
_TOLD = "Nothing was submitted. Edit train.py with `str_replace` and hand it in with `submit_proposal`."


class Claude:
    """Proposes what a model of the Messages API makes of the Context.

    Args:
        settings: model and bounds of a conversation.
        ledger: where each request is reserved and settled.
        outages: how often and how long is retried.
        prices: of models.
        reader: experiments in detail; None where nothing can be looked up, as in a dry run.
        wait: of the pauses between two tries of a request.
    """

    name = "claude"
    paid = True

    def __init__(
        self,
        settings: agent_settings.Claude,
        ledger: Ledger,
        outages: Outages,
        prices: Prices,
        reader: Reader | None = None,
        wait: Wait = sleep_through,
    ) -> None:
        self._settings, self._ledger, self._reader = settings, ledger, reader
        self._client = ClaudeClient(settings.model, ledger, prices, outages, settings.timeout_seconds, self.name, wait)

    @staticmethod
    def prompt(context: Context) -> dict[str, list[dict[str, Any]]]:
        """`system`, `tools` and `messages` of the first request, exactly as they are sent."""
        return prompt_of(context, Claude.name)

    def propose(self, context: Context) -> Proposal:
        """Hold one conversation.

        Raises:
            RoundFailed: the server can't be reached, or nothing was submitted.
            RoundCapReached, CostCapReached: the next request could cost more than a cap allows.
            AutoresearchError: the server refuses the key, the model or the request.
        """
        mending = is_mending(context, self.name)
        desk = Desk(context.mend_source if mending else context.incumbent_source, context, self._reader)
        talk = _Conversation(self._client, self._settings, desk, self.prompt(context), "mend" if mending else "propose")
        return replace(talk.hold(), cost_usd=self._ledger.round_usd)


class _Conversation:
    """From the first request to a submission."""

    def __init__(
        self,
        client: ClaudeClient,
        settings: agent_settings.Claude,
        desk: Desk,
        prompt: Mapping[str, list[dict[str, Any]]],
        purpose: str,
    ) -> None:
        self._client, self._settings, self._desk, self._purpose = client, settings, desk, purpose
        self._system, self._tools, self._messages = prompt["system"], prompt["tools"], [*prompt["messages"]]
        self._answers: list[Answer] = []
        self._failures: list[str] = []
        """Edits and submissions that were given back, and why."""
        self._nudged = False

    def hold(self) -> Proposal:
        """
        Raises:
            RoundFailed: it ended without a submission.
        """
        for left in reversed(range(self._settings.tool_rounds)):
            previous = self._answers[-1] if self._answers else None
            request = (self._system, self._tools, _cached(self._messages), self._settings.max_tokens)
            answer = self._client.ask(*request, purpose=self._purpose, previous=previous)
            self._answers.append(answer)
            self._take(answer, left)
            if self._desk.submission is not None:
                return self._proposal()
        edited = "train.py was edited and never submitted" if self._desk.edited else "train.py was never edited"
        raise RoundFailed("no edit", f"{self._settings.tool_rounds} answers, and {edited}")

    def _take(self, answer: Answer, left: int) -> None:
        """Act on an answer; each reason to stop that the API knows has its branch."""
        uses = [block for block in answer.content if block["type"] == "tool_use"]
        match answer.stop_reason:
            case "tool_use" | "end_turn" | "stop_sequence":
                if uses:
                    self._use(answer, uses, left)
                else:
                    self._without_tool(answer)
            case "max_tokens":
                # Its last block may be cut off in the middle, so nothing of it is carried out or sent back.
                cut = f"answer was cut off at {answer.usage.output} tokens"
                self._nudge("max_tokens", f"the {cut}", f"Your {cut}, and nothing of it was done. Make smaller edits.")
            case "pause_turn" if said := _sendable(answer):
                self._messages += said
            case "pause_turn":
                self._without_tool(answer)
            case "refusal":
                raise RoundFailed("refusal", f"the model declined to answer {answer.detail}".strip())
            case "model_context_window_exceeded":
                raise RoundFailed("context window", "the conversation became longer than the model can read")
            case other:
                raise RoundFailed("unknown stop", f"the answer ended for a reason that isn't known: {other}")

    def _use(self, answer: Answer, uses: list[dict[str, Any]], left: int) -> None:
        """Answer all uses of tools up to a submission."""
        self._desk.begin_answer()
        results: list[dict[str, Any]] = []
        for use in uses:
            reply = self._desk.use(use["name"], use.get("input"))
            if self._desk.submission is not None:
                return
            if reply.repair:
                self._given_back(reply.text)
            results.append(_result(use["id"], reply))
        if left <= LAST_ANSWERS:
            # In the last result, not after it: text after results teaches a model to wait for more of it.
            results[-1]["content"] += f"\n\n({left} more answers; the proposal must be submitted by then)"
        self._messages += [*_sendable(answer), {"role": "user", "content": results}]

    def _without_tool(self, answer: Answer) -> None:
        if not (said := _sendable(answer)):
            self._nudge("empty", "the answer was empty", f"Your last answer was empty. {_TOLD}")
            return
        self._nudge("no edit", "the answer was words without a tool call", _TOLD, said)

    def _nudge(self, kind: str, problem: str, told: str, said: Sequence[dict[str, Any]] = ()) -> None:
        """Say once what is missing.

        Args:
            said: the message of the model that goes before it.

        Raises:
            RoundFailed: it was said before, or there is no repair left.
        """
        if self._nudged or len(self._failures) >= self._settings.repairs:
            raise RoundFailed(kind, problem)
        self._nudged = True
        self._failures.append(problem)
        self._messages += [*said, {"role": "user", "content": [{"type": "text", "text": told}]}]

    def _given_back(self, problem: str) -> None:
        self._failures.append(one_line(problem.splitlines()[0])[:200])
        if len(self._failures) > self._settings.repairs:
            count = len(self._failures)
            raise RoundFailed("no edit", f"{count} edits or submissions failed, the last: {self._failures[-1]}")

    def _proposal(self) -> Proposal:
        submission = self._desk.submission
        assert submission is not None
        usage = Usage(*(sum(kinds) for kinds in zip(*(answer.usage for answer in self._answers), strict=True)))
        facts: dict[str, Any] = {
            "model": self._answers[-1].model or self._client.model,
            "rounds": len(self._answers),
            "tokens": usage._asdict(),
            "expected_bpb": submission.expected_bpb,
        }
        if self._failures:
            facts["given_back"] = self._failures
        return Proposal(
            source=self._desk.result,
            hypothesis=submission.hypothesis,
            category=submission.category,
            expected_bpb=submission.expected_bpb,
            facts=facts,
        )


def _result(id: str, reply: Reply) -> dict[str, Any]:
    failed = {"is_error": True} if reply.error else {}
    return {"type": "tool_result", "tool_use_id": id, "content": reply.text, **failed}


def _sendable(answer: Answer) -> list[dict[str, Any]]:
    """An answer as a message to be sent back, its blocks unchanged; none where the API would not take it.

    It takes no empty text, and thinking only before something else.
    """
    blocks = [block for block in answer.content if block["type"] != "text" or str(block.get("text", "")).strip()]
    if all(block["type"] in ("thinking", "redacted_thinking") for block in blocks):
        return []
    return [{"role": "assistant", "content": blocks}]


def _cached(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, with a cache up to the last of them; the first has its own marks, four in all with the system's."""
    *before, last = messages
    if not before or last["role"] != "user":
        return messages
    *blocks, end = last["content"]
    return [*before, {**last, "content": [*blocks, {**end, "cache_control": dict(MINUTES)}]}]
