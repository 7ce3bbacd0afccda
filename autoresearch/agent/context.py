"""What a proposer is told about a run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from autoresearch.agent.proposer import Context, Trial
from autoresearch.agent.quoting import quoted
from autoresearch.core import noise
from autoresearch.core.contract import DeviceInfo
from autoresearch.core.history import History
from autoresearch.core.process import one_line
from autoresearch.core.records import Record
from autoresearch.core.task import Settings

BOLD_AFTER = 10
"""Experiments in a row without a gain after which something bolder is asked for."""
MENDS = 2
"""Tries to mend the crash of one idea."""
_MEASURED = (
    *("steps", "tokens", "tokens_per_second", "train_seconds", "setup_seconds", "eval_seconds"),
    *("num_params", "peak_memory_bytes", "mfu"),
)


def _trial(record: Record) -> Trial:
    assert record.verdict is not None, "only decided experiments are told of"
    good = next((result for result in reversed(record.results) if result.status == "ok"), None)
    return Trial(
        number=record.number,
        verdict=record.verdict,
        reason=record.reason,
        val_bpb=record.val_bpb,
        withdrawn=record.withdrawn is not None,
        hypothesis=record.hypothesis,
        category=record.category,
        parent=record.parent or 0,
        constants=record.constants,
        commit=record.commit,
        log_tail=record.results[-1].log_tail if record.failed and record.results else "",
        proposer=record.proposer,
        change=record.change_hash,
        measured={} if good is None else {name: getattr(good, name) for name in _MEASURED},
        loss_curve=() if good is None else good.loss_curve,
    )


def context_of(
    history: History,
    incumbent: Record,
    source: str,
    settings: Settings,
    device: DeviceInfo,
    program: str,
    *,
    mend: tuple[Record, str] | None = None,
    **more: Any,
) -> Context:
    """The context of the next proposal.

    Args:
        history: of the run.
        incumbent: the best candidate so far, and `source`, its train.py.
        program: text of program.md.
        mend: a crash that may be mended, and its train.py.
        more: further fields of Context.
    """
    return Context(
        program=program,
        incumbent=_trial(incumbent),
        incumbent_source=source,
        task=asdict(settings.task),
        device=asdict(device),
        spread=noise.spread_of(history, settings.rules).value,
        history=tuple(_trial(r) for r in history.experiments.values() if r.verdict is not None),
        near_misses=tuple(_trial(r) for r in history.near_misses),
        refusals=tuple(history.refusals),
        outages=tuple(history.outages),
        origins=history.origins,
        seed=noise.fresh_seed(settings.seed, history.next_number, -1 - len(history.refusals)),
        guidance=guidance_of(history),
        mend=_trial(mend[0]) if mend else None,
        mend_source=mend[1] if mend else "",
        **more,
    )


def guidance_of(history: History) -> str:
    """What is asked of the next proposal beyond the ordinary; "" where nothing is."""
    asked = []
    if history.refusals and (last := history.refusals[-1]).number == history.next_number:
        reason = quoted("why", one_line(last.reason)[:300])
        asked.append(f"The last proposal was refused before any training. Make another one.\n{reason}")
    if (dry := _without_gain(history)) >= BOLD_AFTER:
        asked.append(
            f"The last {dry} experiments gave no gain. Small variations of what was tried won't help: try something "
            "bolder, from a part of train.py that has been left alone, or combine near misses."
        )
    return "\n".join(asked)


def _without_gain(history: History) -> int:
    """Experiments since the last one that was kept and stands."""
    decided = [record for record in history.experiments.values() if record.verdict is not None]
    return next((i for i, record in enumerate(reversed(decided)) if record.kept), len(decided))


def crash_to_mend(history: History, proposers: Collection[str]) -> Record | None:
    """The latest experiment, where it crashed and its proposer may try to mend it.

    Args:
        proposers: names of those who mend. What was too slow, diverged or broke the contract is no slip to be mended.
    """
    decided = [record for record in history.experiments.values() if record.verdict is not None]
    last = decided[-1] if decided else None
    if last is None or last.verdict != "crash" or last.proposer not in proposers:
        return None
    idea = idea_of(last)
    tries = sum(idea_of(record) == idea and record.number != idea for record in decided)
    return last if tries < MENDS else None


def idea_of(record: Record) -> int:
    """Number of the experiment that a chain of mends began with; its own where it mends nothing."""
    number: int | None = record.facts.get("mend_of")
    return record.number if number is None else number
