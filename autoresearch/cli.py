"""The command line. Thin: options in, one call of the package, lines or one JSON document out."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from autoresearch import __version__
from autoresearch.core.errors import AutoresearchError, BackendUnavailable, CostCapReached, UsageError

if TYPE_CHECKING:
    from autoresearch.core.view import View

F = TypeVar("F", bound=Callable[..., Any])

INTERRUPTED = 130
POSITIVE = click.FloatRange(min=0, min_open=True)


class _Group(click.Group):
    """Starts the main job where no command is named, and turns errors into one line, a hint and an exit code."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {"--help", "--version"}
        if not args or (args[0].startswith("-") and args[0] not in own):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        debug = "--debug" in sys.argv
        _open_standard_streams()
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
            sys.exit(code if isinstance(code, int) else 0)
        except AutoresearchError as error:
            _complain(error.message, error.hint, debug)
            sys.exit(error.exit_code)
        except click.ClickException as error:
            context = getattr(error, "ctx", None)
            asked = context.command_path if context is not None else "autoresearch"
            _complain(error.format_message(), f"{asked} --help says what it takes", debug)
            sys.exit(2)
        except (KeyboardInterrupt, click.Abort):
            print("interrupted; run the same command again to go on", file=sys.stderr)
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            sys.stderr.close()
            sys.exit(1)
        except Exception as error:
            _complain(f"{type(error).__name__}: {error}", "run it again with --debug for the traceback", debug)
            sys.exit(1)


