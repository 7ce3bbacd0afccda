"""The workspace with real git: the user's files, index, HEAD and branches are as they were, whatever the setting."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from autoresearch.core import workspace as workspace_module
from autoresearch.core.errors import AutoresearchError, UsageError, WorkspaceBusy
from autoresearch.core.journal import Journal
from autoresearch.core.workspace import Workspace

SOURCE = "DEPTH = 4\n"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """git as a fresh user has it, apart from a name; the user's global configuration, for tests to extend."""
    for name in [name for name in os.environ if name.startswith("GIT_") or name == "EMAIL"]:
        monkeypatch.delenv(name)
    path = tmp_path / "gitconfig"
    path.write_text("[user]\n\tname = Zoë\n\temail = zoe@example.org\n[init]\n\tdefaultBranch = trunk\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    return path


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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "a folder with späces")


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


# Candidates


def test_a_run_leaves_the_users_files_alone(folder: Path) -> None:
    before = user_state(folder)
    baseline, worse, better = search(Workspace(folder))
    assert user_state(folder) == before | {"files": before["files"] | _link(folder)}
    assert git(folder, "status", "--porcelain") == ""
    assert baseline == git(folder, "rev-parse", "HEAD")
    assert git(folder, "rev-parse", "autoresearch/t") == better
    for n, commit in enumerate((baseline, worse, better)):
        assert git(folder, "rev-parse", f"refs/autoresearch/t/{n}") == commit
    assert changed_paths(folder, worse) == changed_paths(folder, better) == ["train.py"]
    assert git(folder, "log", "-1", "--format=%an %ae %cn %s %P", better) == (
        f"Zoë zoe@example.org Zoë experiment 2: flatter {baseline}"
    )
    assert git(folder, "fsck", "--strict", "--no-dangling") == ""


def _link(folder: Path) -> dict[str, Any]:
    link = folder / "results.tsv"
    assert link.is_symlink() and os.readlink(link) == ".autoresearch/t/results.tsv"
    return {str(link): (b"results\n", link.stat().st_mtime_ns)}


@pytest.mark.parametrize(
    "source",
    [
        "",
        "no final newline",
        "a\r\nb\r\n",
        "mixed\r\n\n\rend",
        "\ufeffbom",
        "naïve 中文 🙂 \u2028\x00\t\n\n\n",
        "x" * 300_000,
    ],
)
@pytest.mark.parametrize("autocrlf", ["false", "true", "input"])
def test_source_text_comes_back_byte_for_byte(folder: Path, source: str, autocrlf: str) -> None:
    git(folder, "config", "core.autocrlf", autocrlf)
    git(folder, "config", "core.safecrlf", "true")
    workspace = Workspace(folder)
    blob = workspace.write_blob(source)
    commit = workspace.commit_candidate("t", 1, blob, git(folder, "rev-parse", "HEAD"), "m")
    assert workspace.read(blob) == workspace.read(commit) == workspace.read(commit[:12]) == source


def test_reading_what_is_not_there_is_an_error(folder: Path) -> None:
    workspace = Workspace(folder)
    tree = git(folder, "rev-parse", "HEAD^{tree}")
    empty = git(folder, "commit-tree", git(folder, "mktree"), "-m", "empty")
    assert workspace.read(tree) == SOURCE
    for name in ("0" * 40, "nonsense", empty, ""):
        with pytest.raises(UsageError, match=r"no train\.py"):
            workspace.read(name)
    (folder / "train.py").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        workspace.read(workspace.baseline("t"))
    with pytest.raises(UsageError, match="UTF-8"):
        workspace.write_blob("\udc80")


def test_a_repeated_commit_is_the_same_one_and_other_content_replaces_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(folder)
    head = git(folder, "rev-parse", "HEAD")
    first = workspace.commit_candidate("t", 1, workspace.write_blob("A = 1\n"), head, "one")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2001-01-01T00:00:00Z")
    assert workspace.commit_candidate("t", 1, workspace.write_blob("A = 1\n"), head, "one") == first
    other = workspace.commit_candidate("t", 1, workspace.write_blob("A = 2\n"), head, "two")
    assert other != first
    assert git(folder, "rev-parse", "refs/autoresearch/t/1") == other
    on_top = workspace.commit_candidate("t", 1, workspace.write_blob("A = 2\n"), first, "two")
    assert git(folder, "rev-parse", f"{on_top}^") == first
    root = workspace.commit_candidate("t", 2, workspace.write_blob("A = 3\n"), None, "")
    assert git(folder, "ls-tree", "-r", "--name-only", root) == "train.py"
    assert git(folder, "log", "--format=%P", root) == ""


