"""The kept changes of a run as a branch, fit to be handed over: made by plumbing, touching nothing else, never pushed.

Its commits change train.py alone. They bear the times of the verdicts, so the same run gives the same commits again.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from autoresearch.core.errors import UsageError
from autoresearch.core.gitcommand import Git, locate
from autoresearch.core.plumbing import Entry, Repository
from autoresearch.core.workspace import TRAIN, Workspace


class Step(NamedTuple):
    """One commit to be."""

    blob: str
    """Object name of its train.py."""
    message: str
    moment: datetime | None
    """Its date; None is now."""


class Branch(NamedTuple):
    """What was made."""

    name: str
    base: str
    """The commit that it begins from."""
    commits: tuple[str, ...]
    """Full names, in the order of the steps."""
    is_new: bool
    """False where it was there before, the same."""


def hand_over(workspace: Workspace, baseline: str, steps: Sequence[Step], name: str, onto: str = "") -> Branch:
    """Make a branch of some versions of train.py. Index, work tree and every other branch stay as they are.

    Args:
        workspace: of the run.
        baseline: commit whose train.py the first step changes.
        steps: one or more, in order.
        name: of the branch.
        onto: a branch or commit to begin from, in place of the baseline's; its other files are kept.

    Raises:
        UsageError: no name for a branch; the branch is there, with other commits; `onto` is not there, or its train.py
            is not the baseline's.
        AutoresearchError: git fails.
    """
    git = Git(workspace.directory)
    place = locate(workspace.directory)
    assert place is not None, "a workspace is in a repository"
    repository = Repository(git)
    _check_name(git, repository, name)
    base = _base(git, repository, place.prefix, baseline, onto) if onto else baseline
    commits, tip = [], base
    for step in steps:
        tree = repository.tree(tip, place.prefix, TRAIN, step.blob, executable=False)  # it keeps the mode that it has
        tip = repository.commit_tree(tree, tip, step.message, step.moment)
        commits.append(tip)
    ref = f"refs/heads/{name}"
    present = repository.refs(ref).get(ref)
    if present is None:
        repository.set_ref(ref, tip, None, "autoresearch: finalize")
    elif present.commit != tip:
        raise UsageError(
            f"the branch {name} is there already, with other commits",
            "choose another name: --branch NAME",
        )
    return Branch(name, base, tuple(commits), present is None)


def _check_name(git: Git, repository: Repository, name: str) -> None:
    ref = f"refs/heads/{name}"
    if name.startswith("-") or name == "HEAD" or git.run("check-ref-format", ref)[0] != 0:
        raise UsageError(f"{name!r} can't be the name of a branch", "letters, digits, - and / are fine: --branch tuned")
    if name.startswith("autoresearch/"):
        raise UsageError(f"{name}: branches below autoresearch/ are those of the runs", "choose another: --branch NAME")
    parts = name.split("/")
    parents = ["refs/heads/" + "/".join(parts[:end]) for end in range(1, len(parts))]
    obstacles = [found for found in repository.refs(ref, *parents) if found in parents or found.startswith(f"{ref}/")]
    if obstacles:
        other = obstacles[0].removeprefix("refs/heads/")
        raise UsageError(f"the branch {other} is in the way of {name}", "choose another name: --branch NAME")


def _base(git: Git, repository: Repository, prefix: str, baseline: str, onto: str) -> str:
    """The commit that `onto` names."""
    status, stdout, _ = git.run("rev-parse", "--quiet", "--verify", f"{onto}^{{commit}}")
    if status or onto.startswith("-"):
        raise UsageError(
            f"--onto {onto}: no such branch or commit", "git branch --all shows the branches that there are"
        )
    base = stdout.decode().strip()
    theirs, ours = (_train(repository, commit, prefix) for commit in (base, baseline))
    if theirs is None or ours is None or theirs.name != ours.name:
        what = f"has no {prefix}{TRAIN}" if theirs is None else f"has another {prefix}{TRAIN} than the run's baseline"
        command = shlex.join(["git", "-C", str(git.folder), "diff", baseline[:12], onto, "--", TRAIN])
        raise UsageError(f"--onto {onto}: it {what}", f"see the difference: {command}")
    return base


def _train(repository: Repository, commit: str, prefix: str) -> Entry | None:
    entry = repository.entries(commit, prefix).get(TRAIN)
    return entry if entry is not None and entry.is_regular_file else None
