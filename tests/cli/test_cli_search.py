"""A whole search, wherever it is started: what it leaves, and that nothing of the user's is lost or changed."""

import csv
import hashlib
import json
import os
from pathlib import Path

import pytest

RESULTS = ["commit", "val_bpb", "memory_gb", "status", "description"]
SEARCH = ("--backend", "null", "--source", "stories:0.3", "--max-experiments", "2")


def files_of(folder: Path) -> dict[str, str]:
    """SHA-256 of every file outside .git, .autoresearch and the link that a run makes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if {".git", ".autoresearch"}.isdisjoint(relative.parts) and path.is_file() and path.name != "results.tsv":
            found[str(relative)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def state_of(folder: Path, git) -> dict[str, str]:
    """The user's side of a repository: HEAD, index, branches, stash, remotes and the status."""
    index = folder / git(folder, "rev-parse", "--git-path", "index")
    refs = git(folder, "for-each-ref", "--format=%(refname) %(objectname)")
    return {
        "HEAD": (folder / git(folder, "rev-parse", "--git-path", "HEAD")).read_text(),
        "index": hashlib.sha256(index.read_bytes()).hexdigest() if index.exists() else "",
        "refs": "\n".join(line for line in refs.splitlines() if "autoresearch/" not in line),
        "status": git(folder, "--no-optional-locks", "status", "--porcelain"),
    }


