"""One measurement by hand, and the loop driven from outside."""

import json
import re
import subprocess
import sys

import pytest

RESULT = (
    "status reason val_bpb val_bytes val_tokens train_seconds setup_seconds eval_seconds total_seconds steps tokens "
    "tokens_per_second num_params peak_memory_bytes mfu seed comparability_key source_hash"
).split()
SUMMARY = (
    "val_bpb training_seconds total_seconds peak_vram_mb mfu_percent total_tokens_M num_steps num_params_M depth"
).split()


def summary_of(text: str) -> dict[str, str]:
    """The block after `---`, as the original prints it and as notebooks grep it."""
    lines = text.split("---\n")[-1].splitlines()
    return dict(re.fullmatch(r"(\w+): +(\S+)", line).groups() for line in lines)


def test_summary_block(workspace, autoresearch, environment, git):
    done = autoresearch("experiment", "--seed", "7", cwd=workspace)
    assert done.returncode == 0, done.stderr
    block = summary_of(done.stdout)
    assert list(block) == SUMMARY
    assert (block["num_steps"], block["mfu_percent"], block["depth"]) == ("8", "unknown", "0")
    assert git(workspace, "status", "--porcelain") == ""
    assert not list((workspace / ".autoresearch").glob("*/journal.jsonl")), "nothing is journaled"
    # `python train.py` is the same command.
    by_hand = subprocess.run(
        [sys.executable, str(workspace / "train.py"), "--seed", "7"],
        cwd=workspace.parent,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert by_hand.returncode == 0, by_hand.stderr
    assert summary_of(by_hand.stdout)["val_bpb"] == block["val_bpb"]


def test_json(workspace, autoresearch):
    done = autoresearch("experiment", "--json", "--seed", "7", cwd=workspace)
    result = json.loads(done.stdout)
    assert set(RESULT) <= set(result)
    assert (result["status"], result["seed"], result["steps"]) == ("ok", 7, 8)
    assert result["val_tokens"] == 1024
    assert "data: stories:0.3" in done.stderr, "all else is on stderr"
    assert "val_bpb" not in done.stderr


@pytest.mark.parametrize(
    ("before", "after", "status", "reason"),
    [
        ("    experiment.report(depth=0)", "    raise ValueError('boom')", "crash", "ValueError: boom (train.py line "),
        ("import numpy as np", "import numpy as np\nimport os", "invalid", "import of os"),
        ("experiment.log(loss)", "experiment.log(float('nan'))", "diverged", "the training loss is nan"),
    ],
)
def test_a_failure_is_typed(before, after, status, reason, workspace, autoresearch):
    bad = workspace.parent / "bad.py"
    bad.write_text((workspace / "train.py").read_text().replace(before, after, 1))
    done = autoresearch("experiment", "--train", bad, cwd=workspace)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {status}: ")
    assert reason in done.stderr.splitlines()[0]
    assert "---" not in done.stdout
    done = autoresearch("experiment", "--json", "--train", bad, cwd=workspace)
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert (result["status"], result["val_bpb"]) == (status, None)


def set_rate(workspace, rate: float) -> None:
    path = workspace / "train.py"
    path.write_text(re.sub(r"LEARNING_RATE = \S+", f"LEARNING_RATE = {rate}", path.read_text()))


def test_an_agent_outside_is_the_loop(workspace, autoresearch, git, journal):
    def record(message: str):
        return autoresearch("experiment", "--record", "-m", message, "--json", cwd=workspace)

    first = record("the baseline")
    baseline = json.loads(first.stdout)
    assert (baseline["experiment"], baseline["verdict"]) == (0, "keep")
    assert "the train.py at hand is its baseline" in first.stderr
    set_rate(workspace, 1.0)
    better = json.loads(record("a higher rate").stdout)
    assert (better["experiment"], better["verdict"]) == (1, "keep")
    assert better["incumbent"]["experiment"] == 1
    assert git(workspace, "show", f"{better['commit']}:train.py") + "\n" == (workspace / "train.py").read_text()
    set_rate(workspace, 0.01)
    worse = json.loads(record("a lower rate").stdout)
    assert (worse["verdict"], worse["incumbent"]["experiment"]) == ("discard", 1)
    again = record("once more")
    assert again.returncode == 2
    assert again.stderr.splitlines()[-2] == "error: not measured: a duplicate of experiment 2"
    assert again.stdout == ""
    tag = journal(workspace)[0]["tag"]
    assert git(workspace, "rev-parse", f"autoresearch/{tag}") == better["commit"]
    assert [line.split("\t")[4] for line in (workspace / "results.tsv").read_text().splitlines()[1:]] == [
        "baseline",
        "a higher rate",
        "a lower rate",
    ]
    # The search takes the run up, and its numbers go on.
    searched = autoresearch("--max-experiments", "3", cwd=workspace)
    assert searched.returncode == 0, searched.stderr
    assert "\n#3 " in searched.stdout


def test_record_a_file_in_a_new_run(workspace, autoresearch, ideas, journal):
    """The workspace's train.py is the baseline; the file is held against it."""
    done = autoresearch("experiment", "--record", "-m", "better", "--train", ideas(x=1.0) / "x.py", cwd=workspace)
    assert done.returncode == 0, done.stderr
    decided = [event for event in journal(workspace) if event["event"] == "decided"]
    assert [event["verdict"] for event in decided] == ["keep", "keep"]
    assert decided[1]["val_bpb"] < decided[0]["val_bpb"]
