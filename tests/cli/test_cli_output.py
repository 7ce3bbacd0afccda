"""What scripts and people read: JSON documents, exit codes of stops, help, plain lines, the live view."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

from autoresearch.core.registry import facts

STATUS = (
    "tag backend device comparability_key experiments measurements kept discarded failed baseline best "
    "incumbent_commit cost_usd stop_reason"
).split()
COMMANDS = ["run", "init", "prepare", "experiment", "status", "report", "compare", "finalize", "doctor"]


@pytest.fixture
def searched(workspace, autoresearch, ideas):
    """A workspace with one run: a keep, a discard and a crash."""
    crash = "def train(experiment):\n    raise ValueError('boom')\n"
    script = f"script:{ideas(a_good=1.0, b_bad=0.01, c_crash=crash)}"
    done = autoresearch("--agent", script, cwd=workspace)
    assert done.returncode == 0, done.stderr
    return workspace


def document(done) -> dict:
    """The one JSON document on stdout; all else is on stderr."""
    return json.loads(done.stdout)


def test_status(searched, autoresearch, journal, git):
    status = document(autoresearch("status", "--json", cwd=searched))
    assert set(STATUS) <= set(status)
    decided = {event["n"]: event for event in journal(searched) if event["event"] == "decided"}
    commits = {event["n"]: event["commit"] for event in journal(searched) if event["event"] == "committed"}
    assert (status["experiments"], status["measurements"]) == (3, 3)
    assert (status["kept"], status["discarded"], status["failed"]) == (1, 1, 1)
    assert status["baseline"] == {"val_bpb": decided[0]["val_bpb"], "n": 1, "spread": 0.01}
    assert status["best"]["val_bpb"] == decided[1]["value"]
    assert (status["best"]["commit"], status["best"]["experiment"]) == (commits[1], 1)
    assert status["incumbent_commit"] == commits[1]
    assert (status["backend"], status["cost_usd"]) == ("null", 0.0)
    assert status["stop_reason"] == "no proposals are left (script)"
    assert status["comparability_key"].startswith(journal(searched)[0]["task_fingerprint"])
    text = autoresearch("status", cwd=searched).stdout
    assert "3 experiments, 3 measurements: 1 kept, 1 discarded, 1 failed" in text
    gain = decided[0]["val_bpb"] - decided[1]["value"]
    assert f"gain {gain:.4f}" in text
    assert "spread between seeds 0.0100 (stated prior)" in text


def test_report(searched, autoresearch):
    report = document(autoresearch("report", "--json", cwd=searched))
    assert [row["verdict"] for row in report["experiments"]] == ["keep", "keep", "discard", "crash"]
    assert {entry["n"] for entry in report["test"]} == {0, 1, 2}
    text = autoresearch("report", cwd=searched).stdout
    assert re.search(r"#1 +\d\.\d{4} bpb -\d\.\d{4}  a_good\n", text)
    assert "#3   crash: c_crash: ValueError: boom (train.py line 2)" in text
    assert re.search(r"held-out test text: baseline \d\.\d{4}, best \d\.\d{4}: gain \d\.\d{4}", text)


def test_doctor(workspace, autoresearch):
    found = document(autoresearch("doctor", "--json", cwd=workspace))
    assert found["asked"] == "auto"
    null = found["backends"]["null"]
    assert null["usable"] is True
    assert {"dtype", "attention", "compile", "peak_flops"} <= set(null["device"]["reasons"])
    for entry in found["backends"].values():
        assert entry["usable"] or (entry["problem"] and entry["hint"])
        assert not (entry["usable"] and "on_processor" in entry)
    search = found["search"]
    assert search["backend"] is None or search["device"] == "cpu" or found["backends"][search["backend"]]["usable"]
    assert (found["agents"]["key"], found["agents"]["anthropic"] is not None) == (None, True)
    text = autoresearch("doctor", cwd=workspace, env={"ANTHROPIC_API_KEY": "sk-ant-never-shown"}).stdout
    assert "  key            ANTHROPIC_API_KEY is set\n" in text
    assert "never-shown" not in text
    assert "null (NumPy bigram): usable, on " in text
    assert "  dtype      float32: NumPy" in text
    assert f"a search would use: {search['reason']}" in text
    if search["device"] == "cpu":  # then no line says that this backend can't be used
        title = f"{search['backend']} ({facts(search['backend']).TITLE})"
        assert f"{title}: usable on the processor only: " in text
        assert found["backends"][search["backend"]]["on_processor"]["device"]["platform"] == "cpu"
    sandbox = found["sandbox"]
    assert sandbox["reason"] if sandbox["usable"] else sandbox["problem"]
    assert f"sandbox: {'usable: ' if sandbox['usable'] else 'not usable: '}" in text


def test_prepare(workspace, autoresearch):
    prepared = document(autoresearch("prepare", "--json", cwd=workspace))
    assert prepared["source"] == "stories:0.3"
    assert prepared["splits"]["val"]["rows"] == 16
    assert os.path.isdir(prepared["path"])
    assert prepared["path"] in autoresearch("prepare", cwd=workspace).stdout


@pytest.mark.parametrize("arguments", [[], *([command] for command in COMMANDS)])
def test_help_shows_an_example(arguments, tmp_path, autoresearch):
    done = autoresearch(*arguments, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "Example: autoresearch" in done.stdout
    if arguments:
        assert "--verbose" in done.stdout
        assert "--debug" in done.stdout
        assert "--workspace" in done.stdout


def test_version(tmp_path, autoresearch):
    assert re.fullmatch(r"autoresearch, version \d+\.\d+\.\d+\n", autoresearch("--version", cwd=tmp_path).stdout)


def test_the_main_job_is_also_named_run(workspace, autoresearch):
    done = autoresearch("run", "--max-experiments", "1", cwd=workspace)
    assert done.returncode == 0
    assert "experiments: 1 (" in done.stdout


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--max-experiments", "1", "experiments done: 1 (--max-experiments)"),
        ("--target", "2.5", "the target of 2.5 bpb is reached (--target)"),
        ("--max-hours", "0.00000001", "hours passed: 1e-08 (--max-hours)"),
    ],
)
def test_stop_conditions(option, value, reason, workspace, autoresearch, ideas):
    script = f"script:{ideas(a_good=1.0, b_better=2.0)}"
    done = autoresearch("--agent", script, option, value, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert f"stopped: {reason}" in done.stdout
    status = document(autoresearch("status", "--json", cwd=workspace))
    assert status["stop_reason"] == reason
    assert status["experiments"] == (0 if option == "--max-hours" else 1)


@pytest.mark.parametrize(("rate", "kept"), [(1.0, True), (0.01, False)])
def test_the_last_words_say_how_to_get_what_was_kept(rate, kept, workspace, autoresearch, ideas):
    done = autoresearch("--agent", f"script:{ideas(idea=rate)}", cwd=workspace)
    *_, told, last = done.stdout.splitlines()
    assert last.startswith(f"the best train.py is {'experiment 1' if kept else 'the baseline'}, branch autoresearch/")
    named = [command for command in COMMANDS if told.find(f": autoresearch {command}") > 0]
    assert named == (["report", "finalize"] if kept else []), "nothing kept makes no branch"
    for command in named:
        assert autoresearch(command, cwd=workspace).returncode == 0


def test_a_cost_cap_has_its_own_exit_code(workspace, autoresearch, tmp_path, journal):
    """Proposals that cost a dollar each; the third would pass the cap of two."""
    (tmp_path / "costly.py").write_text(
        "from autoresearch.agent import night\n"
        "make = night.make_proposer\n"
        "def costly(settings, directory, ledger, *more):\n"
        "    proposer, notes = make(settings, directory, ledger, *more)\n"
        "    propose = proposer.propose\n"
        "    def pay(context):\n"
        "        ledger.settle(ledger.reserve(1.0, agent='optimizer', purpose='propose'), 1.0, 'ok')\n"
        "        return propose(context)\n"
        "    proposer.propose = pay\n"
        "    return proposer, notes\n"
        "night.make_proposer = costly\n"
        "from autoresearch.cli import main\n"
        "main()\n"
    )
    options = {"cwd": workspace, "module": "costly", "env": {"PYTHONPATH": str(tmp_path)}}
    done = autoresearch("--max-cost", "2", **options)
    assert done.returncode == 3, done.stderr
    assert "stopped: $2.00 is spent (--max-cost)" in done.stdout
    assert done.stdout.endswith("raise the cap to go on; the run resumes where it is\n")
    assert re.search(r"#1 .* s  \$1\.00  ", done.stdout)
    status = document(autoresearch("status", "--json", cwd=workspace))
    assert (status["experiments"], status["cost_usd"]) == (2, 2.0)
    assert autoresearch("--max-cost", "2", **options).returncode == 3, "also on resume, and nothing is spent"
    text = autoresearch("status", cwd=workspace).stdout
    assert text.count("2 experiments") == 1
    assert "calls cost $2.00" in text
    done = autoresearch("--max-cost", "2.5", **options)
    assert done.returncode == 3, "a higher cap goes on as far as it reaches"
    assert "stopped: the next call could cost $1.00, and $0.50 is left (--max-cost)" in done.stdout


def test_plain_lines(workspace, autoresearch, ideas):
    """A pipe gets no escape codes and no carriage return, and one line an experiment."""
    script = f"script:{ideas(a_good=1.0, b_bad=0.01)}"
    done = autoresearch("--agent", script, cwd=workspace)
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    assert done.stderr == ""
    assert sum("a_good" in line for line in done.stdout.splitlines()) == 1
    assert "step" not in done.stdout.replace("steps", "")
    told = autoresearch("-v", "--tag", "told", "--agent", script, cwd=workspace).stdout
    assert "  dtype float32: NumPy" in told, "-v says the reasons"
    assert "\n  #1 a_good\n  set-up\n  training\n" in told, "and every step on its way"
    assert "\x1b" not in told


def on_a_terminal(command: list[str], cwd, env: dict[str, str]) -> str:
    """What a command writes to a terminal of 100 columns."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, cwd=cwd, env=env, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    chunks = []
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(leader)
    assert process.wait(timeout=60) == 0
    return b"".join(chunks).decode()