def test_a_message_may_hold_anything(folder: Path) -> None:
    workspace = Workspace(folder)
    git(folder, "config", "i18n.commitEncoding", "ISO-8859-1")
    message = "-F naïve 🙂\n\n# kept\n\0\udc80 end"
    commit = workspace.commit_candidate("t", 1, workspace.write_blob("A = 1\n"), None, message)
    shown = git(folder, "-c", "i18n.logOutputEncoding=UTF-8", "log", "-1", "--format=%B", commit)
    assert shown.strip() == "-F naïve 🙂\n\n# kept\n ? end"


def test_a_ref_that_was_moved_meanwhile_is_not_overwritten(folder: Path) -> None:
    repository = Workspace(folder)._repository
    head = git(folder, "rev-parse", "HEAD")
    other = git(folder, "commit-tree", "HEAD^{tree}", "-m", "other")
    for former in (None, other):
        with pytest.raises(AutoresearchError, match="cannot lock ref"):
            repository.set_ref("refs/heads/trunk", other, former, "reason")
    assert git(folder, "rev-parse", "trunk") == head
    repository.set_ref("refs/heads/trunk", other, head, "reason")
    assert git(folder, "rev-parse", "trunk") == other


def test_the_mode_of_train_py_is_kept(folder: Path) -> None:
    workspace = Workspace(folder)
    git(folder, "update-index", "--chmod=+x", "train.py")
    git(folder, "commit", "--quiet", "-m", "executable")
    commit = workspace.commit_candidate("t", 1, workspace.write_blob("A = 1\n"), workspace.baseline("t"), "m")
    assert git(folder, "ls-tree", commit, "train.py").startswith("100755 ")
    assert git(folder, "ls-tree", commit, "notes.md").startswith("100644 ")


def test_a_workspace_below_the_top_of_a_repository(tmp_path: Path) -> None:
    top = make_repository(tmp_path / "repository", **{"experiments/ü [1]*/train.py": "A = 1\n", "experiments/b": "b\n"})
    folder = top / "experiments" / "ü [1]*"
    git(top, "config", "core.quotepath", "true")
    before = user_state(folder)
    baseline, worse, better = search(Workspace(folder))
    assert user_state(folder) == before | {"files": before["files"] | _link(folder)}
    assert baseline == git(top, "rev-parse", "HEAD")
    assert changed_paths(top, worse) == changed_paths(top, better) == ["experiments/ü [1]*/train.py"]
    assert Workspace(folder).read(better) == "DEPTH = 3\n"
    assert git(top, "status", "--porcelain") == ""


# The baseline


def test_the_baseline_is_what_the_user_sees_and_nothing_else_of_a_dirty_tree(folder: Path) -> None:
    (folder / "train.py").write_text("DEPTH = 8\n")
    (folder / "notes.md").write_text("unsaved\n")
    (folder / "untracked.txt").write_text("untracked\n")
    (folder / "staged.txt").write_text("staged\n")
    git(folder, "add", "staged.txt")
    workspace = Workspace(folder)
    workspace.exclude()
    before = user_state(folder)
    baseline, _, better = search(workspace)
    assert user_state(folder) == before | {"files": before["files"] | _link(folder)}
    assert git(folder, "rev-parse", f"{baseline}^") == git(folder, "rev-parse", "HEAD")
    assert workspace.read(baseline) == "DEPTH = 8\n"
    assert changed_paths(folder, baseline) == changed_paths(folder, better) == ["train.py"]
    assert workspace.baseline("u") != baseline, "another run has a commit of its own"