def check_run(workspace: Path, git, events: list[dict], experiments: int) -> None:
    """Journal, commits, branch and results.tsv tell the same story."""
    tag = events[0]["tag"]
    decided = [event for event in events if event["event"] == "decided"]
    commits = {event["n"]: event["commit"] for event in events if event["event"] == "committed"}
    assert [event["n"] for event in decided] == list(range(experiments + 1))
    for number, commit in commits.items():
        assert git(workspace, "rev-parse", f"refs/autoresearch/{tag}/{number}") == commit
        assert git(workspace, "cat-file", "-t", commit) == "commit"
    kept = [commits[event["n"]] for event in decided if event["verdict"] == "keep"]
    assert git(workspace, "rev-parse", f"autoresearch/{tag}") == kept[-1]
    on_branch = git(workspace, "rev-list", "--reverse", f"{kept[0]}..autoresearch/{tag}").split()
    assert on_branch == kept[1:], "the branch holds exactly the kept commits"
    with (workspace / "results.tsv").open(newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t"))
    assert list(rows[0]) == RESULTS
    assert [row["commit"] for row in rows] == [commits[event["n"]][:7] for event in decided]
    assert [row["status"] for row in rows] == [
        event["verdict"] if event["verdict"] in ("keep", "discard") else "crash" for event in decided
    ]
    for row, event in zip(rows, decided, strict=True):
        assert float(row["val_bpb"]) == pytest.approx(event["val_bpb"] or 0.0, abs=1e-6)


def test_search_in_an_empty_folder(tmp_path, autoresearch, git, journal):
    done = autoresearch(*SEARCH, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert git(tmp_path, "status", "--porcelain") == ""
    check_run(tmp_path, git, journal(tmp_path), 2)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("#")] == ["#0", "#1", "#2"]
    command = lines[-1].partition("to get it: ")[2]
    assert command.startswith("git -C ")
    shown = git(tmp_path, *command.split()[3:])
    assert "def train(" in shown


def test_search_in_a_folder_that_holds_other_things(tmp_path, autoresearch, git, journal):
    git(tmp_path, "init", "--quiet")
    (tmp_path / "notes.md").write_text("mine\n")
    before, files = state_of(tmp_path, git), files_of(tmp_path)
    done = autoresearch(*SEARCH, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lab = tmp_path / "autoresearch-lab"
    assert f"workspace: {lab}" in done.stdout
    assert git(lab, "rev-parse", "--show-toplevel") == str(lab)
    assert git(lab, "status", "--porcelain") == ""
    check_run(lab, git, journal(lab), 2)
    assert state_of(tmp_path, git) == before
    assert {path: digest for path, digest in files_of(tmp_path).items() if "autoresearch-lab" not in path} == files
    # Every other command finds it from here as well.
    status = json.loads(autoresearch("status", "--json", cwd=tmp_path).stdout)
    assert (status["workspace"], status["experiments"]) == (str(lab), 2)
    again = autoresearch("--max-experiments", "2", cwd=tmp_path)
    assert "resumed" in again.stdout, again.stderr


@pytest.mark.parametrize("setting", ["dirty", "detached", "remote", "accents", "below"])
def test_nothing_of_the_users_is_lost_or_changed(
    setting, tmp_path, workspace, autoresearch, git, journal, ideas, environment
):
    folder, remote = workspace, tmp_path / "remote.git"
    git(folder, "branch", "mine")
    if setting == "accents":
        folder = folder.rename(tmp_path / "été à la façon de Zoë")
    elif setting == "below":
        top = tmp_path / "top"
        top.mkdir()
        folder = folder.rename(top / "a lab")
        git(folder, "rev-parse")
        (folder / ".git").rename(top / ".git")
        git(top, "add", "--all")
        git(top, "commit", "--quiet", "-m", "moved down")
    elif setting == "detached":
        git(folder, "checkout", "--quiet", "--detach")
    elif setting == "remote":
        git(tmp_path, "init", "--quiet", "--bare", str(remote))
        git(folder, "remote", "add", "origin", str(remote))
        git(folder, "push", "--quiet", "--set-upstream", "origin", "main")
    elif setting == "dirty":
        (folder / "notes.md").write_text("untracked\n")
        (folder / "staged.md").write_text("staged\n")
        git(folder, "add", "staged.md")
        (folder / "staged.md").write_text("staged, then changed\n")
        with (folder / "program.md").open("a") as program:
            program.write("More of this.\n")
        source = (folder / "train.py").read_text()
        (folder / "train.py").write_text(source.replace("INIT_SCALE = 0.01 ", "INIT_SCALE = 0.02 "))
    files, state = files_of(folder), state_of(folder, git)
    pushed = git(remote, "for-each-ref") if setting == "remote" else ""

    done = autoresearch("--agent", f"script:{ideas(a_better=1.0, b_worse=0.01)}", cwd=folder)

    assert done.returncode == 0, done.stderr
    events = journal(folder)
    check_run(folder, git, events, 2)
    assert [event["verdict"] for event in events if event["event"] == "decided"] == ["keep", "keep", "discard"]
    assert files_of(folder) == files
    assert state_of(folder, git) == state
    if setting == "remote":
        assert git(remote, "for-each-ref") == pushed
    if setting == "dirty":
        baseline = git(folder, "show", f"refs/autoresearch/{events[0]['tag']}/0:train.py")
        assert baseline + "\n" == (folder / "train.py").read_text(), "the baseline is the train.py the user sees"
        names = git(folder, "ls-tree", "--name-only", f"refs/autoresearch/{events[0]['tag']}/0").split()
        assert "staged.md" not in names


def test_search_in_a_repository_without_a_commit(tmp_path, autoresearch, git, journal):
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("*.tmp\n")
    done = autoresearch(*SEARCH, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check_run(tmp_path, git, journal(tmp_path), 2)
    assert (tmp_path / ".gitignore").read_text() == "*.tmp\n"
    assert (tmp_path / ".git" / "HEAD").read_text().startswith("ref: refs/heads/")
    assert git(tmp_path, "for-each-ref", "--format=%(refname)", "refs/heads").startswith("refs/heads/autoresearch/")
    assert not (tmp_path / ".git" / "index").exists()
    assert {line[3:] for line in git(tmp_path, "status", "--porcelain").splitlines()} == {
        ".gitignore",
        "autoresearch.toml",
        "program.md",
        "train.py",
    }


def test_dry_run_writes_nothing(tmp_path, autoresearch, workspace, environment, git):
    empty = tmp_path / "empty"
    empty.mkdir()
    cache = {"AUTORESEARCH_CACHE": str(tmp_path / "cache")}
    done = autoresearch("--dry-run", "--backend", "null", cwd=empty, env=cache)
    assert done.returncode == 0, done.stderr
    assert "(would be made)" in done.stdout
    assert "next proposal, after the baseline: TOTAL_BATCH_SIZE 2048 → 1024" in done.stdout
    assert "+TOTAL_BATCH_SIZE = 1024" in done.stdout
    assert list(empty.iterdir()) == []
    assert not (tmp_path / "cache").exists()
    before = {path: path.stat().st_mtime_ns for path in workspace.rglob("*")}
    assert autoresearch("--dry-run", cwd=workspace, env=cache).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in workspace.rglob("*")} == before


def test_dry_run_of_a_run_goes_on_from_its_incumbent(workspace, autoresearch, journal, ideas):
    autoresearch("--agent", f"script:{ideas(good=1.0)}", cwd=workspace)
    kept = [event for event in journal(workspace) if event.get("verdict") == "keep"]
    assert kept[-1]["n"] == 1
    before = {path: path.stat().st_mtime_ns for path in (workspace / ".autoresearch").rglob("*")}
    done = autoresearch("--dry-run", "--agent", f"script:{ideas(later=2.0)}", cwd=workspace)
    assert "would be resumed" in done.stdout
    assert "next proposal: later" in done.stdout
    assert "  -LEARNING_RATE = 1.0 " in done.stdout, "against the incumbent"
    assert "  +LEARNING_RATE = 2.0 " in done.stdout
    assert {path: path.stat().st_mtime_ns for path in (workspace / ".autoresearch").rglob("*")} == before


def test_a_search_goes_on_where_the_lock_was_left(workspace, autoresearch):
    state = workspace / ".autoresearch"
    state.mkdir()
    (state / "lock").touch()
    (state / "lock.json").write_text('{"pid": 1, "since": "2025-01-01"}\n')
    done = autoresearch("--max-experiments", "1", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert not (state / "lock.json").exists()


def test_a_new_tag_is_another_run_in_the_same_workspace(workspace, autoresearch, git, ideas):
    script = f"script:{ideas(good=1.0)}"
    assert autoresearch("--tag", "one", "--agent", script, cwd=workspace).returncode == 0
    refused = autoresearch("--tag", "one", "--budget", "7", cwd=workspace)
    assert refused.returncode == 2
    assert "--budget" in refused.stderr
    assert "--tag" in refused.stderr
    assert autoresearch("--tag", "two", "--budget", "7", "--agent", script, cwd=workspace).returncode == 0
    assert os.readlink(workspace / "results.tsv") == ".autoresearch/two/results.tsv"
    status = json.loads(autoresearch("status", "--json", "--tag", "one", cwd=workspace).stdout)
    assert (status["tag"], status["experiments"], status["kept"]) == ("one", 1, 1)
    branches = git(workspace, "for-each-ref", "--format=%(refname:short)", "refs/heads/autoresearch")
    assert branches.split() == ["autoresearch/one", "autoresearch/two"]


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--budget", "31", "another --budget"),
        ("--preset", "tinystories/cpu", "another --preset"),
        ("--source", "stories:0.4", "other data"),
    ],
)
def test_a_run_is_not_resumed_as_another_one(option, value, named, workspace, autoresearch, journal):
    assert autoresearch("--tag", "one", "--max-experiments", "1", cwd=workspace).returncode == 0
    events = journal(workspace)
    refused = autoresearch("--tag", "one", option, value, cwd=workspace)
    assert refused.returncode == 2, refused.stderr
    assert named in refused.stderr
    assert "--tag NAME" in refused.stderr
    assert journal(workspace) == events


def test_a_run_goes_on_with_its_own_budget(workspace, autoresearch, journal):
    assert autoresearch("--tag", "one", "--budget", "31", "--max-experiments", "1", cwd=workspace).returncode == 0
    again = autoresearch("--tag", "one", "--max-experiments", "2", cwd=workspace)
    assert again.returncode == 0, again.stderr
    (run,) = (event for event in journal(workspace) if event["event"] == "run")
    assert run["settings"]["task"]["train_seconds"] == 31
