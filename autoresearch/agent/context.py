"""What a proposer is told about a run."""

from __future__ import annotations

from dataclasses import asdict

from autoresearch.agent.proposer import Context, Trial
from autoresearch.core import noise
from autoresearch.core.contract import DeviceInfo
from autoresearch.core.history import History, Record
from autoresearch.core.task import Settings


def _trial(record: Record) -> Trial:
    assert record.verdict is not None, "only decided experiments are told of"
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
    )


def context_of(
    history: History, incumbent: Record, source: str, settings: Settings, device: DeviceInfo, program: str
) -> Context:
    """The context of the next proposal.

    Args:
        history: of the run.
        incumbent: the best candidate so far, and `source`, its train.py.
        program: text of program.md.
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
        origins=history.origins,
        seed=noise.fresh_seed(settings.seed, history.next_number, -1 - len(history.refusals)),
    )