def test_a_repeated_baseline_is_the_same_until_train_py_changes(folder: Path) -> None:
    workspace = Workspace(folder)
    (folder / "train.py").write_text("DEPTH = 8\n")
    first = workspace.baseline("t")
    assert workspace.baseline("t") == first
    (folder / "train.py").write_text("DEPTH = 9\n")
    second = workspace.baseline("t")
    assert workspace.read(second) == "DEPTH = 9\n"
    assert git(folder, "rev-parse", "autoresearch/t") == git(folder, "rev-parse", "refs/autoresearch/t/0") == second
    workspace.advance("t", workspace.commit_candidate("t", 1, workspace.write_blob("A = 1\n"), second, "m"))
    with pytest.raises(UsageError, match="autoresearch/t"):
        workspace.baseline("t")


@pytest.mark.parametrize("ignored", [False, True])
def test_a_baseline_that_is_not_tracked(tmp_path: Path, ignored: bool) -> None:
    folder = make_repository(tmp_path / "r", **{".gitignore": "sub/\n" if ignored else ""})
    (folder / "sub").mkdir()
    (folder / "sub" / "train.py").write_text("A = 1\n")
    (folder / "sub" / "train.py").chmod(0o755)
    baseline = search(Workspace(folder / "sub"))[0]
    assert changed_paths(folder, baseline) == ["sub/train.py"]
    assert git(folder, "ls-tree", baseline, "sub/train.py").startswith("100755 ")
    assert git(folder, "status", "--porcelain") == ("" if ignored else "?? sub/")


def test_a_baseline_on_an_unborn_branch(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "r")
    folder = tmp_path / "r"
    (folder / "train.py").write_text("A = 1\n")
    before = user_state(folder)
    baseline = search(Workspace(folder))[0]
    assert git(folder, "log", "--format=%P", baseline) == ""
    assert git(folder, "ls-tree", "-r", "--name-only", baseline) == "train.py"
    assert user_state(folder)["head"] == before["head"]


def test_a_train_py_that_git_calls_unmodified_is_head(folder: Path) -> None:
    """With core.autocrlf the work tree holds CRLF where the repository holds LF."""
    git(folder, "config", "core.autocrlf", "true")
    git(folder, "config", "core.safecrlf", "true")
    (folder / "train.py").write_bytes(SOURCE.replace("\n", "\r\n").encode())
    assert Workspace(folder).baseline("t") == git(folder, "rev-parse", "HEAD")


def test_a_linked_train_py_becomes_a_file(folder: Path) -> None:
    (folder / "real.py").write_text("A = 1\n")
    (folder / "train.py").unlink()
    (folder / "train.py").symlink_to("real.py")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "link")
    workspace = Workspace(folder)
    baseline = workspace.baseline("t")
    assert workspace.read(baseline) == "A = 1\n"
    assert git(folder, "ls-tree", baseline, "train.py").startswith("100644 blob")


def test_a_detached_head(folder: Path) -> None:
    git(folder, "checkout", "--quiet", "--detach")
    before = user_state(folder)
    search(Workspace(folder))
    assert user_state(folder) == before | {"files": before["files"] | _link(folder)}


# The branch


def next_keep(workspace: Workspace, n: int, parent: str, source: str) -> str:
    return workspace.commit_candidate("t", n, workspace.write_blob(source), parent, f"experiment {n}")


def test_a_branch_that_is_checked_out_is_fast_forwarded_with_its_tree(folder: Path) -> None:
    workspace = Workspace(folder)
    better = search(workspace)[-1]
    git(folder, "checkout", "--quiet", "autoresearch/t")
    (folder / "notes.md").write_text("unsaved\n")
    (folder / "mine.txt").write_text("mine\n")
    best = next_keep(workspace, 3, better, "DEPTH = 2\n")
    assert workspace.advance("t", best) is None
    assert git(folder, "rev-parse", "HEAD") == best
    assert (folder / "train.py").read_text() == "DEPTH = 2\n"
    assert (folder / "notes.md").read_text() == "unsaved\n"
    assert git(folder, "status", "--porcelain").splitlines() == [" M notes.md", "?? mine.txt"]


