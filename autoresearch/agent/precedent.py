"""Earlier experiments that did what a proposal does, told exactly: by the edit, and by the values of constants."""

from __future__ import annotations

from collections.abc import Iterator

from autoresearch.agent.proposer import Context, Trial
from autoresearch.core.candidate import change_hash
from autoresearch.core.constants import constants, moved
from autoresearch.core.errors import UsageError


def precedents(context: Context, source: str) -> Iterator[tuple[Trial, str]]:
    """Each with what is the same, the latest first. None of them is the same program: that would have been refused."""
    change = change_hash(context.incumbent_source, source)
    try:
        values = {name: constant.value for name, constant in constants(source).items()}
    except UsageError:
        values = {}  # what is wrong with it, the lint or the measurement will say
    moves = moved(context.incumbent.constants, values) if values else {}
    for trial in reversed(context.history):
        if change and trial.change == change:
            yield trial, "the same edit, of another source"
        elif moves and trial.number and trial.parent == context.incumbent.number and not moved(trial.constants, values):
            yield trial, f"the same values of {', '.join(moves)}, from the present file, with other code"
