"""Candidates and baselines with real git: the user's files, index, HEAD and branches are as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
from git_harness import SOURCE, changed_paths, git, link, make_repository, search, user_state

from autoresearch.core.errors import AutoresearchError, UsageError
from autoresearch.core.workspace import Workspace

# Candidates


def test_a_run_leaves_the_users_files_alone(folder: Path) -> None:
    before = user_state(folder)
    baseline, worse, better = search(Workspace(folder))
    assert user_state(folder) == before | {"files": before["files"] | link(folder)}
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


def test_many_sources_are_read_at_once(folder: Path) -> None:
    workspace = Workspace(folder)
    head = git(folder, "rev-parse", "HEAD")
    texts = ["", "a\nb", "0 blob 3\n" * 1000, "no final newline"]
    blobs = [workspace.write_blob(text) for text in texts]
    commits = [workspace.commit_candidate("t", n, blob, head, "m") for n, blob in enumerate(blobs)]
    empty = git(folder, "commit-tree", git(folder, "mktree"), "-m", "empty")
    names = [blobs[0], *commits, "0" * 40, "", empty, "nonsense", head, commits[1]]
    expected = dict(zip(commits, texts, strict=True)) | {blobs[0]: texts[0], head: SOURCE}
    assert workspace.read_many(names) == expected
    assert workspace.read_many([]) == workspace.read_many(["0" * 40]) == {}
    (folder / "train.py").write_bytes(b"x = 1\xff\n")
    assert list(workspace.read_many([workspace.baseline("t2")]).values()) == ["x = 1\ufffd\n"]


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
    assert user_state(folder) == before | {"files": before["files"] | link(folder)}
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
    assert user_state(folder) == before | {"files": before["files"] | link(folder)}
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
    assert user_state(folder) == before | {"files": before["files"] | link(folder)}
