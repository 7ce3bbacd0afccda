"""One experiment, from a proposal to its verdict, each step journaled before the next begins."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoresearch.agent.proposer import Proposal
from autoresearch.core import candidate, noise
from autoresearch.core.constants import constants
from autoresearch.core.contract import DeviceInfo
from autoresearch.core.dataset import Dataset
from autoresearch.core.decide import Decision, Incumbent, decide
from autoresearch.core.errors import AutoresearchError, CandidateFailure
from autoresearch.core.executor import LocalExecutor, Request
from autoresearch.core.history import History, Record
from autoresearch.core.journal import Journal, export_results
from autoresearch.core.process import kill_marked, one_line
from autoresearch.core.registry import facts
from autoresearch.core.task import Settings
from autoresearch.core.view import View, outcome_of
from autoresearch.core.workspace import Workspace


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

    @property
    def folder(self) -> Path:
        return self.workspace.run_dir(self.tag)

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

    def log(self, event: str, **data: Any) -> None:
        """Append to the journal, and take it into the history."""
        self.history.apply(self._journal.append(event, **data))

    def begin(self) -> None:
        """Start the run, or take it up where it was: the baseline is decided and nothing is pending afterwards.

        An incumbent that was measured on another machine is measured again before anything is held against it.

        Raises:
            AutoresearchError: the baseline fails, or the machine does.
        """
        run = self.run
        if not self.history.run:
            self.log(
                "run",
                tag=run.tag,
                settings=asdict(run.settings),
                comparability_key=run.key,
                task_fingerprint=run.settings.task.fingerprint(run.dataset.key),
                dataset=run.dataset.key,
                source=run.dataset.source,
                device=asdict(run.device),
            )
        else:
            self.log("resumed", comparability_key=run.key)
        for record in self.history.experiments.values():
            if record.unfinished is not None:
                kill_marked(record.unfinished.mark)
        if self.history.incumbent is None:
            self._baseline()
        incumbent = self.incumbent
        if incumbent.value_key != run.key:
            self._anchor(incumbent)
        self._advance(incumbent)
        if (pending := self.history.pending) is not None:
            self.finish(pending.number)
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

    def _anchor(self, incumbent: Record) -> None:
        """Measure the incumbent where no score of it is comparable with what this machine will measure."""
        self._view.note(
            f"the machine or its framework changed: experiment {incumbent.number}, the incumbent, is measured again"
        )
        if not self._scores(incumbent):
            self._measure(incumbent, f"#{incumbent.number} again: the incumbent")
        measured = self.history.experiments[incumbent.number]
        scores = self._scores(measured)
        if not scores:
            failed = measured.results[-1]
            raise AutoresearchError(
                f"the incumbent can't be measured here: {failed.status}: {failed.reason}", "start a new run with --tag"
            )
        self.log("anchored", n=incumbent.number, value=scores[-1], value_n=1)

    def problem(self, proposal: Proposal) -> str:
        """Why a proposal is refused before any training; "" where it is not."""
        if proposal.problem:
            return proposal.problem
        digest = candidate.normalized_hash(proposal.source)
        for record in self.history.experiments.values():
            if record.normalized_hash == digest:
                return f"a duplicate of experiment {record.number}"
        return ""

    def record(self, proposal: Proposal, proposer: str) -> int:
        """Write a proposal down before anything is done with it; its number."""
        number, incumbent = self.history.next_number, self.incumbent
        difference = candidate.diff_lines(self.run.workspace.read(incumbent.commit), proposal.source)
        self._log_proposed(number, proposal, proposer, difference, incumbent.number)
        return number

    def _log_proposed(
        self, number: int, proposal: Proposal, proposer: str, difference: int, parent: int | None
    ) -> None:
        try:
            values = {name: constant.value for name, constant in constants(proposal.source).items()}
            json.dumps(values, allow_nan=False)  # an infinite or an immense number can't be told
        except (SyntaxError, ValueError, RecursionError, AutoresearchError):
            values = {}  # what is wrong with it, the lint or the measurement will say
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
            constants=values,
            diff_lines=difference,
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
        change = None
        try:
            decision = self._decision(number)
            scores = self._scores(self.history.experiments[number])
            val_bpb = sum(scores) / len(scores)
            if number:
                change = val_bpb - self._against().value
            self.log(
                "decided",
                n=number,
                verdict="keep" if decision.action == "keep" else "discard",
                reason=decision.reason,
                val_bpb=val_bpb,
                z=decision.z,
                spread=self._spread(),
                value=decision.value,
                value_n=decision.n,
            )
        except CandidateFailure as failure:
            self.log("decided", n=number, verdict=failure.status, reason=failure.reason, val_bpb=None)
        decided = self.history.experiments[number]
        if decided.kept:
            self._advance(decided)
        self._export()
        self._view.decided(outcome_of(decided, change))

    def _decision(self, number: int) -> Decision:
        """Measure until `decide` has a verdict.

        Raises:
            CandidateFailure: the lint or a measurement failed.
        """
        source = self.run.workspace.read(self.history.experiments[number].commit)
        candidate.lint(source, facts(self.run.settings.backend).ALLOWED_IMPORTS)
        while True:
            record = self.history.experiments[number]
            for result in record.results:
                if result.status != "ok":
                    raise CandidateFailure(result.status, result.reason)
            if scores := self._scores(record):
                if number == 0:
                    return Decision("keep", "baseline", 0.0, scores[0], 1)
                size, rules = candidate.code_size(source), self.run.settings.rules
                decision = decide(self._against(), scores, size, self._spread(), rules)
                if decision.action != "retest":
                    return decision
                self._view.note(f"  #{number}: {scores[0]:.4f} bpb, {decision.reason}: once more with a fresh seed")
            self._measure(record, f"#{number} {record.hypothesis}")

    def _against(self) -> Incumbent:
        incumbent = self.incumbent
        assert incumbent.value is not None, "a kept experiment has a value"
        size = candidate.code_size(self.run.workspace.read(incumbent.commit))
        return Incumbent(incumbent.value, incumbent.value_n, size)

    def _measure(self, record: Record, title: str) -> None:
        """One more measurement of an experiment, journaled."""
        run, settings, k = self.run, self.run.settings, len(record.results)
        request = Request(
            source=run.workspace.read(record.commit),
            source_hash=record.source_hash,
            device=run.device,
            task=settings.task,
            limits=settings.limits,
            seed=noise.fresh_seed(settings.seed, record.number, k),
            comparability_key=run.key,
            mark=uuid.uuid4().hex,
        )
        self.log("started", n=record.number, k=k, seed=request.seed, mark=request.mark)
        self._view.begin(title)
        measured = self._executor.measure(request, run.dataset, run.log_path(record.number), self._view.event)
        if measured.audit:
            self._audit.append("audit", n=record.number, k=k, seed=request.seed, **measured.audit)
        self.log("measured", n=record.number, k=k, result=measured.result.to_json())
        if measured.result.suspect:
            self._view.note(f"  #{record.number}: suspect: {measured.result.suspect}")

    def _advance(self, record: Record) -> None:
        if note := self.run.workspace.advance(self.run.tag, record.commit):
            self._view.note(note)

    def _export(self) -> None:
        export_results(self.history, self.run.folder / "results.tsv")

    def _scores(self, record: Record) -> list[float]:
        return noise.comparable_scores(self.history, record)

    def _spread(self) -> float:
        return noise.spread_of(self.history, self.run.settings.rules).value
