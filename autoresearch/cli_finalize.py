"""The command `autoresearch finalize`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from autoresearch.console import common, json_option, print_document


@click.command()
@click.option("--tag", default="", help="Run; default: the latest.")
@click.option("--onto", default="", metavar="BRANCH", help="Begin from this branch, not from the run's baseline.")
@click.option("--squash", is_flag=True, help="One commit for all changes.")
@click.option("--branch", default="", metavar="NAME", help="Name of the branch; default: autoresearch-TAG.")
@click.option(
    "--text", type=click.Path(path_type=Path, dir_okay=False), help="Write the text of the pull request to this file."
)
@json_option
@common
def finalize(
    workspace: Path,
    tag: str,
    onto: str,
    squash: bool,
    branch: str,
    text: Path | None,
    verbose: bool,
    debug: bool,
    as_json: bool,
) -> None:
    """The kept changes as a clean branch, one commit each, and the text of a pull request. Nothing is pushed.

    \b
    Example: autoresearch finalize --onto main --text pull-request.md
    """
    from autoresearch.core.files import write_atomic
    from autoresearch.core.runs import load
    from autoresearch.report import pull_request

    saved = load(workspace, tag)
    found = pull_request.finalize(saved, onto, squash, branch)
    if text is not None:
        write_atomic(text, found["text"])
    name, count = found["branch"], len(found["commits"])
    state = "made" if found["created"] else "is there already, the same"
    lines = [
        f"branch {name} {state}: {count} commit{'s' * (count != 1)} on top of {found['base'][:10]}; nothing is pushed",
        f"to push it: git -C {shlex.quote(str(saved.place))} push -u origin {shlex.quote(name)}",
    ]
    if as_json:
        print_document(found)
    elif text is None:
        click.echo(found["text"], nl=False)
    else:
        lines.append(f"text of the pull request: {text.resolve()}")
    for line in lines:
        click.echo(line, err=as_json or text is None)
