"""What the Messages API answers: read, or found to be no message; and what of it may be shown."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass
from typing import Any

from autoresearch.agent.ledger import Usage
from autoresearch.core.process import one_line

MOST_TOKENS = 10**8
"""Of one kind in one answer: what is more is no count."""


@dataclass(frozen=True)
class Answer:
    """What came back."""

    content: list[dict[str, Any]]
    """Blocks as they were served, to be sent back unchanged, thinking included."""
    stop_reason: str
    usage: Usage
    model: str
    """That answered, as the server names it."""
    sent: int
    """Messages in the request."""
    detail: str = ""
    """Why it stopped, where the server says more, e.g. of a refusal."""

    @property
    def tokens(self) -> int:
        """Of the request and the answer together."""
        return sum(self.usage)


class Malformed(Exception):
    """An answer with status 200 that isn't a message."""


def read_answer(body: bytes, sent: int) -> Answer:
    """Read a message.

    Raises:
        Malformed: it is none, doesn't say what it used, or holds what can't be sent back: half a character of UTF-16,
            a number that isn't finite.
    """
    try:
        message = json.loads(body, parse_constant=_finite, parse_float=_finite)
        json.dumps(message, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        told = public(body[:10_000].decode("utf-8", "replace"))[:100]
        raise Malformed(f"the answer is not JSON that can be used: {told!r}") from error
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list) or not all(
        isinstance(b, dict) and isinstance(b.get("type"), str) for b in content
    ):
        raise Malformed("the answer is no message: it has no list of content blocks")
    if any(b["type"] == "tool_use" and not all(isinstance(b.get(k), str) for k in ("id", "name")) for b in content):
        raise Malformed("the answer uses a tool without an id or a name")
    details = message.get("stop_details")
    detail = "" if not isinstance(details, dict) else f"{details.get('category') or ''}: {details.get('explanation')}"
    return Answer(
        content=content,
        stop_reason=public(str(message.get("stop_reason"))),
        usage=_usage(message.get("usage")),
        model=public(str(message.get("model", ""))),
        sent=sent,
        detail=public(detail),
    )


def _usage(data: Any) -> Usage:
    def tokens(source: Any, name: str) -> int:
        value = source.get(name) if isinstance(source, dict) else None
        if value is None:
            return 0
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_TOKENS:
            raise Malformed(f"the answer's usage has {name} {public(str(value))[:20]}")
        return value

    if not isinstance(data, dict) or "input_tokens" not in data or "output_tokens" not in data:
        raise Malformed("the answer doesn't say how many tokens it used")
    written = tokens(data, "cache_creation_input_tokens")
    # Where the lifetimes aren't told apart, all is taken for the dearer one.
    short = min(written, tokens(data.get("cache_creation"), "ephemeral_5m_input_tokens"))
    return Usage(
        input=tokens(data, "input_tokens"),
        output=tokens(data, "output_tokens"),
        cache_write=short,
        cache_write_hour=written - short,
        cache_read=tokens(data, "cache_read_input_tokens"),
    )


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no number")
    return number


def public(text: str) -> str:
    """What a server said, in one line, without a key that it may have repeated."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        if secret := os.environ.get(name):
            # An error may quote it by its repr, where a control character is an escape.
            for part in sorted({secret, *re.split(r"[\x00-\x20\x7f]+", secret)} - {""}, key=len, reverse=True):
                text = text.replace(part, "…")
    return one_line(text)[:300]
