"""What a run leaves in the user's folder, and how git is told to look away."""

from __future__ import annotations

import os
import re
from pathlib import Path

from autoresearch.core.files import io_error, write_atomic
from autoresearch.core.plumbing import Git

STATE = ".autoresearch"
RESULTS = "results.tsv"


def exclude(git: Git, *paths: str) -> None:
    """Add paths, relative to the top of the work tree, to the repository's `info/exclude`, once.

    Raises:
        AutoresearchError: git or the file system fails.
    """
    target = (git.folder / git("rev-parse", "--git-path", "info/exclude")).resolve()
    patterns = [os.fsencode("/" + re.sub(r"([\\*?\[])", r"\\\1", path)) for path in paths]
    try:
        target.parent.mkdir(exist_ok=True)
        content = target.read_bytes() if target.exists() else b""
    except OSError as error:
        raise io_error("read", target, error) from error
    missing = [pattern for pattern in patterns if pattern not in content.splitlines()]
    if missing:
        start = content if not content or content.endswith(b"\n") else content + b"\n"
        write_atomic(target, start + b"".join(pattern + b"\n" for pattern in missing))


def results_are_the_users(git: Git) -> bool:
    """Whether results.tsv in git's folder is a file, or tracked, or a link to somewhere else."""
    path = git.folder / RESULTS
    ours = path.is_symlink() and path.readlink().parts[0] == STATE
    return (os.path.lexists(path) and not ours) or bool(git("ls-files", "--", RESULTS))


def link_results(git: Git, tag: str) -> str | None:
    """Make results.tsv in git's folder a link to that of a run.

    Returns:
        None, or why it isn't one, to be told to the user; where to find the results then.
    """
    link, target = git.folder / RESULTS, Path(STATE, tag, RESULTS)
    if results_are_the_users(git):
        return f"{RESULTS} is a file of yours and stays as it is; the results of this run are in {target}"
    temporary = git.folder / STATE / f"{RESULTS}.link"
    try:
        if link.is_symlink() and link.readlink() == target:
            return None
        temporary.parent.mkdir(exist_ok=True)
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(link)
    except OSError as error:
        return f"{RESULTS} can't be made a link ({error.strerror}); the results of this run are in {target}"
    return None
