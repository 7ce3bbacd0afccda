"""What all commands share: errors as one line with a hint and an exit code, options, and how they speak."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from autoresearch.core.errors import AutoresearchError
from autoresearch.core.sandbox import SETTINGS

if TYPE_CHECKING:
    from autoresearch.core.view import View

F = TypeVar("F", bound=Callable[..., Any])

INTERRUPTED = 130
POSITIVE = click.FloatRange(min=0, min_open=True)


class Group(click.Group):
    """Starts the main job where no command is named, and turns errors into one line, a hint and an exit code."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {"--help", "--version"}
        if not args or (args[0].startswith("-") and args[0] not in own):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # here, since click would make a failure of it
            _discard_output()
            sys.exit(INTERRUPTED)

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
            late = [word for word in sys.argv[2:] if word in self.commands and sys.argv[1].startswith("-")]
            hint = f"a command comes first: autoresearch {late[0]} …" if late else f"{asked} --help says what it takes"
            _complain(error.format_message(), hint, debug)
            sys.exit(2)
        except (KeyboardInterrupt, click.Abort):
            print("interrupted; run the same command again to go on", file=sys.stderr)
            sys.exit(INTERRUPTED)
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


def _discard_output() -> None:
    """What is still to be written has no reader; at its end Python would complain about it."""
    with Path(os.devnull).open("w") as nowhere:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere.fileno(), stream.fileno())


def _complain(message: str, hint: str, debug: bool) -> None:
    from autoresearch.core.process import without_secrets

    lines = [*([traceback.format_exc()] if debug else []), f"error: {message}", *([f"hint: {hint}"] if hint else [])]
    # An option that is quoted may hold a key.
    print(without_secrets("\n".join(lines)), file=sys.stderr)


def end_as_interrupted() -> None:
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
        click.option(
            "--backend", help="cuda, mlx, jax, null, or another installed one; default: the best one usable here."
        ),
    ):
        command = option(command)
    return command


def sandbox_option(command: F) -> F:
    """Of the commands that measure."""
    return click.option(
        "--sandbox", type=click.Choice(SETTINGS), help="Sandbox of the system; default: auto, where it works."
    )(command)


def options_of(
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


def view_for(verbose: bool, as_json: bool = False, page_of: Path | None = None) -> View:
    """Who is told of everything.

    Args:
        page_of: the workspace of a search, whose page is rewritten as it goes on.
    """
    from autoresearch.report.rewriting import rewriting
    from autoresearch.report.terminal import make_view

    view = make_view(sys.stderr if as_json else sys.stdout, verbose)
    return view if page_of is None else rewriting(view, page_of)


def watch_run(workspace: Path, tag: str, seconds: float, verbose: bool, as_json: bool) -> None:
    """Follow a search until it ends: as the search shows itself, or as JSON Lines."""
    from autoresearch.report import watching

    followed = watching.Follower(workspace, tag)
    end_as_interrupted()
    if as_json:
        watching.watch_documents(followed, click.echo, seconds)
        return
    view = view_for(verbose)
    try:
        watching.watch(followed, view, seconds)
    except KeyboardInterrupt:
        print("no longer watched; the search goes on", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        view.close()


def print_document(data: Mapping[str, Any]) -> None:
    click.echo(json.dumps(data, indent=2, allow_nan=False))
