"""`--agent replay:RUN` as people start it: another run's experiments here, interrupted, judged anew, compared."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def _there(_template, tmp_path_factory, autoresearch, null_source) -> Path:
    folder = Path(shutil.copytree(_template, tmp_path_factory.mktemp("there") / "h100", symlinks=True))
    code = null_source.replace("experiment.report(depth=0)", "experiment.report(depth=1)")
    crash = null_source.replace("experiment.report(depth=0)", "raise ValueError('boom')")
    assert null_source not in (code, crash)
    ideas = folder.parent / "ideas"
    ideas.mkdir()
    for n, (text, rate) in enumerate([(null_source, 1.0), (null_source, 0.01), (code, 0.6), (crash, 1.0)]):
        (ideas / f"{n}.py").write_text(text.replace("RATE = 0.3", f"RATE = {rate}"))
    done = autoresearch("--agent", f"script:{ideas}", "--tag", "mar8", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def there(_there, tmp_path) -> Path:
    """A workspace beside the other one, with a run `mar8` of four experiments: kept, discarded, with code, crashed."""
    return Path(shutil.copytree(_there, tmp_path / "h100", symlinks=True))


def test_a_replay_that_is_killed_goes_on_and_its_transfer_is_told(
    there, workspace, autoresearch, environment, journal, git, tmp_path
):
    before = git(there, "for-each-ref")
    train = workspace / "train.py"
    train.write_text(train.read_text().replace("LEARNING_RATE = 0.3", "LEARNING_RATE = 0.15"))
    command = [sys.executable, "-m", "autoresearch", "--agent", "replay:../h100", "--tag", "here"]
    with subprocess.Popen(command, cwd=workspace, env=environment, stdout=subprocess.DEVNULL, text=True) as process:
        path = workspace / ".autoresearch" / "here" / "journal.jsonl"
        while process.poll() is None and (not path.exists() or path.read_text().count('"event":"decided"') < 3):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "it was to be killed on its way"
    done = autoresearch("--agent", "replay:../h100", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "proposals: replay of run mar8 in " in done.stdout
    assert "stopped: no proposals are left (replay:mar8)" in done.stdout
    proposed = [event for event in journal(workspace, "here") if event["event"] == "proposed"]
    assert [event["origin"].partition("#")[2] for event in proposed] == ["", "1", "2", "3", "4"]
    assert {event["proposer"] for event in proposed[1:]} == {"replay:mar8"}
    first = proposed[1]
    assert first["constants"]["LEARNING_RATE"] == 0.5
    told = r"replay of #1 of mar8 \(kept there, -\d\.\d{4}; here LEARNING_RATE 0\.15 → 0\.5\): 0"
    assert re.fullmatch(told, first["hypothesis"])
    verdicts = [event["verdict"] for event in journal(workspace, "here") if event["event"] == "decided"]
    assert verdicts[4] == "crash"
    assert git(there, "for-each-ref") == before, "the other run is only read"

    compared = autoresearch("compare", "../h100", "here", "--json", cwd=workspace)
    assert compared.returncode == 0, compared.stderr
    (found,) = json.loads(compared.stdout)["transfers"]
    assert (found["from"], found["to"], found["not_carried"]) == ("mar8", "here", [])
    assert [(row["there"], row["here"]) for row in found["experiments"]] == [(n, n) for n in range(1, 5)]
    assert sum(found["counts"].values()) == 4
    assert found["counts"]["both"] >= 1
    assert found["signs"]["n"] == 3
    text = autoresearch("compare", "../h100", "here", cwd=workspace)
    assert "carried over from mar8 to here\n4 of 4 experiments were carried over\n" in text.stdout


def test_another_backend_takes_the_constants_alone(there, workspace, autoresearch, journal):
    """The journal says that it was written for another backend; its repository is the same."""
    path = there / ".autoresearch" / "mar8" / "journal.jsonl"
    path.write_text(path.read_text().replace('"backend":"null"', '"backend":"cuda"'))
    done = autoresearch("--agent", "replay:../h100", cwd=workspace)
    assert done.returncode == 0, done.stderr
    refused = [event["reason"] for event in journal(workspace) if event["event"] == "refused"]
    assert "not carried: its code: it was written for another backend, cuda" in refused
    told = [event["hypothesis"] for event in journal(workspace) if event["event"] == "proposed"]
    assert any("without: its code: it was written for another backend, cuda" in hypothesis for hypothesis in told)


@pytest.mark.parametrize(
    ("name", "code", "problem"),
    [
        ("nov31", 2, "no run 'nov31'"),
        ("table.tsv", 2, "a table of results holds no change that could be made again"),
        ("../h100/train.py", 2, "a table of results holds no change that could be made again"),
        ("journal.jsonl", 5, "line 2 is not an event"),
    ],
)
def test_what_can_not_be_replayed_is_refused_before_anything_is_made(
    name, code, problem, tmp_path, workspace, autoresearch
):
    (tmp_path / "h100").mkdir()
    (tmp_path / "h100" / "train.py").write_text("x = 1\n")
    (workspace / "table.tsv").write_text("commit\tval_bpb\tmemory_gb\tstatus\tdescription\n")
    (workspace / "journal.jsonl").write_text('{"event": "run", "tag": "a"}\nrubbish\n{"event": "run"}\n')
    for more in ([], ["--dry-run"]):
        done = autoresearch("--agent", f"replay:{name}", *more, cwd=workspace)
        assert done.returncode == code
        assert problem in done.stderr
        assert done.stderr.count("\n") == 2, "the problem and a hint"
    assert not (workspace / ".autoresearch").exists()


def test_a_run_that_names_itself_is_refused(there, autoresearch):
    for name in (".", "mar8"):
        done = autoresearch("--agent", f"replay:{name}", "--tag", "mar8", cwd=there)
        assert done.returncode == 2
        assert "is this run itself" in done.stderr
    done = autoresearch("--agent", "replay:mar8", "--tag", "again", "--max-experiments", "1", cwd=there)
    assert done.returncode == 0, done.stderr


def test_a_dry_run_shows_what_would_be_carried(there, workspace, autoresearch):
    done = autoresearch("--agent", "replay:../h100", "--dry-run", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "next proposal, after the baseline: replay of #1 of mar8 (kept there" in done.stdout
    assert "+LEARNING_RATE = 1.0" in done.stdout