def test_a_dirty_train_py_stays_and_the_user_is_told_until_it_works(folder: Path) -> None:
    workspace = Workspace(folder)
    better = search(workspace)[-1]
    git(folder, "checkout", "--quiet", "autoresearch/t")
    git(folder, "config", "merge.autoStash", "true")
    (folder / "train.py").write_text("MINE = 1\n")
    before = user_state(folder)
    third = next_keep(workspace, 3, better, "DEPTH = 2\n")
    note = workspace.advance("t", third)
    assert note is not None and "local changes" in note and f"git merge --ff-only {third[:10]}" in note
    assert user_state(folder) == before
    assert git(folder, "rev-parse", "refs/autoresearch/t/3") == third
    fourth = next_keep(workspace, 4, third, "DEPTH = 1\n")
    assert workspace.advance("t", fourth) is not None
    git(folder, "stash", "--quiet")
    assert workspace.advance("t", fourth) is None
    assert git(folder, "log", "--format=%s", "-3").splitlines() == [
        "experiment 4",
        "experiment 3",
        "experiment 2: flatter",
    ]


def test_a_branch_in_another_worktree_moves_there(folder: Path, tmp_path: Path) -> None:
    workspace = Workspace(folder)
    better = search(workspace)[-1]
    other = tmp_path / "ünother tree"
    git(folder, "worktree", "add", "--quiet", str(other), "autoresearch/t")
    before = user_state(folder)
    best = next_keep(workspace, 3, better, "DEPTH = 2\n")
    assert workspace.advance("t", best) is None
    assert (other / "train.py").read_text() == "DEPTH = 2\n"
    assert git(other, "status", "--porcelain") == ""
    assert user_state(folder) == before
    shutil.rmtree(other)
    last = next_keep(workspace, 4, best, "DEPTH = 1\n")
    assert workspace.advance("t", last) is None
    assert git(folder, "rev-parse", "autoresearch/t") == last


def test_a_search_in_a_linked_worktree(folder: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    git(folder, "worktree", "add", "--quiet", "--detach", str(linked))
    before = user_state(folder)
    search(Workspace(linked))
    assert git(linked, "status", "--porcelain") == ""
    assert user_state(folder) == before


def test_commits_of_the_users_on_the_branch_are_not_left_behind(folder: Path) -> None:
    workspace = Workspace(folder)
    better = search(workspace)[-1]
    git(folder, "checkout", "--quiet", "autoresearch/t")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "mine")
    mine = git(folder, "rev-parse", "HEAD")
    best = next_keep(workspace, 3, better, "DEPTH = 2\n")
    for branch in ("autoresearch/t", "trunk"):
        git(folder, "checkout", "--quiet", branch)
        note = workspace.advance("t", best)
        assert note is not None and "not of this run" in note
        assert git(folder, "rev-parse", "autoresearch/t") == mine


def test_a_withdrawn_keep_takes_the_branch_back_unless_it_is_checked_out(folder: Path) -> None:
    workspace = Workspace(folder)
    baseline, _, better = search(workspace)
    git(folder, "checkout", "--quiet", "autoresearch/t")
    before = user_state(folder)
    note = workspace.advance("t", baseline)
    assert note is not None and "checked out" in note and "go back" in note
    assert user_state(folder) == before
    git(folder, "checkout", "--quiet", "trunk")
    assert workspace.advance("t", baseline) is None
    assert git(folder, "rev-parse", "autoresearch/t") == baseline
    assert git(folder, "cat-file", "-t", better) == "commit"


def test_a_deleted_branch_is_made_again(folder: Path) -> None:
    workspace = Workspace(folder)
    better = search(workspace)[-1]
    git(folder, "branch", "--quiet", "-D", "autoresearch/t")
    assert workspace.advance("t", better) is None
    assert git(folder, "rev-parse", "autoresearch/t") == better


# Settings that get in the way


