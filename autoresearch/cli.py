"""The command line. Thin: options in, one call of the package, lines or one JSON document out."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from autoresearch import __version__
from autoresearch.cli_results import compare, finalize, report, status
from autoresearch.console import (
    POSITIVE,
    Group,
    common,
    end_as_interrupted,
    json_option,
    machine_options,
    options_of,
    print_document,
    sandbox_option,
    view_for,
)
from autoresearch.core.errors import AutoresearchError, BackendUnavailable, UsageError


@click.group(cls=Group, context_settings={"help_option_names": ["--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="autoresearch")
def main() -> None:
    """Search for better GPT training code on this machine, unattended.

    Without a command: set up what is missing, then search; run again, it goes on.

    \b
    Example: autoresearch --max-experiments 20
             autoresearch run --help          all options of the search
    """


for command in (status, report, compare, finalize):
    main.add_command(command)


@main.command()
@machine_options
@sandbox_option
@click.option(
    "--agent",
    help="Who proposes: auto, claude, command:CMD, optimizer, random, replay:RUN, script:DIR; or a mix such as "
    "optimizer@2,claude@1.",
)
@click.option("--reviewer", metavar="MODEL", help="A second model that reads each proposal first and may veto it.")
@click.option("--tag", default="", help="Name of the run; default: the latest unfinished one, else the date.")
@click.option("--max-experiments", type=click.IntRange(1), help="Stop after so many, the baseline not counted.")
@click.option("--max-hours", type=POSITIVE, help="Stop after so many hours.")
@click.option("--until", help="Stop at this time of day, HH:MM.")
@click.option("--max-cost", type=POSITIVE, help="Stop before the run's calls cost more than this, in US dollars.")
@click.option("--target", type=POSITIVE, help="Stop once the incumbent's val_bpb is this low.")
@click.option("--program", type=click.Path(path_type=Path, dir_okay=False), help="Another program.md.")
@click.option("--seed", type=int, help="Of the run: orders data, initial values and proposals.")
@click.option("--strict", is_flag=True, help="Keep only gains that fresh measurements confirm: almost no false keep.")
@click.option("--dry-run", is_flag=True, help="Show the next proposal, or the prompt and its cost; do nothing.")
@common
def run(
    workspace: Path,
    tag: str,
    program: Path | None,
    seed: int | None,
    agent: str | None,
    reviewer: str | None,
    strict: bool,
    sandbox: str | None,
    dry_run: bool,
    verbose: bool,
    debug: bool,
    backend: str | None,
    device: str | None,
    preset: str | None,
    budget: float | None,
    source: str | None,
    **stop: Any,
) -> int:
    """Search: propose, train, measure, keep or discard, repeat.

    \b
    Example: autoresearch --backend cuda --device cpu --preset tinystories/cpu --max-experiments 5
    """
    from autoresearch.agent import dry_run as rehearsal
    from autoresearch.agent import night

    options = options_of(backend, device, preset, budget, source, agent=agent, seed=seed, sandbox=sandbox)
    if given := {name: value for name, value in stop.items() if value is not None}:
        options["stop"] = given
    if strict:
        options["rules"] = {"strict": True}
    if reviewer is not None:
        options["reviewer"] = {"model": reviewer}
    end_as_interrupted()
    view = view_for(verbose, page_of=workspace)
    try:
        if dry_run:
            rehearsal.dry_run(workspace, tag, options, program, view)
            return 0
        return night.run(workspace, tag, options, program, view)
    finally:
        view.close()


@main.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@machine_options
@common
def init(directory: Path, workspace: Path, verbose: bool, debug: bool, **given: Any) -> None:
    """Make a workspace: a git repository with train.py, program.md and autoresearch.toml.

    \b
    Example: autoresearch init lab --backend cuda --preset tinystories/rtx
    """
    from autoresearch.agent import folder, start
    from autoresearch.core.executor import LocalExecutor

    view = view_for(verbose)
    try:
        directory = workspace / directory
        settings, _ = start.settings_for(directory, options_of(**given), LocalExecutor(), view)
        made = folder.create_workspace(directory, settings)
        view.note(f"workspace: {made.directory}; search in it: autoresearch --workspace {shlex.quote(str(directory))}")
    finally:
        view.close()


@main.command()
@machine_options
@json_option
@common
def prepare(workspace: Path, verbose: bool, debug: bool, as_json: bool, **given: Any) -> None:
    """Prepare data and tokenizer: fetch, split, encode, pack; verified and kept for every later run.

    \b
    Example: autoresearch prepare --preset tinystories/cpu --source sample
             autoresearch prepare --preset tinystories/rtx --source my-texts/
    """
    from autoresearch.agent import folder, start
    from autoresearch.core.executor import LocalExecutor

    view = view_for(verbose, as_json)
    try:
        place = folder.find_workspace(workspace)
        settings, _ = start.settings_for(place, options_of(**given), LocalExecutor(), view)
        dataset = start.data_for(settings, view)
        if as_json:
            splits = {name: asdict(facts) for name, facts in dataset.splits.items()}
            print_document({"key": dataset.key, "path": str(dataset.path), "source": dataset.source, "splits": splits})
        else:
            view.note(f"prepared: {dataset.path}")
    finally:
        view.close()


@main.command()
@click.option("--train", type=click.Path(path_type=Path, dir_okay=False), help="File to measure; default: train.py.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Of this measurement; default: a fresh one of the run.")
@click.option("--record", is_flag=True, help="Lint, commit, measure, judge and journal it as an experiment of the run.")
@click.option("-m", "--message", help="The hypothesis, with --record.")
@click.option("--tag", default="", help="Run to record in.")
@machine_options
@sandbox_option
@json_option
@common
def experiment(
    workspace: Path,
    train: Path | None,
    seed: int | None,
    record: bool,
    message: str | None,
    tag: str,
    verbose: bool,
    debug: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Measure one train.py by hand and print its summary.

    \b
    Example: autoresearch experiment --seed 7
             autoresearch experiment --record -m "wider MLP: more capacity at equal depth"
    """
    from autoresearch.agent import by_hand

    if record != (message is not None):
        raise UsageError("--record and -m go together", 'for example: --record -m "halve the batch: more steps"')
    end_as_interrupted()
    view = view_for(verbose, as_json)
    try:
        options = options_of(**given)
        if message is not None:
            outcome = by_hand.record(workspace, train, tag, message, options, view)
            if as_json:
                print_document(outcome)
            return 0 if outcome["verdict"] in ("keep", "discard") else 1
        result = by_hand.measure(workspace, train, seed, options, view)
        if as_json:
            print_document(result.to_json())
        elif result.status == "ok":
            view.note(by_hand.summary(result))
        if result.status != "ok" and not as_json:
            raise AutoresearchError(f"{result.status}: {result.reason}", by_hand.advice(result))
        return 0 if result.status == "ok" else 1
    finally:
        view.close()


