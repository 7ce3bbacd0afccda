"""Real repositories for the tests of the workspace, and what of them is the user's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from autoresearch.core.workspace import Workspace

SOURCE = "DEPTH = 4\n"


def git(folder: Path, *args: str, check: bool = True, **env: str) -> str:
    done = subprocess.run(["git", *args], cwd=folder, env={**os.environ, **env}, capture_output=True, text=True)
    if check:
        assert done.returncode == 0, done.stderr
    return done.stdout.removesuffix("\n")


def make_repository(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet")
    for name, text in {"train.py": SOURCE, "notes.md": "notes\n", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--no-verify", "--no-gpg-sign", "-m", "first")
    return folder


def user_state(folder: Path) -> dict[str, Any]:
    """All that is the user's: HEAD, index, branches, what is in the work tree, and whether git calls it clean."""
    top = Path(git(folder, "rev-parse", "--show-toplevel"))
    index = Path(git(folder, "rev-parse", "--absolute-git-dir")) / "index"
    return {
        "head": git(folder, "symbolic-ref", "HEAD", check=False) + " " + git(folder, "rev-parse", "HEAD", check=False),
        "index": index.read_bytes() if index.exists() else None,
        "branches": [line for line in git(folder, "for-each-ref").splitlines() if "autoresearch/" not in line],
        "files": {
            str(path): (path.read_bytes(), path.stat().st_mtime_ns)
            for path in sorted(top.rglob("*"))
            if path.is_file() and ".git" not in path.parts and ".autoresearch" not in path.parts
        },
        "status": git(folder, "--no-optional-locks", "status", "--porcelain", "--branch"),
    }


def search(workspace: Workspace, tag: str = "t") -> list[str]:
    """What a run does: a baseline, a candidate that is discarded and one that is kept; the three commits."""
    workspace.exclude()
    baseline = workspace.baseline(tag)
    worse = workspace.commit_candidate(tag, 1, workspace.write_blob("DEPTH = 5\n"), baseline, "experiment 1: deeper")
    better = workspace.commit_candidate(tag, 2, workspace.write_blob("DEPTH = 3\n"), baseline, "experiment 2: flatter")
    workspace.run_dir(tag).joinpath("results.tsv").write_text("results\n")
    assert workspace.link_results(tag) is None
    assert workspace.advance(tag, better) is None
    return [baseline, worse, better]


def changed_paths(folder: Path, commit: str) -> list[str]:
    return git(
        folder, "-c", "core.quotepath=false", "diff-tree", "-r", "--name-only", f"{commit}^", commit
    ).splitlines()


def next_keep(workspace: Workspace, n: int, parent: str, source: str) -> str:
    return workspace.commit_candidate("t", n, workspace.write_blob(source), parent, f"experiment {n}")


def link(folder: Path) -> dict[str, Any]:
    """What a run adds to the files of `user_state`: the link to its results."""
    path = folder / "results.tsv"
    assert path.is_symlink() and os.readlink(path) == ".autoresearch/t/results.tsv"
    return {str(path): (b"results\n", path.stat().st_mtime_ns)}
