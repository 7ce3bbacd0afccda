"""The kept changes as a branch: the same train.py byte for byte, nothing else touched, nothing overwritten."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from git_harness import changed_paths, git, make_repository, next_keep, user_state

from autoresearch.core.errors import UsageError
from autoresearch.core.handover import Branch, Step, hand_over
from autoresearch.core.workspace import Workspace

MOMENT = datetime(2026, 3, 8, 7, 30, tzinfo=UTC)
WINDOWS = "DEPTH = 4\r\n# späces  \r\nend = 1"
"""CRLF, blanks at the end of a line, and none at the end of the file."""


def sources(first: str, count: int = 5) -> list[str]:
    return [first.replace("DEPTH = 4", f"DEPTH = {depth}") for depth in range(5, 5 + count)]


def run_of(folder: Path, texts: list[str]) -> tuple[Workspace, str, list[Step], str]:
    """A run that kept each of the texts: (workspace, baseline, steps, incumbent)."""
    workspace = Workspace(folder)
    workspace.exclude()
    baseline = parent = workspace.baseline("t")
    for n, text in enumerate(texts, start=1):
        parent = next_keep(workspace, n, parent, text)
        assert workspace.advance("t", parent) is None
    blobs = [workspace.write_blob(text) for text in texts]
    return workspace, baseline, [Step(blob, f"change {n}\n", MOMENT) for n, blob in enumerate(blobs)], parent


@pytest.mark.parametrize("first", ["DEPTH = 4\n", WINDOWS])
@pytest.mark.parametrize("below", ["", "search/lab"])
def test_a_commit_a_change_ends_in_the_same_file(tmp_path, first, below):
    top = make_repository(tmp_path / "repository", **{f"{below}/train.py".lstrip("/"): first})
    (top / below / "train.py").chmod(0o755)
    git(top, "commit", "--quiet", "--all", "-m", "executable", "--allow-empty")
    workspace, baseline, steps, incumbent = run_of(top / below, sources(first))
    before = user_state(top)
    made = hand_over(workspace, baseline, steps, "tuned")
    branches = [line for line in user_state(top).pop("branches") if "tuned" not in line]
    assert {**user_state(top), "branches": branches} == before
    assert (made.name, made.base, made.is_new, len(made.commits)) == ("tuned", baseline, True, 5)
    assert git(top, "rev-parse", "tuned", "tuned~5").split() == [made.commits[-1], baseline]
    assert workspace.read("tuned") == workspace.read(incumbent) == sources(first)[-1]
    name = f"{below}/train.py".lstrip("/")
    assert all(changed_paths(top, commit) == [name] for commit in made.commits)
    assert git(top, "ls-tree", "tuned", name).split()[0] == "100755"
    assert git(top, "log", "--format=%s %an %aI %cI", "-1", "tuned") == (
        "change 4 Zoë 2026-03-08T07:30:00+00:00 2026-03-08T07:30:00+00:00"
    )
    # As a patch, on the original baseline, in a work tree of its own.
    patch = git(top, "format-patch", "--stdout", "--binary", f"{baseline}..tuned")
    assert patch.count("\nSubject: ") == 5
    git(top, "worktree", "add", "--quiet", "--detach", str(tmp_path / "other"), baseline)
    git(tmp_path / "other", "cherry-pick", f"{baseline}..tuned")
    assert (tmp_path / "other" / name).read_bytes() == sources(first)[-1].encode()


def test_again_gives_the_same_and_other_commits_are_refused(folder):
    workspace, baseline, steps, _ = run_of(folder, sources("DEPTH = 4\n"))
    made = hand_over(workspace, baseline, steps, "tuned")
    assert hand_over(workspace, baseline, steps, "tuned") == Branch("tuned", baseline, made.commits, False)
    with pytest.raises(UsageError, match="is there already, with other commits") as caught:
        hand_over(workspace, baseline, steps[:-1], "tuned")
    assert "--branch NAME" in caught.value.hint
    assert git(folder, "rev-parse", "tuned") == made.commits[-1]


def test_a_branch_of_the_user_stays_also_where_it_is_checked_out(folder):
    workspace, baseline, steps, _ = run_of(folder, sources("DEPTH = 4\n"))
    before = user_state(folder)
    with pytest.raises(UsageError, match="the branch trunk is there already") as caught:
        hand_over(workspace, baseline, steps, "trunk")
    assert "-D" not in caught.value.hint, "nobody is told to delete a branch of theirs"
    assert user_state(folder) == before


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("two words", "can't be the name"),
        ("-f", "can't be the name"),
        ("HEAD", "can't be the name"),
        ("a..b", "can't be the name"),
        ("autoresearch/mine", "those of the runs"),
        ("trunk/tuned", "the branch trunk is in the way of trunk/tuned"),
        ("topic", "the branch topic/one is in the way of topic"),
    ],
)
def test_names_that_can_not_be(folder, name, problem):
    workspace, baseline, steps, _ = run_of(folder, sources("DEPTH = 4\n", 1))
    git(folder, "branch", "topic/one")
    before = user_state(folder)
    with pytest.raises(UsageError, match=problem):
        hand_over(workspace, baseline, steps, name)
    assert user_state(folder) == before


def test_onto_a_branch_that_went_on_elsewhere(folder):
    workspace, baseline, steps, incumbent = run_of(folder, sources("DEPTH = 4\n"))
    (folder / "notes.md").write_text("more notes\n")
    git(folder, "commit", "--quiet", "--all", "-m", "notes")
    made = hand_over(workspace, baseline, steps, "tuned", onto="trunk")
    assert made.base == git(folder, "rev-parse", "trunk")
    assert workspace.read("tuned") == workspace.read(incumbent)
    assert git(folder, "show", "tuned:notes.md") == "more notes"
    assert git(folder, "diff", "--name-only", "trunk", "tuned") == "train.py"


def test_onto_another_train_py_is_refused_and_says_how_to_see_it(folder):
    workspace, baseline, steps, _ = run_of(folder, sources("DEPTH = 4\n"))
    (folder / "train.py").write_text("DEPTH = 40\n")
    git(folder, "commit", "--quiet", "--all", "-m", "deep")
    git(folder, "branch", "deep")
    with pytest.raises(UsageError, match=r"--onto deep: it has another train\.py") as caught:
        hand_over(workspace, baseline, steps, "tuned", onto="deep")
    command = caught.value.hint.partition(": ")[2]
    assert f"diff {baseline[:12]} deep -- train.py" in command
    git(folder, "rm", "--quiet", "train.py")
    git(folder, "commit", "--quiet", "-m", "none")
    with pytest.raises(UsageError, match=r"--onto HEAD: it has no train\.py"):
        hand_over(workspace, baseline, steps, "tuned", onto="HEAD")
    for name in ("nowhere", "-q", "trunk:train.py"):
        with pytest.raises(UsageError, match="no such branch or commit"):
            hand_over(workspace, baseline, steps, "tuned", onto=name)
    assert git(folder, "branch", "--list", "tuned") == ""


def test_from_a_baseline_with_edits_that_were_not_committed(folder):
    (folder / "train.py").write_text("DEPTH = 4  # mine\n")
    workspace, baseline, steps, incumbent = run_of(folder, ["DEPTH = 6  # mine\n"])
    made = hand_over(workspace, baseline, steps, "tuned")
    assert workspace.read("tuned") == workspace.read(incumbent)
    assert git(folder, "rev-parse", "tuned~2") == git(folder, "rev-parse", "trunk"), "the edits are a commit before"
    assert made.base == baseline


def test_the_branch_of_the_run_checked_out_elsewhere_stays(folder, tmp_path):
    workspace, baseline, steps, incumbent = run_of(folder, sources("DEPTH = 4\n"))
    git(folder, "worktree", "add", "--quiet", str(tmp_path / "seen"), "autoresearch/t")
    before = user_state(tmp_path / "seen")
    hand_over(workspace, baseline, steps, "tuned")
    after = user_state(tmp_path / "seen")
    assert [after[name] for name in ("head", "index", "files")] == [before[name] for name in ("head", "index", "files")]
    assert git(folder, "rev-parse", "autoresearch/t") == incumbent
