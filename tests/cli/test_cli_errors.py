"""What goes wrong is said in one line with a hint, and by the exit code."""

import importlib.util
import json
from pathlib import Path

import pytest


def complaint(done, code: int) -> tuple[str, str]:
    """The error and the hint of a command that failed as it should."""
    assert done.returncode == code, (done.returncode, done.stderr, done.stdout)
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line]
    assert [line.partition(": ")[0] for line in lines] == ["error", "hint"], done.stderr
    return lines[0].removeprefix("error: "), lines[1].removeprefix("hint: ")


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["--backend", "nul"], "no backend 'nul'", "did you mean 'null'?"),
        (["--preset", "tinystories/smok"], "no preset 'tinystories/smok'", "did you mean 'tinystories/smoke'?"),
        (["--agent", "optimiser"], "no agent 'optimiser'", "did you mean 'optimizer'?"),
        (["--max-experimens", "3"], "No such option '--max-experimens'", "autoresearch run --help"),
        (["statu"], "No such command 'statu'", "autoresearch --help"),
        (["--workspace", ".", "report"], "unexpected extra argument (report)", "a command comes first"),
        (["--max-experiments", "0"], "'--max-experiments'", "autoresearch run --help"),
        (["experiment", "--seed", "-1"], "'--seed'", "autoresearch experiment --help"),
        (["--max-cost", "0"], "'--max-cost'", "autoresearch run --help"),
        (["--budget", "-1"], "'--budget'", "autoresearch run --help"),
        (["--budget", "nan"], "train_seconds", ""),
        (["--until", "25:00"], "--until must be HH:MM, received '25:00'", "07:30"),
        (["--source", "storys"], "no source 'storys'", "did you mean 'stories'?"),
        (["--tag", "a/b"], "'a/b' can't be the tag of a run", "--tag nov30"),
        (["--program", "nowhere.md"], "nowhere.md can't be read", "--program FILE"),
        (["status", "--tag", "nov31"], "has no run yet", "autoresearch"),
        (["experiment", "--record"], "--record and -m go together", '--record -m "'),
        (["experiment", "--train", "nowhere.py"], "nowhere.py can't be read", "--train FILE"),
        (["--backend", "null", "--device", "tpu"], "tpu", ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options(arguments, error, hint, workspace, autoresearch):
    done = autoresearch(*arguments, cwd=workspace)
    said, hinted = complaint(done, 4 if "tpu" in arguments else 2)
    assert error in said
    assert hint in hinted
    assert not list((workspace / ".autoresearch").glob("*/journal.jsonl"))


@pytest.mark.parametrize(
    ("text", "error", "hint"),
    [
        ("[task]\ntrain_second = 3\n", "[task] has no key 'train_second'", "did you mean 'train_seconds'?"),
        ("bakend = 'null'\n", "unknown key 'bakend'", "did you mean 'backend'?"),
        ("[stop]\nmax_experiments = 'many'\n", "[stop] max_experiments must be int, received 'many'", ""),
        ("[task]\ntrain_seconds = inf\n", "must be a finite number", ""),
        ("[task\n", "autoresearch.toml is not valid TOML", "line"),
        (b"# \xff\n", "autoresearch.toml is not UTF-8 text", "UTF-8"),
    ],
)
def test_wrong_settings(text, error, hint, workspace, autoresearch):
    (workspace / "autoresearch.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    said, hinted = complaint(autoresearch("--backend", "null", cwd=workspace), 2)
    assert error in said
    assert hint in hinted


def test_init_overwrites_nothing(tmp_path, autoresearch, git):
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "train.py").write_text("mine\n")
    said, _ = complaint(autoresearch("init", ".", "--backend", "null", cwd=folder), 2)
    assert "train.py exists already and is not overwritten" in said
    assert {path.name for path in folder.iterdir()} == {".git", "train.py"}
    assert (folder / "train.py").read_text() == "mine\n"


@pytest.mark.parametrize("arguments", [["--backend", "null"], ["init", ".", "--backend", "null"], ["experiment"]])
def test_an_original_train_py_is_recognised(arguments, tmp_path, autoresearch):
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "prepare.py").write_text("\n")
    said, hint = complaint(autoresearch(*arguments, cwd=tmp_path), 2)
    assert "a train.py of the original autoresearch" in said
    assert "autoresearch init" in hint
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "prepare.py"}


@pytest.mark.parametrize("arguments", [["status"], ["report"], ["experiment"], ["experiment", "--record", "-m", "x"]])
def test_no_workspace(arguments, tmp_path, autoresearch):
    said, _ = complaint(autoresearch(*arguments, cwd=tmp_path), 2)
    assert f"no workspace in {tmp_path}" in said
    assert list(tmp_path.iterdir()) == []


