"""Candidates from a folder, good and bad: each gets its verdict, the search goes on, nothing bad is kept."""

import pytest


@pytest.fixture
def edited(null_source):
    """The null backend's train.py with one piece of text replaced."""

    def edit(before: str, after: str) -> str:
        assert null_source.count(before) == 1, before
        return null_source.replace(before, after)

    return edit


def patch_of(before: str, after: str) -> str:
    """A hunk that replaces one line, wherever it stands."""
    return f"--- a/train.py\n+++ b/train.py\n@@ -1,1 +1,1 @@\n-{before}\n+{after}\n"


LINE = "WARMDOWN_RATIO = 0.5  # share of the budget in which the rate falls to zero, search: 0.0..1.0"


@pytest.fixture
def zoo(ideas, edited):
    """Candidates in name order."""
    return ideas(
        a_better="# hypothesis: three times the rate\n" + edited("LEARNING_RATE = 0.3", "LEARNING_RATE = 1.0"),
        b_worse=0.01,
        c_crash=edited("    experiment.report(depth=0)", "    raise ValueError('boom')"),
        d_imports="import os\n" + edited("LEARNING_RATE = 0.3", "LEARNING_RATE = 0.4"),
        e_same="# a comment more\n" + edited("LEARNING_RATE = 0.3", "LEARNING_RATE = 1.0"),
        f_bad_patch=patch_of("NO_SUCH_LINE = 1", "NO_SUCH_LINE = 2"),
        g_syntax="def train(experiment:\n",
        h_nan=edited("experiment.log(loss)", "experiment.log(float('nan'))"),
        i_forged=edited("experiment.report(depth=0)", "print('val_bpb: 0.1'); experiment.report(depth=0, val_bpb=0.1)"),
        j_returns="def train(experiment):\n    for _ in experiment.batches(1):\n        experiment.log(1)\n",
        k_good_patch="# hypothesis: no warm-down\n" + patch_of(LINE, LINE.replace("= 0.5", "= 0.0")),
    )


def test_each_candidate_gets_its_verdict(zoo, workspace, autoresearch, journal, git, left_over):
    done = autoresearch("--agent", f"script:{zoo}", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "stopped: no proposals are left (script)" in done.stdout
    events = journal(workspace)
    origins = {event["n"]: event["origin"] for event in events if event["event"] == "proposed"}
    decided = {origins[event["n"]]: event for event in events if event["event"] == "decided"}
    assert {origin: event["verdict"] for origin, event in decided.items() if origin} == {
        "a_better.py": "keep",
        "b_worse.py": "discard",
        "c_crash.py": "crash",
        "d_imports.py": "invalid",
        "g_syntax.py": "invalid",
        "h_nan.py": "diverged",
        "i_forged.py": "discard",
        "j_returns.py": "invalid",
        "k_good.patch": "keep",
    }
    assert decided["c_crash.py"]["reason"].startswith("ValueError: boom (train.py line ")
    assert "line 1: import of os" in decided["d_imports.py"]["reason"]
    assert decided["i_forged.py"]["val_bpb"] > 1.0, "what a candidate says of itself decides nothing"
    refused = {event["origin"]: event["reason"] for event in events if event["event"] == "refused"}
    assert refused == {
        "e_same.py": "a duplicate of experiment 1",
        "f_bad.patch": "f_bad.patch does not apply: hunk 1 (line 1): its lines are not in train.py",
    }
    for origin, reason in refused.items():
        assert f"refused: {origin}: {reason}" in done.stdout
    measured = {event["n"] for event in events if event["event"] == "started"}
    assert {origins[n] for n in measured}.isdisjoint({"d_imports.py", "g_syntax.py"}), "the lint comes before training"
    best = git(workspace, "show", f"autoresearch/{events[0]['tag']}:train.py")
    assert "LEARNING_RATE = 1.0" in best
    assert "WARMDOWN_RATIO = 0.0" in best
    assert left_over(workspace) == []
    lines = [line for line in done.stdout.splitlines() if line.startswith("#")]
    assert len(lines) == 10
    assert "three times the rate" in lines[1]
    assert lines[3].endswith("c_crash: " + decided["c_crash.py"]["reason"])
    rows = (workspace / "results.tsv").read_text().splitlines()
    assert [row.split("\t")[3] for row in rows[1:]].count("crash") == 5


def test_what_was_refused_or_tried_is_not_proposed_again(zoo, workspace, autoresearch, journal, ideas):
    autoresearch("--agent", f"script:{zoo}", "--max-experiments", "6", cwd=workspace)
    assert autoresearch("--agent", f"script:{zoo}", cwd=workspace).returncode == 0
    assert autoresearch("--agent", f"script:{zoo}", cwd=workspace).returncode == 0
    events = journal(workspace)
    origins = [event["origin"] for event in events if event["event"] in ("proposed", "refused")]
    assert len(origins) == len(set(origins)) == 12
    ideas(z_new=1.5)
    assert "z_new" in autoresearch("--agent", f"script:{zoo}", cwd=workspace).stdout


@pytest.mark.parametrize("spread", [0.5, 0.001])
def test_an_unclear_gain_is_measured_once_more(spread, workspace, autoresearch, journal, ideas, git):
    with (workspace / "autoresearch.toml").open("a") as toml:
        toml.write(f"\n[rules]\nspread = {spread}\nkeep_z = 2.5\n")
    git(workspace, "commit", "--quiet", "--all", "-m", "rules")
    done = autoresearch("--agent", f"script:{ideas(good=1.0)}", cwd=workspace)
    events = journal(workspace)
    rows = [event["result"] for event in events if event["event"] == "measured" and event["n"] == 1]
    decided = events[-2]
    assert decided["verdict"] == "keep"
    if spread == 0.5:
        assert len(rows) == 2
        assert rows[0]["seed"] != rows[1]["seed"]
        assert "once more with a fresh seed" in done.stdout
        assert decided["reason"].startswith("retested: ")
        assert decided["val_bpb"] == pytest.approx((rows[0]["val_bpb"] + rows[1]["val_bpb"]) / 2)
        assert decided["value"] == rows[1]["val_bpb"], "the first score picked it, the second one is fresh"
    else:
        assert len(rows) == 1
        assert decided["reason"].startswith("clear: ")


@pytest.mark.parametrize("agent", ["script:", "script", "optimiser", "random:3"])
def test_unknown_agents(agent, workspace, autoresearch):
    done = autoresearch("--agent", agent, cwd=workspace)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"error: no agent {agent!r}"
    assert not list((workspace / ".autoresearch").glob("*/journal.jsonl"))


def test_a_script_folder_that_is_not_there(workspace, autoresearch, tmp_path):
    done = autoresearch("--agent", f"script:{tmp_path / 'nowhere'}", cwd=workspace)
    assert done.returncode == 2
    assert "no such folder" in done.stderr
    (tmp_path / "empty").mkdir()
    done = autoresearch("--agent", f"script:{tmp_path / 'empty'}", cwd=workspace)
    assert done.returncode == 2
    assert "no .py or .patch file" in done.stderr
