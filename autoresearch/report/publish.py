"""Page and picture of a run as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autoresearch.core.files import write_atomic
from autoresearch.core.runs import SavedRun
from autoresearch.report import page, plot
from autoresearch.report.document import INSTALL_HINT, NEEDED, missing
from autoresearch.report.trajectory import of_run


def publish(run: SavedRun, html: Path | None, png: Path | None, defaults: bool) -> list[str]:
    """Write the page and the picture of a run, each in one piece.

    Args:
        html, png: where to.
        defaults: write what has no place given too, into the run's folder, where the packages for it are installed.

    Returns:
        A line for a person on each: where it lies, or what to install.

    Raises:
        AutoresearchError: what was asked for can't be written, or lacks a package.
    """
    kinds: list[tuple[str, Path | None, str, tuple[str, ...], Callable[[], str | bytes]]] = [
        ("page", html, page.NAME, NEEDED, lambda: page.build(run)),
        ("picture", png, plot.NAME, plot.NEEDED, lambda: plot.png(of_run(run))),
    ]
    lines, absent = [], []
    for kind, given, name, needed, make in kinds:
        if given is None and not defaults:
            continue
        if given is None and missing(needed):
            absent.append(kind)
            continue
        path = given or run.folder / name
        write_atomic(path, make())
        lines.append(f"{kind}: {path.resolve()}")
    if absent:
        lines.append(f"no {' and no '.join(absent)}: {INSTALL_HINT}")
    return lines
