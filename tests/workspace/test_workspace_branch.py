"""The branch of a run follows its incumbent; a checkout is never reset."""

from __future__ import annotations

import shutil
from pathlib import Path

from git_harness import git, next_keep, search, user_state

from autoresearch.core.workspace import Workspace

# The branch


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


def test_a_withdrawn_keep_takes_the_branch_back(folder: Path) -> None:
    workspace = Workspace(folder)
    baseline, _, better = search(workspace)
    before = user_state(folder)
    assert workspace.advance("t", baseline) is None
    assert git(folder, "rev-parse", "autoresearch/t") == baseline
    assert user_state(folder) == before
    assert git(folder, "cat-file", "-t", better) == "commit"


def test_a_branch_that_is_checked_out_comes_back_by_going_forward(folder: Path) -> None:
    """Withdrawn, then another keep, then that one withdrawn too: each time the branch has the incumbent's files."""
    workspace = Workspace(folder)
    baseline, _, better = search(workspace)
    git(folder, "checkout", "--quiet", "autoresearch/t")
    (folder / "notes.md").write_text("unsaved\n")
    other = next_keep(workspace, 3, baseline, "DEPTH = 2\n")
    tip = better
    for commit in (baseline, other, baseline):
        assert workspace.advance("t", commit) is None
        assert git(folder, "rev-parse", "HEAD^") == tip, "nothing is reset"
        assert git(folder, "rev-parse", "HEAD:train.py") == git(folder, "rev-parse", f"{commit}:train.py")
        assert git(folder, "status", "--porcelain").splitlines() == [" M notes.md"]
        tip = git(folder, "rev-parse", "HEAD")
        assert workspace.advance("t", commit) is None
        assert git(folder, "rev-parse", "HEAD") == tip, "once is enough"


def test_a_dirty_train_py_keeps_a_withdrawal_waiting(folder: Path) -> None:
    workspace = Workspace(folder)
    baseline, _, better = search(workspace)
    git(folder, "checkout", "--quiet", "autoresearch/t")
    (folder / "train.py").write_text("MINE = 1\n")
    for _ in range(2):
        note = workspace.advance("t", baseline)
        assert note is not None and "local changes" in note
        assert git(folder, "rev-parse", "HEAD") == better
    git(folder, "stash", "--quiet")
    assert workspace.advance("t", baseline) is None
    assert git(folder, "rev-parse", "HEAD^") == better


def test_a_deleted_branch_is_made_again(folder: Path) -> None:
    workspace = Workspace(folder)
    better = search(workspace)[-1]
    git(folder, "branch", "--quiet", "-D", "autoresearch/t")
    assert workspace.advance("t", better) is None
    assert git(folder, "rev-parse", "autoresearch/t") == better
