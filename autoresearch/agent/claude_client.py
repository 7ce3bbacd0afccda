"""Requests to the Messages API by the official SDK: each attempt settled in the ledger, outages waited out.

The SDK's own retries are off: every attempt is to be a line of the journal, and none may begin without its worst case
under the caps. Sent are the model, max_tokens, system, tools and messages, nothing else: models since Opus 4.7 refuse
sampling parameters, budgets of thinking tokens and a prefilled answer, and none that thinks takes a forced tool choice.
"""

from __future__ import annotations

import email.utils
import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from autoresearch.agent.claude_answer import Answer, Malformed, public, read_answer
from autoresearch.agent.ledger import Ledger
from autoresearch.agent.prices import Prices
from autoresearch.agent.proposer import RoundFailed
from autoresearch.core.agent_settings import Outages
from autoresearch.core.amounts import dollars
from autoresearch.core.errors import AutoresearchError
from autoresearch.core.extras import install_hint
from autoresearch.core.process import one_line

if TYPE_CHECKING:
    import anthropic

LEAST_TOKENS = 4_000
"""Of an answer: below it a model that thinks first would say nothing."""
HIDDEN_TOKENS = 1_500
"""More than what the API adds to a request of its own, e.g. how tools are called (some 350 tokens)."""
MOST_BYTES = 32 * 2**20
"""Of an answer."""
TURN_TOKENS = 100
"""More than what it adds to a message: its role, and where it ends."""
_NEVER_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"})
"""Errors of the SDK's transport that come before a byte of the request is on its way."""

_GATEWAY = frozenset({502, 504, 524})
"""Statuses by which something between here and the server says that the server didn't answer it."""


class _Outage(NamedTuple):
    """An attempt that failed and may be repeated."""

    kind: str
    reason: str
    billed: bool
    """Whether it can have cost something."""
    wait: float | None = None
    """Seconds that the server asks for."""
    worst_usd: float = 0.0
    """What it can have cost."""


Wait = Callable[[float, str], None]
"""Waits so many seconds, and says what for; raises Stopped where the search ends meanwhile, see `Stops.wait`."""


def sleep_through(seconds: float, why: str) -> None:
    """The wait of a caller that has no stop conditions."""
    time.sleep(seconds)


