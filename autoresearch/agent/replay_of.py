"""Another run's experiments, proposed here in order: what helped on one machine is tried on the next.

All of them are proposed, kept or not, since what failed there may work here; but for those that broke the contract, and
the baseline. What was measured there decides nothing here. `agent.carry` says how a change is carried over.
"""

from __future__ import annotations

import json
from pathlib import Path

from autoresearch.agent.carry import Carried, Change, carry
from autoresearch.agent.proposer import Context, Proposal
from autoresearch.core import noise
from autoresearch.core.errors import UsageError
from autoresearch.core.records import Record
from autoresearch.core.runs import WHAT_A_RUN_IS, SavedRun, find
from autoresearch.core.traces import STATE


def run_to_replay(name: str, directory: Path, tag: str = "") -> SavedRun:
    """The run that `--agent replay:NAME` means.

    Args:
        name: as `core.runs.find` takes it.
        directory: the workspace of the run that replays it.
        tag: of the run that replays it; "" where it isn't known yet.

    Raises:
        UsageError: no such run, a table of results, a run without experiments, or the run itself.
        DataError: its journal is damaged.
    """
    _refuse_table(name, directory)
    saved = find(name, directory)
    if tag and saved.folder == directory.resolve() / STATE / tag:
        raise UsageError(
            f"--agent replay:{name} is this run itself", "name another run, or begin a new one: --tag NAME"
        )
    if not _replayed(saved):
        raise UsageError(
            f"--agent replay:{name}: run {saved.tag} has no experiment yet", "let it run for a while first"
        )
    return saved


def _refuse_table(name: str, directory: Path) -> None:
    for path in (Path(name).expanduser(), directory / name):
        try:
            if not path.is_file():
                continue
            with path.open("rb") as stream:
                if stream.read(64).lstrip()[:1] in (b"{", b""):
                    continue
            raise UsageError(
                f"--agent replay:{name}: a table of results holds no change that could be made again",
                f"name the run that wrote it: {WHAT_A_RUN_IS}",
            )
        except OSError as error:
            raise UsageError(f"--agent replay:{name}: {path} can't be read: {error.strerror}") from error


def _replayed(saved: SavedRun) -> list[Record]:
    """The experiments that are proposed, in order."""
    records = saved.history.experiments.values()
    return [r for r in records if r.parent is not None and r.verdict not in (None, "invalid")]


class ReplayOf:
    """Proposes the experiments of another run."""

    def __init__(self, saved: SavedRun) -> None:
        self._saved = saved
        self._records = _replayed(saved)
        self._identity = saved.identity
        self.name = f"replay:{saved.tag}"

    @property
    def about(self) -> str:
        """What is replayed, in one line."""
        history = self._saved.history
        settings, device = history.settings, history.run.get("device", {}).get("name", "an unknown device")
        return (
            f"proposals: replay of run {self._saved.tag} in {self._saved.place}: {len(self._records)} experiments, "
            f"{settings.get('backend', 'an unknown backend')} on {device}, {settings.get('preset', 'no preset')}"
        )

    def propose(self, context: Context) -> Proposal | None:
        for record in self._records:
            # Tags are names of days: two machines may well have the same.
            origin = f"replay:{self._saved.tag}-{self._identity}#{record.number}"
            if origin not in context.origins:
                return self._proposal(record, origin, context)
        return None

    def _proposal(self, record: Record, origin: str, context: Context) -> Proposal:
        change, history = self._change(record), self._saved.history
        carried = carry(change, context.incumbent_source, context.device["backend"], int(context.task["seq_len"]))
        gain = noise.gain_of(history, record)
        outcome = "withdrawn" if record.withdrawn is not None else str(record.verdict)
        value = noise.value_of(history, record)
        effect = None if gain is None or value is None else gain / (value + gain)
        facts = {
            "run": self._saved.tag,
            "id": self._identity,
            "experiment": record.number,
            "hypothesis": record.hypothesis,
            "verdict": outcome,
            "effect": effect,
            "left_out": list(carried.left_out),
        }
        there = f"{'kept' if outcome == 'keep' else outcome} there" + ("" if gain is None else f", {-gain:+.4f}")
        told = "; ".join([there, *_differences(change, carried)])
        return Proposal(
            carried.source,
            f"replay of #{record.number} of {self._saved.tag} ({told}): {record.hypothesis}",
            record.category,
            origin,
            problem="" if carried.source else f"not carried: {'; '.join(carried.left_out)}",
            facts={"replay_of": facts},
            listed=True,
        )

    def _change(self, record: Record) -> Change:
        assert record.parent is not None, "the baseline is not replayed"
        parent = self._saved.history.experiments[record.parent]
        return Change(
            constants_before=parent.constants,
            constants_after=record.constants,
            lines=record.diff_lines,
            backend=self._saved.history.settings.get("backend", ""),
            before=self._saved.source(parent),
            after=self._saved.source(record),
        )


def _differences(change: Change, carried: Carried) -> list[str]:
    """How what is tried here differs from what was tried there."""
    there = change.moves
    other = [
        f"{name} {old} → {new}"
        for name, (old, new) in carried.moves.items()
        if json.dumps((old, new)) != json.dumps(there[name])
    ]
    differences = [f"here {', '.join(other)}"] if other else []
    return differences + ([f"without: {'; '.join(carried.left_out)}"] if carried.source and carried.left_out else [])