def _open_standard_streams() -> None:
    """A stream that was closed before the start would lend its number to the next file."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _complain(message: str, hint: str, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)


def _end_as_interrupted() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminate)


def _terminate(signum: int, frame: FrameType | None) -> None:
    """SIGTERM and a closed terminal end a search as Ctrl-C does: recorded, resumable."""
    raise KeyboardInterrupt


def common(command: F) -> F:
    """The options of every command."""
    for option in (
        click.option("--debug", is_flag=True, help="Show a traceback with an error."),
        click.option("-v", "--verbose", is_flag=True, help="Say more: reasons of choices, every step on its way."),
        click.option(
            "--workspace",
            type=click.Path(path_type=Path, file_okay=False),
            default=Path(),
            help="The folder with train.py; default: the current one.",
        ),
    ):
        command = option(command)
    return command


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, all else on stderr.")(
        command
    )


def machine_options(command: F) -> F:
    """Where and what to measure."""
    for option in (
        click.option("--source", help="Text: a data set, or a .txt, .jsonl or .parquet file or folder."),
        click.option("--budget", type=POSITIVE, help="Training time of one experiment, in seconds."),
        click.option("--preset", help="Task preset; default: the one that fits the machine."),
        click.option("--device", help='Device of the backend, e.g. "cpu": the same code without the accelerator.'),
        click.option("--backend", help="cuda, null, or another installed one; default: the best one usable here."),
    ):
        command = option(command)
    return command


def _options(
    backend: str | None = None,
    device: str | None = None,
    preset: str | None = None,
    budget: float | None = None,
    source: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """What was given, in the shape of autoresearch.toml."""
    if source is not None and Path(source).exists():
        source = str(Path(source).resolve())
    given: dict[str, Any] = {"backend": backend, "device": device, "preset": preset, "source": source, **more}
    options = {name: value for name, value in given.items() if value is not None}
    if budget is not None:
        options["task"] = {"train_seconds": budget}
    return options


def _view(verbose: bool, as_json: bool = False) -> View:
    from autoresearch.report.terminal import make_view

    return make_view(sys.stderr if as_json else sys.stdout, verbose)


def _document(data: Mapping[str, Any]) -> None:
    click.echo(json.dumps(data, indent=2, allow_nan=False))


@click.group(cls=_Group, context_settings={"help_option_names": ["--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="autoresearch")
def main() -> None:
    """Search for better GPT training code on this machine, unattended.

    Without a command: set up what is missing, then search; run again, it goes on.

    \b
    Example: autoresearch --max-experiments 20
             autoresearch run --help          all options of the search
    """


@main.command()
@machine_options
@click.option("--agent", help="Who proposes: auto, optimizer, random, or script:DIR.")
@click.option("--tag", default="", help="Name of the run; default: the latest unfinished one, else the date.")
@click.option("--max-experiments", type=click.IntRange(1), help="Stop after so many, the baseline not counted.")
@click.option("--max-hours", type=POSITIVE, help="Stop after so many hours.")
@click.option("--until", help="Stop at this time of day, HH:MM.")
@click.option("--max-cost", type=POSITIVE, help="Stop before proposals cost more than this, in US dollars.")
@click.option("--target", type=POSITIVE, help="Stop once the incumbent's val_bpb is this low.")
@click.option("--program", type=click.Path(path_type=Path, dir_okay=False), help="Another program.md.")
@click.option("--seed", type=int, help="Of the run: orders data, initial values and proposals.")
@click.option("--dry-run", is_flag=True, help="Show what would be done and the first proposal; train nothing.")
@common
def run(
    workspace: Path,
    tag: str,
    program: Path | None,
    seed: int | None,
    agent: str | None,
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
    from autoresearch.agent import start
    from autoresearch.agent.lab import Lab
    from autoresearch.agent.loop import search
    from autoresearch.core.executor import LocalExecutor

    options = _options(backend, device, preset, budget, source, agent=agent, seed=seed)
    if given := {name: value for name, value in stop.items() if value is not None}:
        options["stop"] = given
    _end_as_interrupted()
    view = _view(verbose)
    try:
        if dry_run:
            start.dry_run(workspace, tag, options, program, view)
            return 0
        with start.open_run(workspace, tag, options, program, view) as opened:
            proposer, note = start.make_proposer(opened.settings.agent)
            if note:
                view.note(note)
            lab = Lab(opened, LocalExecutor(opened.folder), view)
            try:
                reason = search(lab, proposer, view)
            except KeyboardInterrupt:
                start.say_closing(opened, lab.history, view)
                raise
            start.say_closing(opened, lab.history, view)
            return CostCapReached.exit_code if reason.endswith("(--max-cost)") else 0
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

    view = _view(verbose)
    try:
        directory = workspace / directory
        settings, _ = start.settings_for(directory, _options(**given), LocalExecutor(), view)
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

    view = _view(verbose, as_json)
    try:
        place = folder.find_workspace(workspace)
        settings, _ = start.settings_for(place, _options(**given), LocalExecutor(), view)
        dataset = start.data_for(settings, view)
        if as_json:
            splits = {name: asdict(facts) for name, facts in dataset.splits.items()}
            _document({"key": dataset.key, "path": str(dataset.path), "source": dataset.source, "splits": splits})
        else:
            view.note(f"prepared: {dataset.path}")
    finally:
        view.close()


@main.command()
@click.option("--train", type=click.Path(path_type=Path, dir_okay=False), help="File to measure; default: train.py.")
@click.option("--seed", type=int, help="Of this measurement; default: a fresh one of the run.")
@click.option("--record", is_flag=True, help="Lint, commit, measure, judge and journal it as an experiment of the run.")
@click.option("-m", "--message", help="The hypothesis, with --record.")
@click.option("--tag", default="", help="Run to record in.")
@machine_options
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
    _end_as_interrupted()
    view = _view(verbose, as_json)
    try:
        options = _options(**given)
        if message is not None:
            outcome = by_hand.record(workspace, train, tag, message, options, view)
            if as_json:
                _document(outcome)
            return 0 if outcome["verdict"] in ("keep", "discard") else 1
        result = by_hand.measure(workspace, train, seed, options, view)
        if as_json:
            _document(result.to_json())
        elif result.status == "ok":
            view.note(by_hand.summary(result))
        if result.status != "ok" and not as_json:
            raise AutoresearchError(f"{result.status}: {result.reason}", by_hand.advice(result))
        return 0 if result.status == "ok" else 1
    finally:
        view.close()


@main.command()
@click.option("--tag", default="", help="Run; default: the latest.")
@json_option
@common
def status(workspace: Path, tag: str, verbose: bool, debug: bool, as_json: bool) -> None:
    """Where a run stands; also while it searches.

    \b
    Example: autoresearch status --json
    """
    from autoresearch.report import summary

    state = summary.load(workspace, tag)
    if as_json:
        _document(summary.status(state))
    else:
        click.echo(summary.status_text(state))


@main.command()
@click.option("--tag", default="", help="Run; default: the latest.")
@json_option
@common
def report(workspace: Path, tag: str, verbose: bool, debug: bool, as_json: bool) -> None:
    """What a run found: the gain, the kept changes, the failures.

    \b
    Example: autoresearch report --tag nov30
    """
    from autoresearch.report import summary

    state = summary.load(workspace, tag)
    if as_json:
        _document(summary.report(state))
    else:
        click.echo(summary.report_text(state))


@main.command()
@click.option("--device", default="auto", help='Device to probe, e.g. "cpu".')
@json_option
@common
def doctor(workspace: Path, device: str, verbose: bool, debug: bool, as_json: bool) -> None:
    """Per backend: usable here or not, why, what to install, and what it would choose; and which a search would take.

    \b
    Example: autoresearch doctor --device cpu
    """
    from autoresearch.agent.start import choose_backend
    from autoresearch.core.executor import LocalExecutor
    from autoresearch.report import doctor as checkup

    found = checkup.examine(device)
    try:
        backend, asked, reason = choose_backend(LocalExecutor(), device)
        found["search"] = {"backend": backend, "device": asked, "reason": reason}
    except BackendUnavailable as error:
        found["search"] = {"backend": None, "device": None, "reason": error.message}
    if as_json:
        _document(found)
    else:
        click.echo(checkup.text(found))
