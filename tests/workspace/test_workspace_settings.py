"""Hooks, signing, variables, submodules, partial clones; and what can't be a workspace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from git_harness import SOURCE, changed_paths, git, link, make_repository, next_keep, search, user_state

from autoresearch.core.errors import AutoresearchError, UsageError
from autoresearch.core.workspace import Workspace

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
    assert user_state(folder) == before | {"files": before["files"] | link(folder)}
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
    assert user_state(top) == before | {"files": before["files"] | link(top / "work")}
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
