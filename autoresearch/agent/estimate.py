"""What a night of proposals by a model is going to cost, roughly, from the first request of one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from autoresearch.agent.ledger import Usage
from autoresearch.agent.prices import Prices
from autoresearch.core.amounts import dollars
from autoresearch.core.history import History
from autoresearch.core.task import Settings

NIGHT_HOURS = 8.0
BYTES_PER_TOKEN = 3.0
"""Of prompts that are half Python; a little less than what is usual, so that the estimate is rather too high."""
ANSWERS = 4
"""Of the model in one proposal: a look into the history, an edit or two, the submission."""
OUTPUT_TOKENS = 6_000
"""Of one proposal, thinking included."""
DIGEST_TOKENS = 4_000
"""Of the history as it is told in the midst of a run; at its beginning there is little to tell."""
RESULT_TOKENS = 500
"""Of what the tools say to one answer."""
PROPOSAL_SECONDS = 60.0
BESIDES_TRAINING_SECONDS = 30.0
"""Set-up and scoring of one measurement, where none is known yet."""
MEASUREMENTS = 1.3
"""Of one experiment, repeats included, where none is known yet."""


class Size(NamedTuple):
    """Of a request, in tokens."""

    stable: int
    """Up to the last mark of the cache that lives an hour: mostly the same from one proposal to the next."""
    rest: int


class Night(NamedTuple):
    """What is to be expected of some hours of search."""

    hours: float
    experiments: float
    seconds: float
    """Of one experiment, its proposal included."""
    measured: bool
    """Whether that comes from this run's measurements."""


def night_of(settings: Settings, history: History) -> Night:
    """How many experiments a night holds."""
    stop, task = settings.stop, settings.task
    hours = stop.max_hours or NIGHT_HOURS
    measured = [result.total_seconds for result in history.results]
    seconds = MEASUREMENTS * (task.train_seconds + BESIDES_TRAINING_SECONDS)
    if measured:
        seconds = sum(measured) / max(1, len(history.experiments))
    seconds += PROPOSAL_SECONDS
    experiments = hours * 3600 / seconds
    return Night(hours, min(experiments, stop.max_experiments or experiments), seconds, bool(measured))


def size_of(request: Mapping[str, Any]) -> Size:
    """Tokens of a request, estimated from its bytes."""
    stable = total = 0
    for block in _blocks(request):
        total += len(json.dumps(block, ensure_ascii=False).encode("utf-8", "replace"))
        if block.get("cache_control", {}).get("ttl") == "1h":
            stable = total
    return Size(round(stable / BYTES_PER_TOKEN), round((total - stable) / BYTES_PER_TOKEN))


def _blocks(request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """In the order in which a cache sees them."""
    yield from request.get("tools", ())
    yield from _content(request.get("system", ""))
    for message in request["messages"]:
        yield from _content(message["content"])


def _content(content: Any) -> list[Mapping[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def proposal_cost(prices: Prices, model: str, size: Size) -> float:
    """US dollars of one proposal: its first request writes the rest to the cache, each further one what was added."""
    output = OUTPUT_TOKENS // ANSWERS
    added = output + RESULT_TOKENS
    rest = max(size.rest, DIGEST_TOKENS)
    answers = [Usage(output=output, cache_write=rest, cache_read=size.stable)]
    for i in range(ANSWERS - 1):
        answers.append(Usage(output=output, cache_write=added, cache_read=size.stable + rest + i * added))
    return sum(prices.cost_of(model, usage) for usage in answers)


def estimate_text(
    settings: Settings, history: History, request: Mapping[str, Any], prices: Prices, share: float
) -> str:
    """The estimate in words, with what is assumed.

    Args:
        request: the first one of the next proposal, as it is sent.
        share: of the proposals that come from this model, 0..1.
    """
    night, size, model = night_of(settings, history), size_of(request), str(request["model"])
    lines = [
        night_text(settings, night, share, model),
        f"one proposal: a prompt of about {sum(size):,} tokens, {size.stable:,} of them cached for an hour; "
        f"assumed: {DIGEST_TOKENS:,} tokens of history later in the run, {ANSWERS} answers, "
        f"{OUTPUT_TOKENS:,} tokens of output, thinking included",
    ]
    if prices.of(model) is None:
        return "\n".join([*lines, f"no price is known for {model}: [claude] prices names a file of them"])
    cost = proposal_cost(prices, model, size)
    first = prices.cost_of(model, Usage(cache_write_hour=size.stable))
    total = first + night.experiments * share * cost
    lines.append(f"estimated: {dollars(cost)} a proposal, {dollars(total)} a night{_capped(settings, total)}")
    return "\n".join(lines)


def command_text(settings: Settings, history: History, name: str, share: float) -> str:
    """The same for a command, whose cost is what the settings say."""
    night, cost = night_of(settings, history), settings.command.estimate_usd
    text = night_text(settings, night, share, name)
    if not cost:
        return f"{text}\nwhat a call costs isn't known: [command] estimate_usd says it"
    total = night.experiments * share * cost
    return f"{text}\nestimated: {cost:.3f} dollars a proposal, {total:.2f} dollars a night{_capped(settings, total)}"


def night_text(settings: Settings, night: Night, share: float, proposer: str) -> str:
    """How many experiments there will be, and how many of them are this proposer's."""
    known = (
        "as measured in this run"
        if night.measured
        else f"{settings.task.train_seconds:g} s of training and, assumed, {BESIDES_TRAINING_SECONDS:g} s besides it, "
        f"{MEASUREMENTS} measurements"
    )
    return (
        f"a night of {night.hours:g} h: about {night.experiments:.0f} experiments of {night.seconds:.0f} s ({known}; "
        f"{PROPOSAL_SECONDS:g} s for a proposal), {night.experiments * share:.0f} of them proposed by {proposer}"
    )


def _capped(settings: Settings, total: float) -> str:
    caps = [cap for cap in (settings.stop.max_cost, settings.caps.day_usd) if cap]
    if not caps:
        return "; no cap is set: --max-cost USD sets one"
    return f"; the cap of {dollars(min(caps))} ends it before" if min(caps) < total else ""
