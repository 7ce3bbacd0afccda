"""What a proposer may look up about one experiment besides what its Context says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import Protocol

from autoresearch.core.history import History
from autoresearch.core.workspace import TRAIN, Workspace

CURVE_POINTS = 10


@dataclass(frozen=True)
class Shown:
    """One experiment in detail."""

    diff: str = ""
    """Against the incumbent that it was made from; "" for the baseline."""
    curve: tuple[tuple[float, float], ...] = ()
    """(share of the budget used, training loss) of the last measurement, at most ten points."""
    log_tail: str = ""
    """End of a failure's log; "" where nothing failed."""


class Reader(Protocol):
    """Looks experiments up."""

    def show(self, number: int) -> Shown | None:
        """None where there is no such experiment, or it isn't decided."""


class RunReader:
    """Reads a run's history and its commits. Nothing of the test split is in either."""

    def __init__(self, history: History, workspace: Workspace) -> None:
        self._history, self._workspace = history, workspace

    def show(self, number: int) -> Shown | None:
        record = self._history.experiments.get(number)
        if record is None or record.verdict is None:
            return None
        last = record.results[-1] if record.results else None
        return Shown(
            diff=self._diff(number, record.parent),
            curve=thinned(last.loss_curve) if last else (),
            log_tail=last.log_tail if last and record.failed else "",
        )

    def _diff(self, number: int, parent: int | None) -> str:
        if parent is None:
            return ""
        before, after = (self._source(n).splitlines() for n in (parent, number))
        return "\n".join(unified_diff(before, after, f"{TRAIN} of #{parent}", f"{TRAIN} of #{number}", "", "", 2, ""))

    def _source(self, number: int) -> str:
        record = self._history.experiments[number]
        return self._workspace.read(record.commit) if record.commit else ""


def thinned(curve: Sequence[tuple[float, float]], points: int = CURVE_POINTS) -> tuple[tuple[float, float], ...]:
    """At most `points` of a curve, evenly spaced, the last one among them."""
    if len(curve) <= points:
        return tuple(curve)
    return tuple(curve[round((i + 1) * len(curve) / points) - 1] for i in range(points))
