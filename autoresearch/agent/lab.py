"""One experiment, from a proposal to its verdict, each step journaled before the next begins."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autoresearch.agent.command_line import recorded
from autoresearch.agent.proposer import Proposal
from autoresearch.core import candidate, noise
from autoresearch.core.constants import constants, moved, written_out
from autoresearch.core.contract import DeviceInfo, Result
from autoresearch.core.dataset import Dataset
from autoresearch.core.decide import Anchor, Decide, Measure, Propose, Step, Withdraw, usable
from autoresearch.core.errors import AutoresearchError, CandidateFailure
from autoresearch.core.executor import LocalExecutor, Measurement, Request
from autoresearch.core.history import History
from autoresearch.core.journal import Journal, export_results
from autoresearch.core.process import kill_marked, one_line
from autoresearch.core.records import Record
from autoresearch.core.registry import facts
from autoresearch.core.replay import event_of, step_of
from autoresearch.core.sandbox import Sandbox
from autoresearch.core.spreads import stored
from autoresearch.core.suspect import LASTING, suspicion
from autoresearch.core.task import Settings, Task
from autoresearch.core.view import View, note_of, outcome_of
from autoresearch.core.workspace import Workspace

STEPS_LIMIT = 3.0
"""Budgets that a measurement of a fixed number of steps may take."""


@dataclass(frozen=True)
class Run:
    """Everything that is decided before a search begins."""

    workspace: Workspace
    tag: str
    settings: Settings
    device: DeviceInfo
    dataset: Dataset
    """Verified."""
    key: str
    """Comparability key of this task on this machine."""
    program: str
    """Text of program.md."""
    sandbox: Sandbox | None = None
    """In which candidates are measured."""
    program_path: Path | None = None
    """Where program.md is read again before each proposal; None is never."""

    @property
    def folder(self) -> Path:
        return self.workspace.run_dir(self.tag)

    def executor(self) -> LocalExecutor:
        """What measures for this run."""
        return LocalExecutor(self.folder, self.sandbox)

    def log_path(self, number: int) -> Path:
        return self.folder / "logs" / f"{number}.log"


class Lab:
    """Where a run's experiments are made. The state is what the journal adds up to.

    Args:
        run: what is measured, where. The caller holds the workspace's lock.
        executor: measures.
        view: told of everything.
    """

    def __init__(self, run: Run, executor: LocalExecutor, view: View) -> None:
        self.run = run
        self._executor = executor
        self._view = view
        self._journal = Journal(run.folder / "journal.jsonl")
        self._audit = Journal(run.folder / "audit.jsonl")
        self.history = History.from_events(self._journal.read(), str(self._journal.path))
        self.on_change: Callable[[str], None] = lambda event: None
        """Told of each event by its name, once it is in the history."""

    def log(self, event: str, **data: Any) -> None:
        """Append to the journal, and take it into the history."""
        self.history.apply(self._journal.append(event, **data))
        self.on_change(event)

    def begin(self) -> None:
        """Start the run, or take it up where it was: the baseline is decided and nothing is owed afterwards.

        An incumbent that was measured on another machine is measured again before anything is held against it.

        Raises:
            AutoresearchError: the baseline fails, or the machine does.
        """
        run = self.run
        known = stored(run.folder.parent).get(run.key)
        prior = None if known is None else known._asdict()
        if not self.history.run:
            self.log(
                "run",
                tag=run.tag,
                settings={**asdict(run.settings), "agent": recorded(run.settings.agent)},
                comparability_key=run.key,
                task_fingerprint=run.settings.task.fingerprint(run.dataset.key),
                dataset=run.dataset.key,
                source=run.dataset.source,
                device=asdict(run.device),
                prior=prior,
            )
        else:
            settings = {name: asdict(getattr(run.settings, name)) for name in ("rules", "stop", "caps")}
            self.log("resumed", comparability_key=run.key, **settings, prior=prior)
        for record in self.history.experiments.values():
            if record.unfinished is not None:
                kill_marked(record.unfinished.mark)
        if self.history.incumbent is None:
            self._baseline()
        if not self.history.current(self.incumbent):
            self._view.note("the machine or its framework changed: what was measured before can't be compared")
        self._advance(self.incumbent)
        if (pending := self.history.pending) is not None:
            self.finish(pending.number)
        self.settle()
        self._export()

    def _baseline(self) -> None:
        """Take experiment 0 from wherever it is to its verdict."""
        run, record = self.run, self.history.baseline
        if record is None or not record.commit:
            commit = run.workspace.baseline(run.tag)
            source = run.workspace.read(commit)
            if record is None:
                self._log_proposed(0, Proposal(source, "baseline", "baseline"), "", difference=0, parent=None)
            elif record.source_hash != candidate.source_hash(source):
                raise AutoresearchError(
                    f"{run.workspace.train_path} was changed before run {run.tag!r} had its baseline",
                    "start a new run with --tag NAME",
                )
            self.log("committed", n=0, commit=commit)
        if self.history.experiments[0].verdict is None:
            self.finish(0)

    @property
    def incumbent(self) -> Record:
        """The best candidate kept so far.

        Raises:
            AutoresearchError: the baseline failed.
        """
        incumbent = self.history.incumbent
        if incumbent is None:
            baseline = self.history.experiments[0]
            raise AutoresearchError(
                f"the baseline failed: {baseline.verdict}: {baseline.reason}",
                f"see {self.run.log_path(0)}; mend train.py and start again",
            )
        return incumbent

    def problem(self, proposal: Proposal) -> str:
        """Why a proposal is refused before any training; "" where it is not."""
        if proposal.problem:
            return proposal.problem
        digest = candidate.normalized_hash(proposal.source)
        for record in self.history.experiments.values():
            if record.normalized_hash == digest:
                other = self.run.workspace.read(record.commit) if record.commit else proposal.source
                return f"{candidate.sameness(proposal.source, other)} of experiment {record.number}"
        return self._same_values(proposal)

    def _same_values(self, proposal: Proposal) -> str:
        """The same program by other words: `2**14` for 16384 among the constants, and nothing else differs."""
        if not (values := _values(proposal.source)):
            return ""
        digest = candidate.normalized_hash(written_out(proposal.source))
        for record in self.history.experiments.values():
            if record.commit and not moved(record.constants, values):
                other = written_out(self.run.workspace.read(record.commit))
                if candidate.normalized_hash(other) == digest:
                    return f"its constants have the values of experiment {record.number}, and all else is the same"
        return ""

    def record(self, proposal: Proposal, proposer: str) -> int:
        """Write a proposal down before anything is done with it; its number."""
        number, incumbent = self.history.next_number, self.incumbent
        before = self.run.workspace.read(incumbent.commit)
        difference = candidate.diff_lines(before, proposal.source)
        change = candidate.change_hash(before, proposal.source)
        self._log_proposed(number, proposal, proposer, difference, incumbent.number, change)
        return number

    def _log_proposed(
        self, number: int, proposal: Proposal, proposer: str, difference: int, parent: int | None, change: str = ""
    ) -> None:
        self.log(
            "proposed",
            n=number,
            blob=self.run.workspace.write_blob(proposal.source),
            hypothesis=one_line(proposal.hypothesis),
            category=proposal.category,
            proposer=proposer,
            origin=proposal.origin,
            source_hash=candidate.source_hash(proposal.source),
            normalized_hash=candidate.normalized_hash(proposal.source),
            constants=_values(proposal.source),
            code_size=candidate.code_size(proposal.source),
            diff_lines=difference,
            change_hash=change,
            parent=parent,
            cost_usd=proposal.cost_usd,
            facts=dict(proposal.facts),
        )

    def finish(self, number: int) -> None:
        """Take an experiment from wherever it is to its verdict."""
        record = self.history.experiments[number]
        if not record.commit:
            message = f"experiment {number}: {record.hypothesis}"
            parent = self.incumbent.commit
            commit = self.run.workspace.commit_candidate(self.run.tag, number, record.blob, parent, message)
            self.log("committed", n=number, commit=commit)
        if not record.results:
            source = self.run.workspace.read(self.history.experiments[number].commit)
            try:
                candidate.lint(source, facts(self.run.settings.backend).ALLOWED_IMPORTS)
            except CandidateFailure as failure:
                self.log("decided", n=number, verdict=failure.status, reason=failure.reason, val_bpb=None, lint=True)
                self._told(number, None)
        while self.history.experiments[number].verdict is None:
            self._take(step_of(self.history))

    def settle(self) -> None:
        """Do what the rule asks for before the next proposal, measurements of the incumbent included."""
        while not isinstance(step := step_of(self.history), Propose):
            self._take(step)

    def conclude(self) -> None:
        """Do what follows from the measurements so far; the rule may ask for another one afterwards."""
        while not isinstance(step := step_of(self.history), Measure | Propose):
            self._take(step)

    def _take(self, step: Step) -> None:
        match step:
            case Measure(number, reason):
                record = self.history.experiments[number]
                if reason:
                    self._view.note(f"  #{number} once more with a fresh seed: {reason}")
                again = record.verdict is not None
                self.measure(number, f"#{number} again: the incumbent" if again else f"#{number} {record.hypothesis}")
            case Decide(number):
                change = step.val_bpb - self._value() if number and step.val_bpb is not None else None
                self.log(**event_of(step, self.history))
                self._told(number, change)
            case Anchor(number):
                self.log(**event_of(step, self.history))
                self._view.detail(f"#{number}, the incumbent, is worth {step.value:.4f} bpb, n {step.value_n}")
            case Withdraw():
                self.log(**(event := event_of(step, self.history)))
                self._view.note(note_of(event, self.history))
                self._advance(self.incumbent)
                self._export()

    def _told(self, number: int, change: float | None) -> None:
        """What a verdict entails."""
        decided = self.history.experiments[number]
        if decided.kept:
            self._advance(decided)
        self._export()
        self._view.decided(outcome_of(decided, change, self.history.cost_of(number)))

    def _value(self) -> float:
        value = self.incumbent.value
        assert value is not None, "a kept experiment has a value"
        return value

    def measure(self, number: int, title: str) -> Result:
        """One more measurement of an experiment with a fresh seed, journaled.

        Raises:
            AutoresearchError: the machine failed, or the incumbent has no score on this machine and fails.
        """
        run, record = self.run, self.history.experiments[number]
        k = len(record.results)
        request = self._request(record, noise.fresh_seed(run.settings.seed, number, k), run.settings.task)
        self.log("started", n=number, k=k, seed=request.seed, mark=request.mark)
        measured = self._measured(request, number, title)
        if measured.audit:
            self._audit.append("audit", n=number, k=k, seed=request.seed, **measured.audit)
        earlier = [result for result in self.history.results if result.comparability_key == run.key]
        result = replace(measured.result, suspect=suspicion(measured.result, earlier))
        before = self.history.conditions
        self.log("measured", n=number, k=k, result=result.to_json())
        if self.history.conditions != before:
            self._view.note(
                f"  {LASTING} suspect measurements in a row: the machine runs at another speed now; what was measured "
                "before can't be compared any more, and the incumbent is measured again"
            )
        lost = record.verdict is not None and not self.history.current(record) and result.status != "ok"
        if lost and not usable(self.history.candidates[number])[1]:
            raise AutoresearchError(
                f"the incumbent can't be measured here: {result.status}: {result.reason}", "start a new run with --tag"
            )
        return result

    def try_steps(self, number: int, steps: int, seed: int, title: str) -> Result:
        """Train and score an experiment for a number of steps, however long they take; nothing is journaled.

        The score is not comparable with those of the run.
        """
        task = self.run.settings.task
        fixed = replace(task, train_steps=steps, train_seconds=STEPS_LIMIT * task.train_seconds)
        return self._measured(self._request(self.history.experiments[number], seed, fixed), number, title).result

    def _request(self, record: Record, seed: int, task: Task) -> Request:
        run = self.run
        return Request(
            source=run.workspace.read(record.commit),
            source_hash=record.source_hash,
            device=run.device,
            task=task,
            limits=run.settings.limits,
            seed=seed,
            comparability_key=run.key,
            mark=uuid.uuid4().hex,
        )

    def _measured(self, request: Request, number: int, title: str) -> Measurement:
        self._view.begin(title)
        return self._executor.measure(request, self.run.dataset, self.run.log_path(number), self._view.event)

    def _advance(self, record: Record) -> None:
        if note := self.run.workspace.advance(self.run.tag, record.commit):
            self._view.note(note)

    def _export(self) -> None:
        export_results(self.history, self.run.folder / "results.tsv")


def _values(source: str) -> dict[str, Any]:
    """The constants of a train.py; none where they can't be read or told."""
    try:
        values = {name: constant.value for name, constant in constants(source).items()}
        json.dumps(values, allow_nan=False)  # an infinite or an immense number can't be told
    except (SyntaxError, ValueError, RecursionError, AutoresearchError):
        return {}  # what is wrong with it, the lint or the measurement will say
    return values
