"""One measurement by hand, and one experiment proposed from outside the loop."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoresearch.agent import folder, start
from autoresearch.agent.isolation import choose_sandbox
from autoresearch.agent.lab import Lab
from autoresearch.agent.proposer import Proposal
from autoresearch.core import candidate, noise, registry
from autoresearch.core.constants import constants, moved
from autoresearch.core.contract import Result
from autoresearch.core.errors import CandidateFailure, UsageError
from autoresearch.core.executor import LocalExecutor, Request
from autoresearch.core.harness import harness_hash
from autoresearch.core.view import View, show_command


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}", "name a Python file: --train FILE") from error


def measure(directory: Path, train: Path | None, seed: int | None, options: Mapping[str, Any], view: View) -> Result:
    """Measure a train.py once; nothing is committed or journaled.

    Args:
        directory: a workspace.
        train: the file; None is the workspace's.
        seed: None takes a fresh one.

    Raises:
        UsageError: no workspace, or the file can't be read.
        WorkspaceBusy: a search runs there.
    """
    workspace = folder.open_workspace(directory)
    source = _read(train or workspace.train_path)
    settings, device = start.settings_for(workspace.directory, options, LocalExecutor(), view)
    with workspace.lock():
        workspace.exclude()
        dataset = start.data_for(settings, view)
        request = Request(
            source=source,
            source_hash=candidate.source_hash(source),
            device=device,
            task=settings.task,
            limits=settings.limits,
            seed=noise.fresh_seed(settings.seed, -1, uuid.uuid4().int) if seed is None else seed,
            comparability_key=start.key_of(settings, dataset, device),
            mark=uuid.uuid4().hex,
        )
        place = workspace.run_dir("by-hand")
        try:
            candidate.lint(source, registry.facts(settings.backend).ALLOWED_IMPORTS)
        except CandidateFailure as failure:
            return Result(
                status=failure.status,
                reason=failure.reason,
                seed=request.seed,
                comparability_key=request.comparability_key,
                source_hash=request.source_hash,
                harness_hash=harness_hash(),
            )
        view.begin(f"measuring {train or workspace.train_path.name} with seed {request.seed}")
        log = place / "logs" / "latest.log"
        log.unlink(missing_ok=True)
        executor = LocalExecutor(place, choose_sandbox(settings, device, view))
        return executor.measure(request, dataset, log, view.event).result


def record(
    directory: Path, train: Path | None, tag: str, hypothesis: str, options: Mapping[str, Any], view: View
) -> dict[str, Any]:
    """One experiment of a run with the train.py at hand: linted, committed, measured, judged, journaled.

    Where the run is new, the workspace's train.py is its baseline, and `train` is measured after it.

    Returns:
        The fields of the last Result, then experiment, verdict, reason, val_bpb, commit, and the incumbent after it.

    Raises:
        UsageError: no workspace, or a duplicate of an earlier candidate.
    """
    source = _read(train or folder.open_workspace(directory).train_path)
    proposal = Proposal(source, hypothesis)
    with start.open_run(directory, tag, options, None, view) as run:
        lab = Lab(run, run.executor(), view)
        is_baseline = lab.history.baseline is None and train is None
        if is_baseline:
            view.note(f"run {run.tag} is new: the train.py at hand is its baseline, whatever -m says")
        if not is_baseline and (problem := lab.problem(proposal)):
            raise UsageError(f"not measured: {problem}", "change train.py first")
        if pending := lab.history.pending:
            view.note(f"experiment {pending.number} was interrupted and is finished first: {pending.hypothesis}")
        try:
            lab.begin()
            if not is_baseline:
                if told := _difference(lab, source):
                    view.note(told)
                lab.finish(lab.record(proposal, "hand"))
        finally:
            lab.log("stopped", reason="one experiment by hand")
        made, best = list(lab.history.experiments.values())[-1], lab.incumbent
        last = made.results[-1] if made.results else Result(status="invalid", source_hash=made.source_hash)
        return {
            **last.to_json(),
            "experiment": made.number,
            "verdict": made.verdict,
            "reason": made.reason,
            "val_bpb": made.val_bpb,
            "commit": made.commit,
            "incumbent": {"experiment": best.number, "val_bpb": best.value, "commit": best.commit},
        }


def _difference(lab: Lab, source: str) -> str:
    """Which constants differ from the incumbent's: an edit of an older file undoes what was kept since."""
    incumbent = lab.incumbent
    try:
        values = {name: constant.value for name, constant in constants(source).items()}
    except (SyntaxError, ValueError, UsageError):
        return ""
    changes = [f"{name} {before} → {after}" for name, (before, after) in moved(incumbent.constants, values).items()]
    if incumbent.number == 0 or not changes:
        return ""
    return (
        f"against experiment {incumbent.number}, the incumbent: {', '.join(changes)}; to start from it: "
        f"{show_command(lab.run.workspace.directory, incumbent.commit)}"
    )


def summary(result: Result) -> str:
    """The summary block of the original autoresearch."""
    mfu = "unknown" if result.mfu is None else f"{100 * result.mfu:.2f}"
    rows = {
        "val_bpb": f"{result.val_bpb:.6f}",
        "training_seconds": f"{result.train_seconds:.1f}",
        "total_seconds": f"{result.total_seconds:.1f}",
        "peak_vram_mb": f"{result.peak_memory_bytes / 2**20:.1f}",
        "mfu_percent": mfu,
        "total_tokens_M": f"{result.tokens / 1e6:.1f}",
        "num_steps": str(result.steps),
        "num_params_M": f"{result.num_params / 1e6:.1f}",
        "depth": str(result.facts.get("depth", "unknown")),
    }
    return "\n".join(["---", *(f"{name + ':':<18s}{value}" for name, value in rows.items())])


def advice(result: Result) -> str:
    """Where a failure's cause stands, with the end of its log."""
    last = [line for line in result.log_tail.splitlines() if line.strip()][-12:]
    return "\n  ".join(["the end of the log:", *last]) if last else "mend train.py"
