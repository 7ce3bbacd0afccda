"""What a coding agent's output tells of its call: dollars, tokens, its last words.

Two forms are known: that of `claude -p --output-format json` or `stream-json` (an object of the type "result" with
`total_cost_usd`, `usage` and `result`), and that of `codex exec --json` (events "turn.completed" with `usage`, and
"item.completed" with the agent's message). Any other tool may print a line of JSON with `total_cost_usd` too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autoresearch.agent.ledger import Usage
from autoresearch.core.agent_settings import MOST_USD


@dataclass(frozen=True)
class Reported:
    """Of one call."""

    usd: float | None = None
    """None where the tool doesn't tell."""
    usage: Usage | None = None
    text: str = ""
    """The agent's last message."""
    error: str = ""
    """What the tool says of its own failure."""


def reported(stdout: str) -> Reported:
    """Read a command's standard output; what can't be read tells nothing."""
    usd, usage, text, error = None, None, "", ""
    for event in _objects(stdout):
        usd = _dollars(event.get("total_cost_usd"), usd)
        match event:
            case {"type": "result"}:
                text = _text(event.get("result")) or text
                usage = _claude_usage(event.get("usage")) or usage
                if event.get("is_error"):
                    error = _text(event.get("result")) or _text(event.get("subtype")) or "it says that it failed"
            case {"type": "turn.completed", "usage": dict(used)}:
                usage = _sum(usage, _codex_usage(used))
            case {"type": "turn.failed", "error": dict(failed)}:
                error = _text(failed.get("message")) or "its turn failed"
            case {"type": "item.completed", "item": {"type": "agent_message", "text": str(said)}}:
                text = said
    return Reported(usd, usage, text, error)


def _objects(stdout: str) -> Iterator[Mapping[str, Any]]:
    """Of one document, or of each line that is one."""
    whole = _parsed(stdout)
    for value in whole if isinstance(whole, list) else [whole]:
        if isinstance(value, dict):
            yield value
    if whole is None:
        for line in stdout.splitlines():
            if line.lstrip().startswith("{") and isinstance(value := _parsed(line), dict):
                yield value


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _dollars(value: Any, known: float | None) -> float | None:
    """The latest amount: a tool that tells it several times counts up."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 <= value <= MOST_USD else known


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(used: Mapping[str, Any], name: str) -> int:
    value = used.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _claude_usage(used: Any) -> Usage | None:
    if not isinstance(used, dict):
        return None
    return Usage(
        input=_count(used, "input_tokens"),
        output=_count(used, "output_tokens"),
        cache_write=_count(used, "cache_creation_input_tokens"),
        cache_read=_count(used, "cache_read_input_tokens"),
    )


def _codex_usage(used: Mapping[str, Any]) -> Usage:
    """Its input counts the cached part too, its output the reasoning."""
    cached = min(_count(used, "cached_input_tokens"), _count(used, "input_tokens"))
    return Usage(input=_count(used, "input_tokens") - cached, output=_count(used, "output_tokens"), cache_read=cached)


def _sum(one: Usage | None, other: Usage) -> Usage:
    return other if one is None else Usage(*map(sum, zip(one, other, strict=True)))