def test_no_hook_runs_nothing_is_signed_or_pushed(folder: Path, tmp_path: Path, config: Path) -> None:
    remote = tmp_path / "remote.git"
    git(tmp_path, "init", "--quiet", "--bare", str(remote))
    git(folder, "remote", "add", "origin", str(remote))
    git(folder, "push", "--quiet", "--set-upstream", "origin", "trunk")
    remote_refs = git(remote, "for-each-ref")
    git(folder, "update-ref", "refs/autoresearch/t/0", "trunk")
    git(folder, "checkout", "--quiet", "-b", "autoresearch/t")
    ran = tmp_path / "a hook ran"
    hooks = folder / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in (
        "pre-commit",
        "commit-msg",
        "post-commit",
        "reference-transaction",
        "post-merge",
        "pre-push",
        "post-index-change",
    ):
        (hooks / name).write_text(f"#!/bin/sh\ntouch '{ran}'\nexit 1\n")
        (hooks / name).chmod(0o755)
    fsmonitor = tmp_path / "fsmonitor"
    shutil.copy(hooks / "pre-commit", fsmonitor)
    settings = f"""
        [commit]
        gpgsign = true
        [gpg]
        program = /bin/false
        [core]
        editor = /bin/false
        fsmonitor = {fsmonitor}
        splitIndex = true
        [merge]
        ff = false
        verifySignatures = true
    """
    config.write_text(config.read_text() + textwrap.dedent(settings))
    workspace = Workspace(folder)
    better = search(workspace)[-1]
    assert workspace.advance("t", next_keep(workspace, 3, better, "DEPTH = 2\n")) is None
    assert not ran.exists()
    assert git(remote, "for-each-ref") == remote_refs
    assert "gpgsig" not in git(folder, "cat-file", "commit", "autoresearch/t")
    created = Workspace.create(tmp_path / "new", {"train.py": SOURCE})
    assert git(created.directory, "log", "--format=%s %G?") == "autoresearch: new workspace N"
    # The hooks do run for the user, so their silence above means something.
    git(folder, "update-ref", "refs/heads/x", better, check=False)
    assert ran.exists()