@pytest.fixture
def long_idea(ideas, null_source) -> str:
    words = "a hypothesis of many words [bold]that[/bold] would fill three lines of a terminal, " * 3
    source = null_source.replace("LEARNING_RATE = 0.3", "LEARNING_RATE = 1.0")
    return f"script:{ideas(long=f'# hypothesis: {words}{chr(10)}{source}')}"


def test_live_view(workspace, environment, long_idea):
    command = [sys.executable, "-m", "autoresearch", "--agent", long_idea]
    terminal = {**environment, "TERM": "xterm-256color", "COLUMNS": "100"}
    shown = on_a_terminal(command, workspace, terminal)
    assert "\x1b[?25l" in shown, "the cursor is hidden while the line is live"
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "and it is back at the end"
    assert re.search(r"step \d+ · loss \d\.\d+ · [\d,]+ tokens/s", shown)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    line = next(line for line in re.split(r"[\r\n]+", text) if line.startswith("#1   keep"))
    assert len(line) <= 100
    assert line.endswith("…")
    assert "[bold]that[/bold]" in line
    assert re.search(r"\x1b\[[0-9;]*m#1 ", shown), "a keep is set off"
    assert "get it: git -C " + str(workspace) + " show " in text, "a command to copy is not broken up"


@pytest.mark.parametrize("name", ["NO_COLOR", "CI", "TERM"])
def test_a_terminal_that_wants_it_plain(name, workspace, environment, long_idea):
    command = [sys.executable, "-m", "autoresearch", "--agent", long_idea]
    wish = {"TERM": "xterm-256color", name: "dumb" if name == "TERM" else "1"}
    shown = on_a_terminal(command, workspace, {**environment, **wish})
    if name == "NO_COLOR":
        assert not re.search(r"\x1b\[[0-9;]*3[0-9]", shown), "no colours"
    else:
        assert "\x1b" not in shown
        assert "\r" not in shown.replace("\r\n", "\n")


def test_a_closed_pipe_is_no_error(searched, environment):
    command = f"{sys.executable} -m autoresearch report | head -n 1"
    done = subprocess.run(command, shell=True, cwd=searched, env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("val_bpb went from ")
    assert done.stderr == ""


def test_a_search_whose_output_is_closed_stops_and_goes_on_later(workspace, environment, autoresearch, journal):
    command = f"{sys.executable} -m autoresearch --max-experiments 3 | sed '/^#0/q'"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=workspace, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (130, "")
    stopped = [event["reason"] for event in journal(workspace) if event["event"] == "stopped"]
    assert stopped == ["the output was closed"]
    assert autoresearch("--max-experiments", 3, cwd=workspace).returncode == 0
    assert [event["n"] for event in journal(workspace) if event["event"] == "decided"] == [0, 1, 2, 3]
