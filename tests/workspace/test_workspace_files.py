"""Tags, ignored files, results.tsv, new workspaces and the lock."""

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

import pytest
from git_harness import SOURCE, git, search, user_state

from autoresearch.core import workspace as workspace_module
from autoresearch.core.errors import AutoresearchError, UsageError, WorkspaceBusy
from autoresearch.core.journal import Journal
from autoresearch.core.workspace import Workspace

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