def test_variables_of_another_repository_are_ignored(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_repository(tmp_path / "other", **{"train.py": "OTHER = 1\n"})
    before, other_before = user_state(folder), user_state(other)
    with monkeypatch.context() as patch:
        patch.setenv("GIT_DIR", str(other / ".git"))
        patch.setenv("GIT_WORK_TREE", str(other))
        patch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
        patch.setenv("GIT_OBJECT_DIRECTORY", str(other / ".git" / "objects"))
        patch.setenv("GIT_PREFIX", "elsewhere/")
        patch.setenv("GIT_ICASE_PATHSPECS", "1")
        commits = search(Workspace(folder))
        created = Workspace.create(tmp_path / "new", {"train.py": SOURCE}).directory
        assert os.environ["GIT_DIR"] == str(other / ".git")
    assert user_state(other) == other_before
    assert user_state(folder) == before | {"files": before["files"] | _link(folder)}
    assert git(folder, "rev-parse", "autoresearch/t") == commits[-1]
    assert git(created, "ls-files") == "train.py"


@pytest.mark.parametrize(
    ("settings", "author"),
    [
        ("", "autoresearch autoresearch@localhost"),
        ("[user]\n\tname =\n\tuseConfigOnly = true\n", "autoresearch autoresearch@localhost"),
        ("[user]\n\tname = Zoë\n", "Zoë autoresearch@localhost"),
        ("[user]\n\tname = Zoë\n\temail = z@x\n[author]\n\tname = Ann\n", "Ann z@x"),
    ],
)
def test_an_identity_that_is_not_configured(folder: Path, config: Path, settings: str, author: str) -> None:
    config.write_text(settings)
    commit = Workspace(folder).commit_candidate("t", 1, Workspace(folder).write_blob("A = 1\n"), None, "m")
    assert git(folder, "log", "-1", "--format=%an %ae", commit) == author


def test_submodules_and_a_sparse_index(tmp_path: Path) -> None:
    library = make_repository(tmp_path / "library")
    top = make_repository(tmp_path / "top", **{"work/train.py": "A = 1\n", "far/away/file": "far\n"})
    git(top, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "library")
    git(top, "commit", "--quiet", "-m", "submodule")
    git(top, "sparse-checkout", "init", "--cone", "--sparse-index")
    git(top, "sparse-checkout", "set", "work")
    (top / "work" / "train.py").write_text("A = 2\n")
    workspace = Workspace(top / "work")
    workspace.exclude()
    before = user_state(top)
    baseline, _, better = search(workspace)
    assert user_state(top) == before | {"files": before["files"] | _link(top / "work")}
    for commit in (baseline, better):
        assert changed_paths(top, commit) == ["work/train.py"]
        assert "160000 commit" in git(top, "ls-tree", commit, "library")
    assert git(top, "fsck", "--strict", "--no-dangling") == ""


def test_a_workspace_that_is_a_submodule(tmp_path: Path) -> None:
    library = make_repository(tmp_path / "library")
    top = make_repository(tmp_path / "top")
    git(top, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "library")
    git(top, "commit", "--quiet", "-m", "submodule")
    search(Workspace(top / "library"))
    assert git(top, "status", "--porcelain") == ""
    assert git(top / "library", "status", "--porcelain") == ""


def test_a_partial_clone_fetches_nothing(folder: Path, tmp_path: Path) -> None:
    git(folder, "config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--no-local", "--filter=blob:none", "--no-checkout", str(folder), str(clone))
    git(clone, "sparse-checkout", "set", "--no-cone", "/train.py")
    git(clone, "checkout", "--quiet", "trunk")
    missing = git(clone, "rev-list", "--objects", "--missing=print", "--all")
    assert "?" in missing, "notes.md is not here"
    (clone / "train.py").write_text("A = 2\n")
    git(clone, "remote", "set-url", "origin", str(tmp_path / "gone"))
    better = search(Workspace(clone))[-1]
    assert git(clone, "ls-tree", "--name-only", better).splitlines() == ["notes.md", "train.py"]


# What can't be a workspace


def test_folders_that_cannot_be_used(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a folder"):
        Workspace(tmp_path / "missing")
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "train.py").write_text(SOURCE)
    with pytest.raises(UsageError, match="not in a git repository") as caught:
        Workspace(plain)
    assert "autoresearch init" in caught.value.hint
    git(tmp_path, "init", "--quiet", "--bare", "bare.git")
    for place in (tmp_path / "bare.git", folder / ".git"):
        with pytest.raises(UsageError, match="no work tree"):
            Workspace(place)
    empty = tmp_path / "empty"
    git(tmp_path, "init", "--quiet", str(empty))
    with pytest.raises(UsageError, match=r"no train\.py"):
        Workspace(empty)


def test_a_repository_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(UsageError, match="another user owns it") as caught:
        Workspace(folder)
    assert "safe.directory" in caught.value.hint and str(folder) in caught.value.hint


def test_no_git_and_an_old_git(folder: Path, tmp_path: Path) -> None:
    """GitPython looks for git when it is imported, so each case has a process of its own."""
    code = """
        import sys
        from autoresearch.core.errors import UsageError
        from autoresearch.core.workspace import Workspace
        try:
            Workspace(sys.argv[1])
        except UsageError as error:
            print(error.message, "|", error.hint)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(folder)]
    tools = tmp_path / "bin"
    tools.mkdir()

    def said() -> str:
        return subprocess.run(command, env={"PATH": str(tools)}, capture_output=True, text=True, check=True).stdout

    assert "git can't be used" in said() and "install git 2.30" in said()
    (tools / "git").write_text("#!/bin/sh\necho git version 2.17.1\n")
    (tools / "git").chmod(0o755)
    assert "git 2.17.1 is too old | install git 2.30" in said()


def test_a_failure_of_git_is_said_in_its_words(folder: Path) -> None:
    with pytest.raises(AutoresearchError, match=r"git ls-tree failed in .*: fatal: "):
        Workspace(folder).commit_candidate("t", 1, Workspace(folder).write_blob("A = 1\n"), "0" * 39 + "1", "m")


def test_a_folder_that_went_away_is_not_the_current_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace(folder)
    folder.rename(folder.with_name("moved"))
    monkeypatch.chdir(folder.with_name("moved"))
    with pytest.raises(AutoresearchError, match="cannot change to"):
        workspace.write_blob("A = 1\n")


# Tags


def begin_run(workspace: Workspace, tag: str) -> None:
    workspace.baseline(tag)
    Journal(workspace.run_dir(tag) / "journal.jsonl").append("run")


def test_tags_are_dates_and_no_run_takes_that_of_another(folder: Path) -> None:
    workspace = Workspace(folder)
    day = date(2025, 11, 30)
    assert workspace.tags() == []
    assert workspace.new_tag(day) == "nov30"
    begin_run(workspace, "nov30")
    assert workspace.new_tag(day) == "nov30-2"
    git(folder, "branch", "autoresearch/nov30-2")
    git(folder, "update-ref", "refs/autoresearch/nov30-3/7", "HEAD")
    assert workspace.new_tag(day) == "nov30-4"
    assert workspace.new_tag(date(2026, 3, 5)) == "mar5"
    begin_run(workspace, "mine")
    assert workspace.tags() == ["nov30", "mine"]
    Journal(workspace.run_dir("nov30") / "journal.jsonl").append("resumed")
    os.utime(workspace.run_dir("mine") / "journal.jsonl", (1, 1))
    assert workspace.tags() == ["mine", "nov30"]
    for tag in ("mine", "nov30", "new", "näme_1.2"):
        workspace.check_tag(tag)
    for tag in ("nov30-2", "nov30-3"):
        with pytest.raises(UsageError, match="no run of this workspace"):
            workspace.check_tag(tag)


@pytest.mark.parametrize(
    "tag",
    [
        "",
        "a/b",
        "../up",
        ".hidden",
        "-x",
        "a b",
        "a..b",
        "a~1",
        "a.lock",
        "lock",
        "lock.json",
        "a\\b",
        "a\n",
        "@{",
        "*",
    ],
)
def test_a_tag_is_a_name(folder: Path, tag: str) -> None:
    with pytest.raises(UsageError, match="can't be the tag"):
        Workspace(folder).check_tag(tag)


def test_a_branch_named_autoresearch_is_in_the_way(folder: Path) -> None:
    git(folder, "branch", "autoresearch")
    with pytest.raises(UsageError, match="in the way") as caught:
        Workspace(folder).new_tag()
    assert "git branch -m autoresearch" in caught.value.hint


# Ignored files and results.tsv


def test_excludes_are_added_once_and_nothing_is_lost(folder: Path) -> None:
    path = folder / ".git" / "info" / "exclude"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"# mine\r\n*.bak")
    Workspace(folder).exclude()
    Workspace(folder).exclude()
    assert path.read_bytes() == b"# mine\r\n*.bak\n/.autoresearch/\n/results.tsv\n"
    shutil.rmtree(path.parent)
    Workspace(folder).exclude()
    assert path.read_bytes() == b"/.autoresearch/\n/results.tsv\n"


def test_results_links_to_the_run_and_follows_the_next(folder: Path) -> None:
    workspace = Workspace(folder)
    for tag in ("a", "b", "b"):
        assert workspace.link_results(tag) is None
        assert os.readlink(folder / "results.tsv") == f".autoresearch/{tag}/results.tsv"
    workspace.exclude()
    assert git(folder, "status", "--porcelain") == ""


def put_file(folder: Path) -> None:
    (folder / "results.tsv").write_text("mine\n")


def put_link(folder: Path) -> None:
    (folder / "results.tsv").symlink_to("notes.md")


def put_tracked(folder: Path) -> None:
    put_file(folder)
    git(folder, "add", "results.tsv")
    (folder / "results.tsv").unlink()


@pytest.mark.parametrize("put", [put_file, put_link, put_tracked])
def test_a_results_file_of_the_users_stays(folder: Path, put: Callable[[Path], None]) -> None:
    put(folder)
    workspace = Workspace(folder)
    workspace.exclude()
    before = user_state(folder)
    note = workspace.link_results("t")
    assert note is not None and ".autoresearch/t/results.tsv" in note
    assert user_state(folder) == before
    assert "results.tsv" in git(folder, "status", "--porcelain")


# A new workspace


FILES = {"train.py": SOURCE, "program.md": "naïve\n", ".gitignore": "*.md\n", "autoresearch.toml": 'preset = "p"\r\n'}


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_workspace_is_a_repository_with_one_commit(tmp_path: Path, config: Path, exists: bool) -> None:
    config.write_text("[core]\n\tautocrlf = true\n\tsafecrlf = true\n")
    folder = tmp_path / "deep" / "ü new"
    if exists:
        folder.mkdir(parents=True)
    workspace = Workspace.create(folder, FILES)
    assert {name: (folder / name).read_bytes().decode() for name in FILES} == FILES
    assert git(folder, "log", "--format=%an %s") == "autoresearch autoresearch: new workspace"
    assert git(folder, "symbolic-ref", "HEAD") == "refs/heads/main"
    assert git(folder, "status", "--porcelain") == ""
    assert sorted(git(folder, "ls-files").splitlines()) == sorted(FILES)
    assert workspace.baseline("t") == git(folder, "rev-parse", "HEAD")


def test_a_new_workspace_in_a_repository_is_part_of_it(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "mine.txt").write_text("mine\n")
    before = user_state(folder)
    workspace = Workspace.create(folder / "sub", FILES)
    after = user_state(folder)
    assert (after["head"], after["index"], after["branches"]) == (before["head"], before["index"], before["branches"])
    assert git(workspace.directory, "rev-parse", "--show-toplevel") == str(folder)
    assert (folder / "sub" / "mine.txt").read_text() == "mine\n"


def test_a_new_workspace_with_a_repository_of_its_own(folder: Path) -> None:
    before = user_state(folder)
    inner = folder / "deep" / "autoresearch-lab"
    search(Workspace.create(inner, FILES, own_repository=True))
    assert git(inner, "rev-parse", "--show-toplevel") == str(inner)
    after = user_state(folder)
    assert after | {"files": None} == before | {"files": None}
    assert git(folder, "status", "--porcelain") == git(inner, "status", "--porcelain") == ""
    assert [line for line in git(folder, "for-each-ref").splitlines() if "autoresearch" in line] == []


def test_nothing_is_overwritten(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"train\.py exists already"):
        Workspace.create(folder, FILES)
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("years\n")
    with pytest.raises(UsageError, match="neither empty nor in a git repository"):
        Workspace.create(full, FILES)
    assert [path.name for path in full.iterdir()] == ["thesis.tex"]
    (full / "program.md").symlink_to("nowhere")
    with pytest.raises(UsageError, match=r"program\.md exists already"):
        Workspace.create(full, FILES)
    with pytest.raises(UsageError, match="not a folder"):
        Workspace.create(full / "thesis.tex", FILES)


# The lock


HOLDER = """
    import sys, time
    from autoresearch.core.workspace import Workspace
    with Workspace(sys.argv[1]).lock():
        print("held", flush=True)
        time.sleep(600)
"""


def test_a_second_search_is_told_who_holds_the_workspace_and_kill_9_frees_it(folder: Path) -> None:
    workspace = Workspace(folder)
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        owner = json.loads((folder / ".autoresearch" / "lock.json").read_text())
        assert owner["pid"] == holder.pid
        with (
            pytest.raises(WorkspaceBusy, match=f"process {holder.pid}, since {owner['since'][:10]}") as caught,
            workspace.lock(),
        ):
            pytest.fail("two searches in one workspace")
        assert caught.value.exit_code == 6
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert (folder / ".autoresearch" / "lock.json").exists(), "the killed process left its signature"
    with workspace.lock():
        assert json.loads((folder / ".autoresearch" / "lock.json").read_text())["pid"] == os.getpid()
        with pytest.raises(WorkspaceBusy), workspace.lock():
            pytest.fail("two searches in one process")
    with workspace.lock():
        pass
    assert not (folder / ".autoresearch" / "lock.json").exists()


def test_a_lock_without_a_signature(folder: Path) -> None:
    workspace = Workspace(folder)
    with workspace.lock():
        (folder / ".autoresearch" / "lock.json").write_text("{")
        with pytest.raises(WorkspaceBusy, match="another process"), workspace.lock():
            pytest.fail("two searches in one workspace")


def test_a_folder_that_cannot_be_written(folder: Path) -> None:
    (folder / ".autoresearch").write_text("a file")
    for action in (lambda: workspace_module.Workspace(folder).run_dir("t"), Workspace(folder).lock().__enter__):
        with pytest.raises(AutoresearchError, match=r"\.autoresearch"):
            action()
