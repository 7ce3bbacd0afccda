"""The rule applied to a run: the next step that its history asks for, and a journal replayed by the rule alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autoresearch.core import noise
from autoresearch.core.decide import Anchor, Decide, Measure, Propose, Step, Withdraw, next_step
from autoresearch.core.history import History

DERIVED = frozenset({"decided", "anchored", "withdrawn"})
"""Events that follow from those before them by the rule."""


def step_of(history: History) -> Step:
    """The next step of a run, by `core.decide` under its own thresholds and its measured spread."""
    return next_step(history.candidates, noise.spread_of(history, history.rules).value, history.rules)


def event_of(step: Decide | Anchor | Withdraw, history: History) -> dict[str, Any]:
    """The event that records a step, before it is applied to the history."""
    match step:
        case Decide():
            spread = noise.spread_of(history, history.rules).value
            return {
                "event": "decided",
                "n": step.number,
                "verdict": step.verdict,
                "reason": step.reason,
                "val_bpb": step.val_bpb,
                "z": step.z,
                "spread": spread,
                "value": step.value,
                "value_n": step.value_n,
                "near_miss": step.near_miss,
            }
        case Anchor():
            return {"event": "anchored", "n": step.number, "value": step.value, "value_n": step.value_n}
        case Withdraw():
            return {"event": "withdrawn", "n": step.number, "reason": step.reason}


def replay(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The verdicts, anchors and withdrawals that the rule gives for the measurements of a journal.

    Args:
        events: of a journal. Its own derived events are left out, but for the refusals of the lint, which no
            measurement says.

    Returns:
        Derived events in order, without times. They equal the journal's where the same rule wrote it.

    Raises:
        DataError: the measurements can't follow from the rule's steps.
    """
    history, derived = History("the replay"), list[dict[str, Any]]()
    for event in events:
        given = event["event"] not in DERIVED or event.get("lint", False)
        # Whatever was cut off between a measurement and what follows from it was done after the run was taken up.
        if not given or event["event"] in ("proposed", "started"):
            while not isinstance(step := step_of(history), Measure | Propose):
                made = event_of(step, history)
                history.apply(made)
                derived.append(made)
        if given:
            history.apply(event)
    return derived
