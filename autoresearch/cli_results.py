"""The commands that tell of a run: status, report, compare, finalize."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from autoresearch.console import POSITIVE, common, json_option, print_document, watch_run


@click.command()
@click.option("--tag", default="", help="Run; default: the latest; with --watch, the one that is searched.")
@click.option("--watch", is_flag=True, help="Follow the search from here until it ends; Ctrl-C leaves it alone.")
@click.option("--interval", type=POSITIVE, default=1.0, show_default=True, help="Seconds between two looks.")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout; with --watch, JSON Lines: one for each change.")
@common
def status(workspace: Path, tag: str, watch: bool, interval: float, as_json: bool, verbose: bool, debug: bool) -> None:
    """Where a run stands; also while it searches.

    \b
    Example: autoresearch status --json
             autoresearch status --watch
    """
    from autoresearch.core.runs import load
    from autoresearch.report import summary

    if watch:
        watch_run(workspace, tag, interval, verbose, as_json)
        return
    saved = load(workspace, tag)
    if as_json:
        print_document(summary.status(saved))
    else:
        click.echo(summary.status_text(saved))


@click.command()
@click.option("--tag", default="", help="Run; default: the latest.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="The page; default: beside the journal.")
@click.option(
    "--png", type=click.Path(path_type=Path, dir_okay=False), help="The picture; default: beside the journal."
)
@json_option
@common
def report(
    workspace: Path, tag: str, html: Path | None, png: Path | None, verbose: bool, debug: bool, as_json: bool
) -> None:
    """What a run found: a text, the conclusion first, an HTML page and a picture of its progress.

    \b
    Example: autoresearch report --tag nov30
             autoresearch report --html ~/nov30.html
    """
    from autoresearch.core.runs import load
    from autoresearch.report import publish, summary

    saved = load(workspace, tag)
    if as_json:
        print_document(summary.report(saved))
    else:
        click.echo(summary.report_text(saved))
    for line in publish.publish(saved, html, png, defaults=not as_json):
        click.echo(line, err=as_json)


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page too.")
@json_option
@common
def compare(
    workspace: Path, runs: tuple[str, ...], html: Path | None, verbose: bool, debug: bool, as_json: bool
) -> None:
    """Searches side by side; of one alone, what it gained and by what.

    A RUN is a workspace, a tag of this one, a journal.jsonl or a results.tsv, also of another tool. Scores are ranked
    where they were measured alike; everything else is compared relative to each search's own baseline.

    \b
    Example: autoresearch compare nov30 ../macbook/lab h100/results.tsv --html compare.html
    """
    from autoresearch.report import compare as comparison
    from autoresearch.report import compare_text, tables

    found = comparison.document([tables.read(name, workspace) for name in runs])
    if as_json:
        print_document(found)
    else:
        compare_text.show(compare_text.sections(found), sys.stdout)
    if html is not None:
        from autoresearch.report import compare_page

        compare_page.write(found, html)
        click.echo(f"page: {html.resolve()}", err=as_json)


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
        f"to push it: git -C {shlex.quote(str(saved.place))} push REMOTE {shlex.quote(name)}",
    ]
    if as_json:
        print_document(found)
    elif text is None:
        click.echo(found["text"], nl=False)
    else:
        lines.append(f"text of the pull request: {text.resolve()}")
    for line in lines:
        click.echo(line, err=as_json or text is None)
