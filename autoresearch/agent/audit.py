"""The audit of a run: its baseline and its incumbent, measured with fresh seeds on text that decided nothing.

Nothing here touches the run's journal, so nothing that is seen here can steer a search that goes on later.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from autoresearch.agent import folder, start
from autoresearch.agent.lab import Run
from autoresearch.core import noise
from autoresearch.core.audits import Audits, Subject, next_arm
from autoresearch.core.awake import kept_awake
from autoresearch.core.errors import AutoresearchError
from autoresearch.core.executor import Request
from autoresearch.core.journal import Journal
from autoresearch.core.process import kill_marked
from autoresearch.core.records import Record
from autoresearch.core.runs import history_of, locate
from autoresearch.core.suspect import suspicion
from autoresearch.core.view import View
from autoresearch.prepare.other_text import rows_of_text

SEEDS = -2
"""Stands for the experiment in the seeds of audits, whose k counts on over all audits of a run."""


def audit(
    directory: Path,
    tag: str,
    repeats: int,
    text: Path | None,
    view: View,
    options: Mapping[str, Any] | None = None,
) -> tuple[str, Subject | None]:
    """Measure baseline and incumbent until there are `repeats` measurements of each; earlier ones count.

    Args:
        directory: a workspace, or a folder with the one that the main job made.
        tag: "" is the run written to last.
        repeats: 2 or more.
        text: a file of another domain, scored too.
        view: told of each measurement.
        options: of the command line, in the shape of autoresearch.toml.

    Returns:
        The run's tag, and what was audited: `report.audit` tells the outcome. None where nothing was kept, so that
        there is no gain to audit.

    Raises:
        UsageError: no workspace or no such run.
        DataError: the text can't be used; see also `open_run`.
        AutoresearchError: a measurement failed twice in a row. What was measured is kept.
    """
    folder.open_workspace(directory)  # what is wrong with a folder that is none
    workspace, tag = locate(directory, tag)
    incumbent = history_of(workspace, tag).incumbent
    if incumbent is not None and incumbent.number == 0:
        return tag, None
    with start.open_run(directory, tag, options or {}, None, view) as run:
        auditor = _Auditor(run, text, view)
        with kept_awake():
            auditor.measure(repeats)
        return tag, auditor.subject


class _Auditor:
    """Measures one subject. The caller holds the workspace's lock."""

    def __init__(self, run: Run, text: Path | None, view: View) -> None:
        self._run = run
        self._view = view
        self._executor = run.executor()
        self._journal = Journal(run.folder / "audits.jsonl")
        self._audits = Audits.from_events(self._journal.read(), str(self._journal.path))
        self._history = history_of(run.workspace, run.tag)
        self._arms = self._baseline_and_incumbent()
        self._held_out: dict[str, NDArray[Any]] = {"test": run.dataset.rows("test")}
        digest = ""
        if text is not None:
            rows = rows_of_text(text, run.dataset, len(run.dataset.rows("val")))
            digest = hashlib.sha256(rows.tobytes()).hexdigest()[:16]
            self._held_out["text"] = rows
        self.subject = Subject(self._arms[1].number, run.key, digest)

    def _baseline_and_incumbent(self) -> tuple[Record, Record]:
        baseline, incumbent = self._history.baseline, self._history.incumbent
        if baseline is None or incumbent is None:
            raise AutoresearchError(
                f"run {self._run.tag} has no baseline that could be measured", "take the search up first: autoresearch"
            )
        return baseline, incumbent

    def measure(self, repeats: int) -> None:
        """Go on until there are `repeats` measurements of each that count."""
        for unfinished in (self._audits.unfinished, *(r.unfinished for r in self._history.experiments.values())):
            if unfinished is not None:
                kill_marked(unfinished.mark)
        subject = self.subject
        if self._run.key != self._history.comparability_key:
            self._view.note(
                "this machine or its framework isn't that of the run: both are measured here, and the gain is that here"
            )
        if subject != self._audits.current:
            self._log("audit", **subject._asdict(), rows={name: len(rows) for name, rows in self._held_out.items()})
        failures = 0
        while (arm := next_arm(self._audits.measured[subject], repeats)) is not None:
            status, reason = self._measure(self._arms[arm], repeats)
            failures = failures + 1 if status != "ok" else 0
            if failures == 2:
                raise AutoresearchError(
                    f"{_name(self._arms[arm])} could not be measured: {status}: {reason}",
                    "what was measured is kept: run the same command again to go on",
                )

    def _measure(self, record: Record, repeats: int) -> tuple[str, str]:
        """One measurement, journaled; its status and its reason."""
        run, settings, k = self._run, self._run.settings, self._audits.count
        val, held_out = len(run.dataset.rows("val")), sum(map(len, self._held_out.values()))
        request = Request(
            source=run.workspace.read(record.commit),
            source_hash=record.source_hash,
            device=run.device,
            task=settings.task,
            # A routine measurement scores val and a quarter of its size of test.
            limits=replace(settings.limits, eval_seconds=settings.limits.eval_seconds * (1 + held_out / val)),
            seed=noise.fresh_seed(settings.seed, SEEDS, k),
            comparability_key=run.key,
            mark=uuid.uuid4().hex,
            held_out=self._held_out,
        )
        self._log("started", n=record.number, k=k, seed=request.seed, mark=request.mark)
        self._view.begin(f"audit: {_name(record)}")
        log = run.folder / "logs" / f"audit-{k}.log"
        measured = self._executor.measure(request, run.dataset, log, self._view.event)
        earlier = [*self._history.results, *self._audits.results]
        comparable = [result for result in earlier if result.comparability_key == run.key]
        result = replace(measured.result, suspect=suspicion(measured.result, comparable))
        self._log("measured", n=record.number, k=k, result=result.to_json(), scores=dict(measured.audit))
        scores = {"val": result.val_bpb, **{name: measured.audit.get(f"{name}_bpb") for name in self._held_out}}
        told = ", ".join(f"{name} {bpb:.4f}" for name, bpb in scores.items() if bpb is not None)
        if result.status != "ok":
            told = f"{result.status}: {result.reason}"
        elif result.suspect:
            told += f" (suspect: {result.suspect})"
        self._view.note(f"  {_name(record)}: {told}")
        return result.status, result.reason

    def _log(self, event: str, **data: Any) -> None:
        self._audits.apply(self._journal.append(event, **data))


def _name(record: Record) -> str:
    return f"the incumbent, experiment {record.number}" if record.number else "the baseline"
