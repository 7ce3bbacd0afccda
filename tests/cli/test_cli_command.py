"""Whole searches whose proposals come from a command: real processes all the way, on the null backend."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

AGENT = """\
import json, os, re, sys, time
from pathlib import Path

calls = Path({calls!r})
n = len(calls.read_text().split()) if calls.exists() else 0
with calls.open("a") as file:
    print(os.getpid(), file=file)
does = {does!r}[n]
train = Path("train.py")
text = re.sub(r"LEARNING_RATE = [0-9.]+", f"LEARNING_RATE = {{[1.0, 0.01, 2.0, 0.7, 0.8, 0.9][n]}}", train.read_text())
if does == "hang":
    time.sleep(600)
if does == "fail":
    sys.exit("out of quota")
if does == "tell":
    key = os.environ["MY_API_KEY"]
    print(json.dumps({{"type": "result", "is_error": True, "result": "no quota for " + key}}))
    print(key, key.encode("unicode_escape"), file=sys.stderr)
    sys.exit(key)
if does == "hint":
    Path(sys.argv[1]).write_text("hypothesis: signed " + os.environ["MY_API_KEY"])
    sys.exit(train.write_text(text) < 0)
if does == "stray":
    Path("prepare.py").write_text("cheat = 1")
train.write_text(text)
Path(sys.argv[1]).write_text(f"hypothesis: idea {{n}}\\ncategory: learning rate\\n")
print(json.dumps({{"type": "result", "result": "done", "total_cost_usd": 0.02}}))
"""
TOML = """
[command]
estimate_usd = 0.05
{command}

