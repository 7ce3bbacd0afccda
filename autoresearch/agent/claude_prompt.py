"""What the agent claude is told: first what stays the same during a run, then what changes with each experiment.

Tools and system text are the stable part: equal bytes in each conversation, so that a cache which lives an hour, longer
than an experiment, serves them again. After them comes train.py, which changes only when something is kept, and last
the history and what is asked of this round.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autoresearch.agent.claude_tools import LOG_BYTES, TOOLS
from autoresearch.agent.digest import digest
from autoresearch.agent.proposer import Context, Trial
from autoresearch.agent.quoting import RULE, quoted
from autoresearch.core.amounts import dollars
from autoresearch.core.candidate import STANDARD_IMPORTS
from autoresearch.core.line_ends import with_newlines
from autoresearch.core.process import one_line
from autoresearch.core.registry import facts, names
from autoresearch.core.workspace import TRAIN

HOUR = {"type": "ephemeral", "ttl": "1h"}
"""Marks the end of what the next experiments' conversations begin with too."""
MINUTES = {"type": "ephemeral"}
"""Marks the end of what the next answers of this conversation begin with too; five minutes are enough for it."""

_WORK = f"""\
You are a researcher in a search for better training code. The search runs unattended on one machine: again and again a
candidate `{TRAIN}` is trained for a fixed time and scored by `val_bpb`, the bits per byte of held-out text; lower is
better. A clear gain is kept and becomes the file that the next candidates are made from; everything else is discarded.
You make the next candidate.

How this conversation goes:
1. You are shown the present `{TRAIN}` and what earlier experiments showed. Think about what limits the score now.
   `search_history` and `show_experiment` tell more; don't spend an experiment on what was tried before from the same
   state.
2. Decide on one idea and edit `{TRAIN}` with `str_replace`. No other file can be changed, and nothing can be run here.
   Each edit is exact; one that doesn't apply is given back, a few times at most.
3. Hand it in with `submit_proposal`: the hypothesis, a category, and the change of val_bpb that you expect. An answer
   without a tool call ends the conversation without a proposal, and the money that it cost is lost.

Be brief in words: only the edits and the submission count. Data, tokenizer, evaluation, seeds and the clock are outside
of `{TRAIN}` and out of your reach; a candidate that reaches for them, or that looks better only because it was measured
otherwise, is found out and counts for nothing.

{RULE}"""


def is_mending(context: Context, name: str) -> bool:
    """Whether the crash that may be mended was this proposer's own."""
    return context.mend is not None and context.mend.proposer in ("", name)


def prompt_of(context: Context, name: str) -> dict[str, list[dict[str, Any]]]:
    """`system`, `tools` and `messages` of a conversation's first request, exactly as they are sent.

    Args:
        name: of the proposer that asks.
    """
    system = [_WORK, _surroundings(context), f"# What the people who run this search say\n\n{context.program.strip()}"]
    if context.findings.strip():
        system.append(f"# What people and earlier runs learned\n\n{quoted('knowledge.md', context.findings)}")
    return {
        "system": _texts(system, HOUR),
        "tools": [dict(tool) for tool in TOOLS],
        "messages": [{"role": "user", "content": _first_message(context, name)}],
    }


def _first_message(context: Context, name: str) -> list[dict[str, Any]]:
    mending = is_mending(context, name)
    source = with_newlines(context.mend_source if mending else context.incumbent_source)
    origin = "the candidate that crashed" if mending else f"of experiment {context.incumbent.number}, the incumbent"
    file = f"# {TRAIN}, which your edits start from\n\n{quoted(f'{TRAIN}, {origin}', source)}"
    asked = [digest(context)]
    if context.guidance:
        asked.append(f"# This round\n\n{context.guidance}")
    if mending and context.mend is not None:
        asked.append(_mend(context.mend))
    if context.budget_usd is not None:
        most = dollars(context.budget_usd)
        asked.append(f"At most {most} may be spent on this proposal, all answers together; less is better.")
    asked.append("Mend it." if mending else "Make the next candidate.")
    # A file that crashed is shown once only: it isn't worth the dearer place in the cache.
    return [*_texts([file], None if mending else HOUR), *_texts(["\n\n".join(asked)], MINUTES)]


def _mend(crash: Trial) -> str:
    tried = quoted("what it tried", one_line(crash.hypothesis)[:300])
    said = quoted("reason and end of the log", f"{one_line(crash.reason)}\n{crash.log_tail}".strip(), LOG_BYTES)
    return (
        f"# Your last candidate, experiment {crash.number}, crashed\n\nIf the cause is easily mended, mend it: edit "
        f"the file above, keep the idea, and submit it with its hypothesis. If the idea is broken at heart, undo it "
        f"and try another one.\n\n{tried}\n{said}"
    )


def _surroundings(context: Context) -> str:
    """The task and the machine, which stay the same during a run."""
    device = {key: value for key, value in context.device.items() if key not in ("fetch", "reasons")}
    lines = ["# The task and the machine", "", f"task: {_json(context.task)}", f"device: {_json(device)}"]
    if (backend := context.device.get("backend")) in names():
        allowed = sorted(facts(str(backend)).ALLOWED_IMPORTS | STANDARD_IMPORTS)
        lines.append(f"{TRAIN} may import: autoresearch.core.contract, {', '.join(allowed)}; nothing else.")
    return "\n".join(lines)


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, ensure_ascii=False, default=str)


def _texts(texts: list[str], cache: Mapping[str, str] | None) -> list[dict[str, Any]]:
    """Text blocks; the cache reaches to the end of the last one."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text} for text in texts]
    if cache is not None:
        blocks[-1]["cache_control"] = dict(cache)
    return blocks