class ClaudeClient:
    """Asks one model.

    Args:
        model: as the API names it.
        ledger: where each attempt is reserved and settled.
        prices: of models.
        outages: how often and how long is retried.
        timeout_seconds: of one request.
        agent: in whose name the ledger charges.
        wait: takes the seconds of a pause, and what it is for.
        jitter: of the pauses, a share, 0..1.
    """

    def __init__(
        self,
        model: str,
        ledger: Ledger,
        prices: Prices,
        outages: Outages,
        timeout_seconds: float,
        agent: str = "claude",
        wait: Wait = sleep_through,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.model = model
        self._ledger, self._prices, self._outages, self._agent = ledger, prices, outages, agent
        self._timeout, self._wait, self._jitter = timeout_seconds, wait, jitter

    def ask(
        self,
        system: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int,
        purpose: str = "propose",
        previous: Answer | None = None,
    ) -> Answer:
        """Send a request, again and again where the server can't be reached or is overloaded.

        Args:
            max_tokens: of the answer; less where a cap leaves no room for as many.
            purpose: for the journal.
            previous: the answer before in the same conversation, whose usage says how long most of this request is.

        Raises:
            RoundFailed: no answer came, after all retries.
            RoundCapReached, CostCapReached: see `Ledger.reserve`.
            AutoresearchError: the server refuses the request: a wrong key or model, or a request that it can't read.
            Stopped: see `Wait`.
        """
        bound = tokens_bound(system, tools, messages, previous)
        for attempt in count():
            done = self._attempt(system, tools, messages, self._affordable(bound, max_tokens), bound, purpose)
            if isinstance(done, Answer):
                return done
            if attempt >= self._outages.retries:
                tries = f", {attempt + 1} tries" if attempt else ""
                raise RoundFailed(done.kind, f"{self.model}: {done.reason}{tries}")
            self._wait(self._pause(attempt, done.wait), f"{self.model}: {done.kind}: {done.reason}{self._told(done)}")
        raise AssertionError("unreachable")

    def _attempt(
        self,
        system: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int,
        bound: int,
        purpose: str,
    ) -> Answer | _Outage:
        """One request, settled whatever comes of it."""
        sdk = self._connected()
        worst = self._prices.worst_of(self.model, bound, max_tokens)
        call = self._ledger.reserve(worst, agent=self._agent, purpose=purpose, model=self.model)
        request: dict[str, Any] = {
            "model": self.model,
            "max_tokens": max_tokens,
            "system": system,
            "messages": messages,
            **({"tools": tools} if tools else {}),
        }
        try:
            until = time.monotonic() + self._timeout
            with sdk, sdk.messages.with_streaming_response.create(**request) as response:
                body = _body(response, until)
            answer = read_answer(body, len(messages))
        except BaseException as error:
            try:
                outage = self._outage(error)
            except AutoresearchError as refused:
                # The server answered with an error instead of a message: nothing was computed, nothing is billed.
                self._ledger.settle(call, 0.0, one_line(refused.message))
                raise
            if outage is None:
                self._ledger.settle(call, worst, f"interrupted: {type(error).__name__}; charged at its worst case")
                raise
            # An error status says that no message was made, but for a gateway's, which doesn't know. Nor does a
            # connection that broke, or a wait that ended here: the message may have been made, and is billed then.
            note = "; perhaps billed: charged at its worst case" if outage.billed else ""
            self._ledger.settle(call, worst if outage.billed else 0.0, f"{outage.kind}: {outage.reason}{note}")
            return outage._replace(worst_usd=worst)
        cost = self._prices.cost_of(self.model, answer.usage)
        self._ledger.settle(call, cost, answer.stop_reason, answer.usage)
        return answer

    def _told(self, outage: _Outage) -> str:
        """What a failed attempt cost, for a person who wonders."""
        return f"; perhaps billed: {dollars(outage.worst_usd)} charged" if outage.billed and outage.worst_usd else ""

    def _affordable(self, bound: int, max_tokens: int) -> int:
        """The longest answer up to `max_tokens` that the caps leave room for, but not less than LEAST_TOKENS.

        Where that is too much, the ledger refuses it and says which cap it was.
        """
        room = self._ledger.room()
        if room is None or self._prices.worst_of(self.model, bound, max_tokens) <= room:
            return max_tokens
        low, high = min(LEAST_TOKENS, max_tokens), max_tokens
        while low < high:
            middle = (low + high + 1) // 2
            if self._prices.worst_of(self.model, bound, middle) <= room:
                low = middle
            else:
                high = middle - 1
        return low

    def _pause(self, attempt: int, asked: float | None) -> float:
        """Seconds before the next attempt: what the server asks for, else doubled each time; jitter is added."""
        outages = self._outages
        wait = outages.base_seconds * 2.0 ** min(attempt, 60) if asked is None else asked
        return float(min(wait * (1 + 0.25 * self._jitter()), outages.max_seconds))

    def _connected(self) -> anthropic.Anthropic:
        """A client of the SDK, for one request: by the next one, minutes later, its connection would be stale, and a
        request that breaks on a stale connection is charged.

        Raises:
            AutoresearchError: it isn't installed, or no key is at hand.
        """
        try:
            import anthropic
        except ImportError as error:
            raise AutoresearchError(
                f"the agent claude needs the anthropic SDK: {error}", install_hint("claude")
            ) from error
        # A server of one's own may need no key, but the SDK insists on one.
        dummy = "none" if os.environ.get("ANTHROPIC_BASE_URL") and not _credentials() else None
        try:
            return anthropic.Anthropic(api_key=dummy, max_retries=0, timeout=self._timeout)
        except (anthropic.AnthropicError, ValueError, TypeError) as error:
            raise AutoresearchError(f"the anthropic SDK can't be set up: {public(str(error))}", _KEY) from error

    def _outage(self, error: BaseException) -> _Outage | None:
        """What an error means; None where it is none of the server's or the network's.

        Raises:
            AutoresearchError: asking again would not help.
        """
        import anthropic

        if isinstance(error, Malformed):
            return _Outage("malformed", public(str(error)), billed=True)
        if isinstance(error, anthropic.APITimeoutError):
            sent = type(error.__cause__).__name__ not in _NEVER_SENT
            return _Outage("timeout", f"no answer within {self._timeout:g} s" if sent else "can't be reached", sent)
        if isinstance(error, anthropic.APIConnectionError):
            cause = error.__cause__
            if type(cause).__name__ == "LocalProtocolError":  # a header that can't be sent; it quotes the key
                raise AutoresearchError("the key can't be sent: it holds characters that no header may", _KEY) from None
            reason = f"{type(cause).__name__} {cause}" if cause else str(error)
            return _Outage("connection", public(reason), billed=type(cause).__name__ not in _NEVER_SENT)
        if isinstance(error, anthropic.APIStatusError):
            return self._status(error)
        # A TypeError is how the SDK says that it has no key at all.
        keyless = isinstance(error, TypeError) and "authentication" in str(error)
        if keyless or isinstance(error, anthropic.AnthropicError):
            raise AutoresearchError(f"the request can't be sent: {public(str(error))}", _KEY) from error
        return None

    def _status(self, error: anthropic.APIStatusError) -> _Outage:
        status, said = error.status_code, public(error.api_message or error.message)
        if status in (408, 409, 429) or status >= 500:
            kind = {429: "rate limit", 529: "overloaded", 503: "overloaded", 408: "timeout"}.get(status, "server error")
            wait = _retry_after(error.response.headers)
            return _Outage(kind, f"{status} {said}", billed=status in _GATEWAY, wait=wait)
        hint = {
            401: _KEY,
            402: "see to the billing of the account",
            403: f"this key may not use the model {self.model!r}; {_KEY}",
            404: f"is {self.model!r} the name of a model? [claude] model names another one; "
            "ANTHROPIC_BASE_URL says where it is asked for",
        }.get(status, "the request was refused as it is; see what the server says")
        raise AutoresearchError(f"{self.model}: {status} {said}", hint) from error


_KEY = "set ANTHROPIC_API_KEY to a valid key, or ANTHROPIC_BASE_URL to a server that needs none"


def tokens_bound(
    system: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    messages: Sequence[Mapping[str, Any]],
    previous: Answer | None = None,
) -> int:
    """At most so many tokens has a request: a token of text stands for one byte of UTF-8 or more.

    Of a conversation that went on from `previous` only what was added after it is counted in bytes.
    """
    if previous is None:
        return _bytes(system) + _bytes(tools) + _bytes(messages) + HIDDEN_TOKENS
    added = messages[previous.sent :]
    if added and added[0]["role"] == "assistant":
        added = added[1:]  # the previous answer itself, counted by its output
    return previous.tokens + _bytes(added) + TURN_TOKENS * (1 + len(added))


def _bytes(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _body(response: Any, until: float) -> bytes:
    """What a server sends, piece by piece: the SDK's own timeout is one of each piece, and a trickle would never end.

    Args:
        response: of the SDK, streaming.
        until: when it must have ended, by the monotonic clock.

    Raises:
        APITimeoutError, APIConnectionError: as the SDK raises them before the first piece.
        Malformed: it is longer than any message.
    """
    import anthropic

    body = bytearray()
    try:
        for piece in response.iter_bytes():
            body += piece
            if len(body) > MOST_BYTES:
                raise Malformed(f"the answer has more than {MOST_BYTES} bytes")
            if time.monotonic() > until:
                raise anthropic.APITimeoutError(request=response.http_request)
    except (anthropic.AnthropicError, Malformed):
        raise
    except Exception as error:  # of the transport, which the SDK passes on as they are
        kind = anthropic.APITimeoutError if "Timeout" in type(error).__name__ else anthropic.APIConnectionError
        raise kind(request=response.http_request) from error
    return bytes(body)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait: a number of them, or a date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "")
        try:
            seconds = float(value) * unit
        except ValueError:
            moment = email.utils.parsedate_tz(value)
            if moment is None:
                continue
            seconds = email.utils.mktime_tz(moment) - time.time()
        if seconds >= 0:  # also not-a-number ends here
            return seconds
    return None


def _credentials() -> bool:
    """Whether the SDK would find a key, a token, or where to get one."""
    names = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE", "ANTHROPIC_FEDERATION_RULE_ID")
    return any(os.environ.get(name) for name in names)
