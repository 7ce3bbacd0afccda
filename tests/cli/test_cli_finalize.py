"""`autoresearch finalize` as people start it: the kept changes of a real search as a branch, and a text for others."""

import json
import os
import shutil
from pathlib import Path

import pytest

RATES = (0.4, 0.55, 0.75, 1.0, 1.4)
"""Each better than the one before, with eight steps."""


@pytest.fixture(scope="module")
def _kept_five(_template, tmp_path_factory, autoresearch, git, null_source) -> Path:
    workspace = Path(shutil.copytree(_template, tmp_path_factory.mktemp("kept") / "lab", symlinks=True))
    train = workspace / "train.py"
    odd = null_source.replace("\n", "\r\n").removesuffix("\r\n")
    train.write_bytes(odd.encode())
    train.chmod(0o755)
    git(workspace, "commit", "--quiet", "--all", "-m", "odd")
    ideas = workspace.parent / "ideas"
    ideas.mkdir()
    for n, rate in enumerate(RATES):
        text = odd.replace("LEARNING_RATE = 0.3", f"LEARNING_RATE = {rate}")
        (ideas / f"{n}.py").write_bytes(f"# hypothesis: rate <b>{rate:g}</b>\r\n{text}".encode())
    (ideas / "9.py").write_text("# hypothesis: no loop\n" + null_source.replace("experiment.report", "raise Failed #"))
    # Whatever isn't worse is kept.
    with (workspace / "autoresearch.toml").open("a") as toml:
        toml.write("\n[rules]\nspread = 0.0001\n")
    done = autoresearch("--agent", f"script:{ideas}", "--tag", "mar8", cwd=workspace)
    assert done.returncode == 0, done.stderr
    return workspace


@pytest.fixture
def kept_five(_kept_five, tmp_path) -> Path:
    """A run `mar8` that kept five changes and failed once; its train.py is odd: CRLF, no last line end, executable."""
    return Path(shutil.copytree(_kept_five, tmp_path / "lab", symlinks=True))


def test_five_kept_changes_become_a_branch_with_the_same_file(kept_five, autoresearch, git, journal):
    kept = [event["n"] for event in journal(kept_five) if event["event"] == "decided" and event["verdict"] == "keep"]
    assert kept == [0, 1, 2, 3, 4, 5]
    (kept_five / "train.py").write_text("an edit of mine\n")
    state = [git(kept_five, "rev-parse", "HEAD", "autoresearch/mar8"), git(kept_five, "status", "--porcelain")]
    done = autoresearch("finalize", cwd=kept_five)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# autoresearch mar8: val\\_bpb ")
    assert done.stderr.splitlines()[0].startswith("branch autoresearch-mar8 made: 5 commits on top of ")
    assert "nothing is pushed" in done.stderr
    assert [git(kept_five, "rev-parse", "HEAD", "autoresearch/mar8"), git(kept_five, "status", "--porcelain")] == state
    final = git(kept_five, "rev-parse", "autoresearch-mar8:train.py")
    assert final == git(kept_five, "rev-parse", "autoresearch/mar8:train.py")
    assert git(kept_five, "rev-parse", "autoresearch-mar8~5") == git(kept_five, "rev-parse", "main")
    assert git(kept_five, "ls-tree", "autoresearch-mar8", "train.py").startswith("100755 ")
    # On the original baseline, by ordinary means.
    git(kept_five, "worktree", "add", "--quiet", "--detach", "../clean", "main")
    git(kept_five.parent / "clean", "cherry-pick", "main..autoresearch-mar8")
    applied = (kept_five.parent / "clean" / "train.py").read_bytes()
    assert applied.count(b"\r\n") > 50
    assert b"LEARNING_RATE = 1.4" in applied and not applied.endswith(b"\n")
    assert git(kept_five, "hash-object", "--no-filters", "../clean/train.py") == final
    assert os.access(kept_five.parent / "clean" / "train.py", os.X_OK)
    text = done.stdout
    assert "rate \\<b\\>0.4\\</b\\> (" in text
    assert "- invalid: no loop: " in text or "- crash: no loop: " in text


def test_json_text_file_and_squash(kept_five, autoresearch, git):
    path = kept_five.parent / "pull-request.md"
    args = ("finalize", "--squash", "--branch", "tuned", "--tag", "mar8")
    done = autoresearch(*args, "--json", "--text", path, cwd=kept_five)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [commit["experiments"] for commit in found["commits"]] == [[1, 2, 3, 4, 5]]
    assert found["commit"] == git(kept_five, "rev-parse", "tuned")
    assert path.read_text() == found["text"]
    again = autoresearch(*args, "--text", path, cwd=kept_five)
    assert again.returncode == 0
    assert again.stdout.splitlines()[0].startswith("branch tuned is there already, the same: 1 commit on top of ")
    assert f"text of the pull request: {path}" in again.stdout


def test_onto_another_branch(kept_five, autoresearch, git):
    (kept_five / "notes.md").write_text("mine\n")
    git(kept_five, "add", "notes.md")
    git(kept_five, "commit", "--quiet", "-m", "notes")
    done = autoresearch("finalize", "--onto", "main", cwd=kept_five)
    assert done.returncode == 0, done.stderr
    assert git(kept_five, "diff", "--name-only", "main", "autoresearch-mar8") == "train.py"
    git(kept_five, "rm", "--quiet", "--cached", "train.py")
    git(kept_five, "commit", "--quiet", "-m", "no train.py")
    refused = autoresearch("finalize", "--onto", "main", "--branch", "other", cwd=kept_five)
    assert refused.returncode == 2
    assert "--onto main: it has no train.py" in refused.stderr
    assert "hint: see the difference: git -C " in refused.stderr


@pytest.mark.parametrize(
    ("args", "code", "problem"),
    [
        (("--tag", "nov31"), 2, "no run 'nov31'"),
        (("--branch", "main"), 2, "the branch main is there already"),
        (("--branch", "a b"), 2, "can't be the name of a branch"),
        (("--text", "no/such/folder.md"), 1, "can't write"),
    ],
)
def test_what_is_refused(args, code, problem, kept_five, autoresearch):
    done = autoresearch("finalize", *args, cwd=kept_five)
    assert done.returncode == code
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


def test_a_workspace_without_a_run(workspace, autoresearch):
    done = autoresearch("finalize", cwd=workspace)
    assert done.returncode == 2
    assert "has no run yet" in done.stderr