def test_a_backend_that_cannot_run_here(workspace, autoresearch, tmp_path):
    """No CUDA device, or no torch: one line either way, and how to run on the processor."""
    blocker = tmp_path / "without"
    blocker.mkdir()
    (blocker / "torch.py").write_text("raise ImportError(\"No module named 'torch'\")\n")
    env = {"PYTHONPATH": str(blocker)}
    said, hint = complaint(autoresearch("--backend", "cuda", cwd=workspace, env=env), 4)
    assert "torch" in said
    assert "pip install" in hint
    if importlib.util.find_spec("torch") is not None:
        said, hint = complaint(autoresearch("--backend", "cuda", cwd=workspace, env={"CUDA_VISIBLE_DEVICES": ""}), 4)
        assert "no CUDA device" in said
        assert "autoresearch --backend cuda --device cpu" in hint
    assert not list((workspace / ".autoresearch").glob("*/journal.jsonl"))


def test_a_baseline_that_fails(workspace, autoresearch, journal):
    source = (workspace / "train.py").read_text()
    (workspace / "train.py").write_text(source.replace("experiment.report(depth=0)", "raise ValueError('boom')"))
    said, hint = complaint(autoresearch("--max-experiments", "1", cwd=workspace), 1)
    assert said.startswith("the baseline failed: crash: ValueError: boom (train.py line ")
    assert "boom" in Path(hint.split()[1].rstrip(";")).read_text()
    # Mended, the same command starts another run.
    (workspace / "train.py").write_text(source)
    assert autoresearch("--max-experiments", "1", cwd=workspace).returncode == 0
    assert len(list((workspace / ".autoresearch").glob("*/journal.jsonl"))) == 2


def test_a_damaged_journal(workspace, autoresearch):
    assert autoresearch("--max-experiments", "1", cwd=workspace).returncode == 0
    (path,) = (workspace / ".autoresearch").glob("*/journal.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], lines[3][:20] + "\n", *lines[4:]]))
    for arguments in ([], ["status"], ["report"]):
        said, hint = complaint(autoresearch(*arguments, cwd=workspace), 5)
        assert f"{path}, line 4 is not an event" in said
        assert "--tag" in hint
    path.write_text("".join([lines[0], *lines[2:]]))
    said, _ = complaint(autoresearch("--max-experiments", "1", cwd=workspace), 5)
    assert "line 2, committed of experiment 0, which was never proposed" in said


def test_damaged_data_are_made_anew(workspace, autoresearch, tmp_path, journal):
    env = {"AUTORESEARCH_CACHE": str(tmp_path / "cache")}
    assert autoresearch("--tag", "one", "--max-experiments", "1", cwd=workspace, env=env).returncode == 0
    large = max((tmp_path / "cache").rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(large.read_bytes())
    content[len(content) // 2] ^= 1
    large.write_bytes(content)
    done = autoresearch("--tag", "two", "--max-experiments", "1", cwd=workspace, env=env)
    assert done.returncode == 0, done.stderr
    assert "preparing it anew" in done.stdout + done.stderr
    one, two = (
        [event["val_bpb"] for event in journal(workspace, tag) if event["event"] == "decided"] for tag in ("one", "two")
    )
    assert one == two


def test_data_that_cannot_be_had(workspace, autoresearch, tmp_path):
    (tmp_path / "texts").mkdir()
    said, hint = complaint(autoresearch("--source", tmp_path / "texts", cwd=workspace), 5)
    assert f"no .txt, .jsonl, .parquet files in the folder {tmp_path / 'texts'}" in said
    assert "--source" in hint
    (tmp_path / "texts" / "a.txt").write_text("too little\n")
    assert autoresearch("--source", tmp_path / "texts", cwd=workspace).returncode == 5


def test_traceback_only_with_debug(workspace, autoresearch):
    done = autoresearch("--agent", "nobody", "--debug", cwd=workspace)
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert "error: no agent 'nobody'" in done.stderr


def test_a_defect_is_said_in_one_line(workspace, environment, autoresearch, tmp_path):
    """An exception that nobody foresaw: exit code 1, one line, and how to see more; the stop is recorded."""
    (tmp_path / "broken.py").write_text(
        "from autoresearch.agent.scripted import Scripted\n"
        "def propose(self, context):\n"
        "    raise KeyError('oops')\n"
        "Scripted.propose = propose\n"
        "from autoresearch.cli import main\n"
        "main()\n"
    )
    (tmp_path / "ideas").mkdir()
    (tmp_path / "ideas" / "a.py").write_text("\n")
    options = {"cwd": workspace, "module": "broken", "env": {"PYTHONPATH": str(tmp_path)}}
    said, hint = complaint(autoresearch("--agent", f"script:{tmp_path / 'ideas'}", **options), 1)
    assert said == "KeyError: 'oops'"
    assert "--debug" in hint
    status = json.loads(autoresearch("status", "--json", cwd=workspace).stdout)
    assert status["stop_reason"] == "a defect of autoresearch"