@main.command()
@click.option("--tag", default="", help="Run; default: the latest, or a new one where there is none.")
@click.option("--repeats", type=click.IntRange(2), default=6, show_default=True, help="Fresh seeds.")
@machine_options
@sandbox_option
@json_option
@common
def calibrate(workspace: Path, tag: str, repeats: int, verbose: bool, debug: bool, as_json: bool, **given: Any) -> None:
    """How much the incumbent's score varies between seeds on this machine, and why.

    \b
    Example: autoresearch calibrate --repeats 6
    """
    from autoresearch.agent import calibrate as calibration

    end_as_interrupted()
    view = view_for(verbose, as_json)
    try:
        found, used = calibration.calibrate(workspace, tag, repeats, options_of(**given), view)
        if as_json:
            print_document(calibration.document(found, used))
        else:
            view.note(calibration.text(found, used))
    finally:
        view.close()


@main.command()
@click.option("--tag", default="", help="Run; default: the latest.")
@click.option("--repeats", type=click.IntRange(2), default=6, show_default=True, help="Fresh seeds of each of the two.")
@click.option(
    "--text",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Score a text of another domain too: a .txt, .jsonl or .parquet file.",
)
@sandbox_option
@json_option
@common
def audit(
    workspace: Path,
    tag: str,
    repeats: int,
    text: Path | None,
    sandbox: str | None,
    verbose: bool,
    debug: bool,
    as_json: bool,
) -> None:
    """Whether a run's gain is real: baseline and incumbent again, with fresh seeds, on val and held-out test text.

    \b
    Example: autoresearch audit
             autoresearch audit --repeats 12 --text essays.txt
    """
    from autoresearch.agent import audit as auditor
    from autoresearch.core.runs import load
    from autoresearch.report import audit as audit_report

    end_as_interrupted()
    view = view_for(verbose, as_json)
    try:
        tag, subject = auditor.audit(workspace, tag, repeats, text, view, options_of(sandbox=sandbox))
        found = audit_report.document(load(workspace, tag), subject)
        if as_json:
            print_document(found)
        else:
            view.note(audit_report.text(found))
    finally:
        view.close()


@main.command()
@click.option("--device", default="auto", help='Device to probe, e.g. "cpu".')
@json_option
@common
def doctor(workspace: Path, device: str, verbose: bool, debug: bool, as_json: bool) -> None:
    """Per backend: usable here or not, why, what to install, what it would choose; what there is for agents; and which
    of them a search would take.

    \b
    Example: autoresearch doctor --device cpu
    """
    from autoresearch.agent import agents
    from autoresearch.agent.start import choose_backend
    from autoresearch.core.executor import LocalExecutor
    from autoresearch.report import doctor as checkup

    found = checkup.examine(device)
    found["agents"] = agents.survey()
    try:
        backend, asked, reason = choose_backend(LocalExecutor(), device)
        found["search"] = {"backend": backend, "device": asked, "reason": reason}
    except BackendUnavailable as error:
        found["search"] = {"backend": None, "device": None, "reason": error.message}
    if as_json:
        print_document(found)
    else:
        click.echo(checkup.text(found))