[outages]
pause_seconds = 0.01
max_seconds = 0.01
rounds = {rounds}
"""


@pytest.fixture
def agent(tmp_path, workspace, git):
    """The value of `--agent`: `agent("edit", "stray", …, rounds=…)`, what the command does at each of its calls."""

    def make(*does: str, rounds: int = 5, command: str = "") -> str:
        script = tmp_path / "agent.py"
        script.write_text(AGENT.format(calls=str(tmp_path / "calls"), does=does))
        with (workspace / "autoresearch.toml").open("a") as toml:
            toml.write(TOML.format(rounds=rounds, command=command))
        git(workspace, "commit", "--quiet", "--all", "-m", "an agent")
        return f"command:{sys.executable} {script} {{output}}"

    return make


def of(events: list[dict], *kinds: str) -> list[dict]:
    return [event for event in events if event["event"] in kinds]


def test_a_search(agent, workspace, autoresearch, journal):
    named = agent("edit", "stray", "edit", "fail", "edit")
    done = autoresearch("--agent", named, "--max-experiments", "3", "--max-cost", "1", cwd=workspace)
    assert done.returncode == 0, done.stderr
    events = journal(workspace)
    name = f"command:{Path(sys.executable).name}"
    assert [(e["hypothesis"], e["category"], e["proposer"], e["cost_usd"]) for e in of(events, "proposed")[1:]] == [
        (f"idea {n}", "learning rate", name, 0.02) for n in (0, 2, 4)
    ]
    (refused,) = of(events, "refused")
    assert refused["reason"] == "only train.py may be changed; the command also changed prepare.py"
    (failed,) = of(events, "failed")
    assert (failed["kind"], failed["proposer"]) == ("exit", name)
    assert failed["reason"].endswith("ended with exit code 1; it said: out of quota")
    assert [event["usd"] for event in of(events, "charged")] == [0.02, 0.02, 0.02, 0.05, 0.02]
    assert [event["id"] for event in of(events, "call")] == [event["id"] for event in of(events, "charged")]
    status = json.loads(autoresearch("status", "--json", cwd=workspace).stdout)
    assert status["cost_usd"] == pytest.approx(0.13)
    assert status["experiments"] == 3
    assert "prepare.py" not in [path.name for path in workspace.iterdir()]


def test_a_cap_ends_it_and_a_higher_one_goes_on(agent, workspace, autoresearch, journal):
    named = agent("edit", "edit", "edit", "edit")
    done = autoresearch("--agent", named, "--max-cost", "0.08", cwd=workspace)
    assert done.returncode == 3, done.stderr
    assert len(of(journal(workspace), "proposed")) == 3, "a third call could cost 0.05, and 0.04 are left"
    done = autoresearch("--agent", named, "--max-cost", "1", "--max-experiments", "3", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert sum(event["usd"] for event in of(journal(workspace), "charged")) == pytest.approx(0.06)


def test_too_many_failures_end_it_cleanly(agent, workspace, autoresearch, journal):
    named = agent("edit", "fail", "fail", "edit", rounds=2)
    done = autoresearch("--agent", named, cwd=workspace)
    assert done.returncode == 1
    assert "out of quota" in done.stderr
    assert autoresearch("--agent", named, "--max-experiments", "2", cwd=workspace).returncode == 0
    assert [event["n"] for event in of(journal(workspace), "decided")] == [0, 1, 2], "no number is used up"


def test_a_mix(agent, workspace, autoresearch, journal):
    named = agent("edit", "edit")
    done = autoresearch("--agent", f"optimizer@2,{named}@1", "--max-experiments", "3", cwd=workspace)
    assert done.returncode == 0, done.stderr
    proposers = [event["proposer"].partition(":")[0] for event in of(journal(workspace), "proposed")[1:]]
    assert sorted(proposers) == ["command"] + ["optimizer"] * 2


def test_killed_during_a_call_and_resumed(agent, workspace, autoresearch, environment, journal, tmp_path):
    named, calls = agent("hang", "edit"), tmp_path / "calls"
    command = [sys.executable, "-m", "autoresearch", "--agent", named, "--max-experiments", "1"]
    env = {"TMPDIR": str(tmp_path / "temporary")}
    (tmp_path / "temporary").mkdir()
    search = subprocess.Popen(
        command, cwd=workspace, env={**environment, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        deadline = time.monotonic() + 60
        while not (calls.exists() and calls.read_text().endswith("\n")):
            assert time.monotonic() < deadline
            assert search.poll() is None, search.stderr.read()
            time.sleep(0.02)
    finally:
        search.send_signal(signal.SIGKILL)
        search.wait()
        search.stderr.close()
    hanging = int(calls.read_text())
    assert psutil.pid_exists(hanging), "nobody could end it"
    assert [event["event"] for event in journal(workspace)][-1] == "call"
    assert [path.name for path in (tmp_path / "temporary").glob("*/PROMPT.md")] == ["PROMPT.md"]
    done = autoresearch("--agent", named, "--max-experiments", "1", cwd=workspace, env=env)
    assert done.returncode == 0, done.stderr
    assert not psutil.pid_exists(hanging) or psutil.Process(hanging).status() == psutil.STATUS_ZOMBIE
    events = journal(workspace)
    assert [(event["usd"], event["outcome"].partition(":")[0]) for event in of(events, "charged")] == [
        (0.05, "unknown"),
        (0.02, "exit 0"),
    ]
    assert [event["n"] for event in of(events, "proposed")] == [0, 1], "no experiment is lost or made twice"
    assert not [*(tmp_path / "temporary").iterdir()]


def test_a_program_that_is_not_there(workspace, autoresearch):
    done = autoresearch("--agent", "command:no-such-agent", cwd=workspace)
    assert done.returncode == 2
    assert "no program 'no-such-agent'" in done.stderr
    assert not list((workspace / ".autoresearch").glob("*/journal.jsonl"))


# Keys

KEYS = {"plain": "my-own-key-0123456789", "accents": "schlüssel-äöü-0123456789", "known": "sk-ant-abcdefghijklmnop"}


def everything(workspace: Path, *done: subprocess.CompletedProcess[str]) -> str:
    """All that a search wrote or said, git's objects included."""
    texts = [path.read_text("utf-8", "replace") for path in workspace.rglob("*") if path.is_file()]
    log = ["git", "-C", str(workspace), "log", "--all", "--patch", "--format=%H %an %B"]
    texts.append(subprocess.run(log, capture_output=True, text=True, check=True).stdout)
    texts += [text for process in done for text in (process.stdout, process.stderr)]
    return "\n".join(texts)


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_key_that_the_command_tells_is_written_nowhere(key, agent, workspace, autoresearch, journal):
    env = {"MY_API_KEY": key}
    done = autoresearch("--agent", agent("hint", "tell", "edit"), "--max-experiments", "2", cwd=workspace, env=env)
    assert done.returncode == 0, done.stderr
    found = everything(workspace, done)
    assert "signed (MY_API_KEY)" in found
    assert "no quota for (MY_API_KEY)" in found
    for form in (key, json.dumps(key)[1:-1]):
        assert form not in found


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_key_among_its_arguments_is_refused(key, agent, workspace, autoresearch):
    """The shell has put the value in its place, so the list of processes would show it."""
    done = autoresearch("--agent", f"{agent('edit')} {key}", cwd=workspace, env={"MY_API_KEY": key})
    assert done.returncode == 2
    assert "the command holds a key" in done.stderr
    assert "the command has your environment" in done.stderr
    assert key not in everything(workspace, done)
    assert not (workspace / ".autoresearch").exists()
    typo = autoresearch("--agent", f"comand:foo {key}", "--debug", cwd=workspace, env={"MY_API_KEY": key})
    assert typo.returncode == 2
    assert key not in typo.stdout + typo.stderr


def test_what_follows_an_option_that_is_named_like_a_key_is_not_written_down(agent, workspace, autoresearch, journal):
    named = f"{agent('edit')} --api-key hunter2hunter2 --model big"
    done = autoresearch("--agent", named, "--max-experiments", "1", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "hunter2" not in everything(workspace, done)
    assert journal(workspace)[0]["settings"]["agent"].endswith("{output} --api-key … --model big")
