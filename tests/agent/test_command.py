"""Any coding agent as a command: what it may change, how it is ended, what it costs; driven by real processes."""

import contextlib
import json
import os
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autoresearch.agent import watched
from autoresearch.agent.command import Command
from autoresearch.agent.command_line import command_line
from autoresearch.agent.ledger import Ledger
from autoresearch.agent.proposer import Context, RoundFailed, Trial
from autoresearch.agent.reported import reported
from autoresearch.agent.scratch import Scratch
from autoresearch.agent.watched import Bounds, run_watched
from autoresearch.core import agent_settings, process
from autoresearch.core.errors import CostCapReached, UsageError

SOURCE = "RATE = 1.0\n\n\ndef train(experiment):\n    return RATE\n"
BASELINE = Trial(0, "keep", "", 2.0, "baseline", "baseline", 0, {"RATE": 1.0}, "c0")
CONTEXT = Context("Find a better RATE.", BASELINE, SOURCE, {"seq_len": 64}, {}, 0.01, (BASELINE,), frozenset(), 1)
EDIT = "train.write_text(train.read_text().replace('1.0', '2.0'))"
KEY = "sk-secret-0123456789"


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Path:
    """The current directory, as it is in a search."""
    folder = tmp_path / "lab"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


@pytest.fixture
def command(tmp_path, workspace, purse):
    """A command whose agent does what the given lines say: `command("train.unlink()", book, silence_seconds=…)`."""

    def make(body: str, book=None, words: str = "{output}", **settings) -> Command:
        script = tmp_path / "agent.py"
        head = "import json, os, subprocess, sys, time\nfrom pathlib import Path\ntrain = Path('train.py')\n"
        script.write_text(head + textwrap.dedent(body) + "\n")
        given = agent_settings.Command(**{"estimate_usd": 0.25, **settings})
        return Command(f"{sys.executable} {script} {words}", given, (book or purse()).ledger, workspace)

    return make


def failure(command: Command, context: Context = CONTEXT) -> RoundFailed:
    with pytest.raises(RoundFailed) as caught:
        command.propose(context)
    return caught.value


def charged(book) -> list[tuple[float, str]]:
    return [*zip(book.charged, book.outcomes, strict=True)]


# What comes back


def test_an_edit_comes_back_with_its_hypothesis(command, workspace, tmp_path, purse):
    book = purse()
    made = command(
        f"{EDIT}\nPath(sys.argv[1]).write_text('\\nhypothesis: a higher rate\\ncategory: learning rate\\n')", book
    )
    proposal = made.propose(CONTEXT)
    assert proposal.source == SOURCE.replace("1.0", "2.0")
    assert (proposal.hypothesis, proposal.category, proposal.problem) == ("a higher rate", "learning rate", "")
    assert proposal.cost_usd == 0.25
    assert charged(book) == [(0.25, "exit 0; charged at its estimate")]
    assert list((tmp_path / "temporary").iterdir()) == [], "nothing of the scratch folder is left"
    assert list(workspace.iterdir()) == []
    assert made.paid
    assert made.name == f"command:{Path(sys.executable).name}"


def test_it_is_told_the_history_and_has_keys_but_no_path_of_the_workspace(command, workspace, tmp_path, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("PWD", str(workspace))
    monkeypatch.setenv("MY_LAB", f"--lab={workspace}/train.py")
    monkeypatch.setenv("NEIGHBOUR", f"{workspace}-2")
    monkeypatch.setenv("PATH", f"{workspace}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("AUTORESEARCH_CACHE", "/a/cache")
    seen = tmp_path / "seen.json"
    made = command(f"""
        seen = dict(env=dict(os.environ), stdin=sys.stdin.read(), prompt=Path(sys.argv[1]).read_text(), cwd=os.getcwd())
        seen["files"] = {{p.name: p.read_text() for p in Path().iterdir()}}
        Path({str(seen)!r}).write_text(json.dumps(seen))
        {EDIT}""", words="{prompt} {dir} {other}")  # fmt: skip
    findings = replace(CONTEXT, findings="rates above 3 diverge", guidance="something bolder")
    made.propose(findings)
    told = json.loads(seen.read_text())
    assert told["stdin"] == told["prompt"] == made.prompt(findings)
    assert "What this run has shown so far" in told["stdin"]
    assert "something bolder" in told["stdin"]
    assert set(told["files"]) == {"train.py", "program.md", "knowledge.md", "PROMPT.md"}
    assert told["files"]["program.md"] == "Find a better RATE."
    assert told["env"]["ANTHROPIC_API_KEY"] == KEY
    assert told["env"]["NEIGHBOUR"] == f"{workspace}-2", "another folder"
    assert "AUTORESEARCH_CACHE" not in told["env"]
    rest = json.dumps({name: value for name, value in told.items() if name != "env"})
    rest += json.dumps({name: value for name, value in told["env"].items() if name != "NEIGHBOUR"})
    assert str(workspace) not in rest
    assert not Path(told["cwd"]).is_relative_to(workspace)


def test_a_temporary_folder_in_the_workspace_is_refused(command, workspace, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(workspace))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(UsageError, match="lies in the workspace"):
        command(EDIT).propose(CONTEXT)


STRAYS = {
    "a second file": ("Path('other.py').write_text('x')", "other.py"),
    "an edit of program.md": ("Path('program.md').write_text('obey me')", "program.md"),
    "a lost file": ("Path('program.md').unlink()", "program.md"),
    "a file in a folder": ("Path('a/b').mkdir(parents=True); Path('a/b/c.py').write_text('x')", "a/b/c.py"),
    "a link": ("Path('other.py').symlink_to('train.py')", "other.py"),
    "a pipe": ("os.mkfifo('pipe')", "pipe"),
    "a link named like a cache": ("Path('__pycache__').symlink_to('/tmp')", "__pycache__"),
}


@pytest.mark.parametrize("case", STRAYS)
def test_any_other_file_that_changes_is_said_and_nothing_is_taken_over(case, command):
    does, name = STRAYS[case]
    proposal = command(f"{EDIT}\n{does}").propose(CONTEXT)
    assert proposal.problem == f"only train.py may be changed; the command also changed {name}"
    assert proposal.source == ""
    assert proposal.cost_usd == 0.25


def test_folders_too_deep_to_be_looked_into_are_said_and_removed(command, monkeypatch, tmp_path):
    temporary = tmp_path / "deep"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    deep = "for _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')"
    proposal = command(f"{EDIT}\n{deep}").propose(CONTEXT)
    assert proposal.problem.startswith("only train.py may be changed; the command also changed d/d/d")
    assert list(temporary.iterdir()) == []


def test_without_the_look_at_other_files_that_would_not_be_seen(command, monkeypatch):
    monkeypatch.setattr(Scratch, "strays", lambda scratch: [])
    with pytest.raises(AssertionError):
        test_any_other_file_that_changes_is_said_and_nothing_is_taken_over("a second file", command)


def test_repositories_and_caches_that_tools_make_are_left_alone(command):
    body = f"{EDIT}\nfor name in ('.git', '__pycache__'):\n    os.mkdir(name)\n    Path(name, 'x').write_text('x')"
    proposal = command(body).propose(CONTEXT)
    assert (proposal.problem, proposal.hypothesis) == ("", "no hypothesis given")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("train.unlink(); train.symlink_to('/etc/hostname')", "train.py is no plain file any more"),
        ("train.unlink()", "train.py is no plain file any more"),
        ("train.write_bytes(b'\\xff')", "train.py is not UTF-8 text: byte 0"),
        ("train.write_text('#' * 10**6)", "train.py has 1000000 bytes"),
        (f"train.write_text('K = \"{KEY}\"')", "train.py holds a key, or the value of a variable"),
    ],
)
def test_a_train_py_that_can_not_be_taken_over(body, problem, command, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    proposal = command(body).propose(CONTEXT)
    assert problem in proposal.problem
    assert proposal.source == ""


def test_no_edit_is_a_failed_round(command):
    failed = failure(command("print('I would rather not')"))
    assert (failed.kind, failed.reason.split(" left ")[1]) == (
        "no edit",
        "train.py as it was; it said: no hypothesis given",
    )


def test_its_own_crash_is_handed_back_to_be_mended(command, tmp_path):
    made = command("Path(sys.argv[1]).write_text(train.read_text()); train.write_text('mended = 1')")
    crash = Trial(
        1, "crash", "ValueError: boom", None, "an idea", "other", 0, {}, "c1", "Traceback …", proposer=made.name
    )
    context = replace(CONTEXT, mend=crash, mend_source="broken = 1\n")
    proposal = made.propose(context)
    assert (proposal.source, proposal.hypothesis) == ("mended = 1", "broken = 1")
    assert "ValueError: boom" in made.prompt(context)
    assert made.propose(replace(context, mend=replace(crash, proposer="claude"))).hypothesis == "RATE = 1.0"


# How it is ended


def alive(path: Path) -> list[int]:
    pids = [int(line) for line in path.read_text().split() if line != "all"]
    assert len(pids) >= 4
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


LEAVES = """
    pids = Path({pids!r})
    sleep = [sys.executable, '-c', 'import time; time.sleep(600)']
    hidden = dict(start_new_session=True, env={{}})
    more = [dict(cwd='/', **hidden)] if sys.platform == 'linux' else []
    for how in ({{}}, dict(start_new_session=True), hidden, *more):
        child = subprocess.Popen(sleep, **how)
        with pids.open('a') as file:
            print(child.pid, file=file)
    with pids.open('a') as file:
        print(os.getpid(), 'all', sep='\\n', file=file)
"""


@pytest.mark.parametrize(
    ("ends", "bounds", "kind"),
    [
        ("time.sleep(600)", {"silence_seconds": 1.0}, "silence"),
        ("while True: print('working', flush=True); time.sleep(0.05)", {"timeout_seconds": 1.0}, "timeout"),
        ("while True: sys.stdout.write('x' * 10**6)", {"output_mb": 1}, "flood"),
        ("while True: sys.stderr.write('x' * 10**6)", {"output_mb": 1}, "flood"),
        ("sys.exit(1)", {}, "exit"),
        ("os.kill(os.getpid(), 9)", {}, "exit"),
        ("sys.exit(0)", {}, "no edit"),
    ],
)
def test_however_it_ends_nothing_that_it_started_is_left(ends, bounds, kind, command, tmp_path, purse):
    book, pids = purse(), tmp_path / "pids"
    failed = failure(command(LEAVES.format(pids=str(pids)) + "    " + ends, book, **bounds))
    assert failed.kind == kind
    assert alive(pids) == []
    assert book.charged[0] == 0.25
    assert len(failed.reason) < 1000
    assert book.history.open_calls == {}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere one of them survives by design")
@pytest.mark.parametrize(("planted", "survivors"), [("orphans_killed", 1), ("both", 2)])
def test_each_search_for_them_is_needed(planted, survivors, command, tmp_path, monkeypatch):
    """One clears its environment and session, one leaves the folder as well."""
    monkeypatch.setattr(watched, "orphans_killed", contextlib.nullcontext)
    if planted == "both":
        monkeypatch.setattr(process, "kill_inside", lambda *args: None)
    pids = tmp_path / "pids"
    failure(command(LEAVES.format(pids=str(pids)) + "    os._exit(1)"))
    left = alive(pids)
    for pid in left:
        os.kill(pid, 9)
    assert len(left) == survivors


def test_a_flood_of_100_mb_is_neither_kept_nor_read_to_its_end(tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "in").write_text("")
    flood = "import sys\nfor _ in range(100): sys.stdout.write('x' * 10**6)\nopen('finished', 'w')"
    bounds = Bounds(silence_seconds=60, timeout_seconds=60, output_bytes=2_000_000)
    ended = run_watched(
        [sys.executable, "-c", flood], os.environ, tmp_path / "in", tmp_path / "train.py", "mark", bounds
    )
    assert (ended.kind, ended.code) == ("flood", None)
    assert len(ended.stdout) == 2_000_000
    assert not (tmp_path / "finished").exists()


def test_a_failure_says_the_end_of_what_it_printed_without_keys(command, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    failed = failure(command(f"print('x' * 5000, file=sys.stderr); sys.exit('no quota for {KEY}')"))
    assert failed.kind == "exit"
    assert failed.reason.endswith("no quota for (OPENAI_API_KEY)")
    assert "ended with exit code 1" in failed.reason


def test_a_command_that_can_not_be_started_costs_nothing(command, tmp_path, purse):
    book = purse()
    made = command(EDIT, book)
    made._line = replace(made._line, words=(str(tmp_path / "gone"),))
    assert failure(made).kind == "command"
    assert charged(book) == [(0.0, "not started: No such file or directory")]


def test_an_interruption_ends_it_and_is_charged(command, tmp_path, monkeypatch, purse):
    book, pids = purse(), tmp_path / "pids"
    made = command(LEAVES.format(pids=str(pids)) + "    time.sleep(600)", book)

    def interrupted(path):
        if pids.exists() and pids.read_text().endswith("all\n"):
            raise KeyboardInterrupt

    monkeypatch.setattr("autoresearch.agent.watched._state", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.propose(CONTEXT)
    assert alive(pids) == []
    assert charged(book) == [(0.25, "interrupted: KeyboardInterrupt; charged at its estimate")]


def test_the_id_of_the_call_marks_its_processes(command, tmp_path, purse):
    book, seen = purse(), tmp_path / "mark"
    command(f"{EDIT}\nPath({str(seen)!r}).write_text(os.environ['AUTORESEARCH_CHILD'])", book).propose(CONTEXT)
    assert [seen.read_text()] == [event["id"] for event in book.events if event["event"] == "call"]


# What it costs

CLAUDE = [
    {"type": "system", "subtype": "init"},
    {"type": "assistant", "message": {"content": [{"type": "text", "text": "working"}]}},
    {
        "type": "result", "subtype": "success", "is_error": False, "result": "a higher rate\nbecause",
        "total_cost_usd": 0.125, "usage": {"input_tokens": 3, "output_tokens": 5,
        "cache_creation_input_tokens": 7, "cache_read_input_tokens": 11},
    },
]  # fmt: skip
CODEX = [
    {"type": "thread.started", "thread_id": "t"},
    {"type": "item.completed", "item": {"id": "1", "type": "agent_message", "text": "a lower rate"}},
    {"type": "turn.completed", "usage": {"input_tokens": 100, "cached_input_tokens": 60, "output_tokens": 9}},
    {"type": "turn.completed", "usage": {"input_tokens": 10, "cached_input_tokens": 0, "output_tokens": 1}},
]


@pytest.mark.parametrize("form", ["lines", "document", "one object"])
def test_the_cost_that_a_tool_tells_is_charged(form, command, purse):
    book = purse()
    said = CLAUDE[-1] if form == "one object" else CLAUDE
    text = "\n".join(map(json.dumps, said)) if form == "lines" else json.dumps(said, indent=1)
    proposal = command(f"{EDIT}\nprint({text!r})", book).propose(CONTEXT)
    assert proposal.hypothesis == "a higher rate"
    assert charged(book) == [(0.125, "exit 0")]
    assert proposal.cost_usd == book.history.cost_usd == 0.125
    tokens = {"input": 3, "output": 5, "cache_write": 7, "cache_write_hour": 0, "cache_read": 11}
    assert book.events[-1]["tokens"] == tokens
    assert proposal.facts["tokens"] == 26


def test_where_only_tokens_are_told_the_estimate_is_charged(command, purse):
    book = purse()
    text = "\n".join(["a banner", *map(json.dumps, CODEX)])
    assert command(f"{EDIT}\nprint({text!r})", book).propose(CONTEXT).hypothesis == "a lower rate"
    assert charged(book) == [(0.25, "exit 0; charged at its estimate")]
    assert book.events[-1]["tokens"] == {
        "input": 50, "output": 10, "cache_write": 0, "cache_write_hour": 0, "cache_read": 60,
    }  # fmt: skip


def test_a_tool_that_says_it_failed_has_failed_and_its_cost_counts(command, purse):
    book = purse()
    said = json.dumps({**CLAUDE[-1], "is_error": True, "result": "overloaded"})
    failed = failure(command(f"{EDIT}\nprint({said!r})", book))
    assert (failed.kind, book.history.cost_usd) == ("exit", 0.125)
    assert failed.reason.endswith("failed; it said: overloaded")


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-1", "true", '"0.1"', "null", "[" * 5000, "1e308", "1" + "0" * 400]
)
def test_a_cost_that_is_no_amount_is_no_cost(value):
    assert reported(f'{{"type": "result", "total_cost_usd": {value}}}').usd is None


def test_under_a_cap_nothing_is_called_that_could_exceed_it(command, tmp_path, purse):
    book, calls = purse(max_cost=0.6), tmp_path / "calls"
    made = command(f"{EDIT}\nopen({str(calls)!r}, 'a').write('x')", book)
    made.propose(CONTEXT)
    made.propose(CONTEXT)
    with pytest.raises(CostCapReached, match=r"\$0\.10 is left"):
        made.propose(CONTEXT)
    assert calls.read_text() == "xx"
    assert book.history.cost_usd == 0.5


def test_without_the_cap_a_third_call_would_be_made(command, tmp_path, monkeypatch, purse):
    monkeypatch.setattr(Ledger, "_left", lambda ledger: [])
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_under_a_cap_nothing_is_called_that_could_exceed_it(command, tmp_path, purse)


def test_under_a_cap_an_unknown_cost_is_refused(command, purse):
    with pytest.raises(UsageError, match=r"what a call of python.* costs isn't known") as caught:
        command(EDIT, purse(max_cost=1.0), estimate_usd=0.0)
    assert "estimate_usd" in caught.value.hint
    assert command(EDIT, purse(), estimate_usd=0.0).propose(CONTEXT).cost_usd == 0.0


# Which command


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program of that name on PATH that writes its arguments down and edits train.py."""

    def make(name: str) -> Path:
        folder, argv = tmp_path / "bin", tmp_path / "argv.json"
        folder.mkdir(exist_ok=True)
        body = (
            f"import json, sys\njson.dump(sys.argv[1:], open({str(argv)!r}, 'w'))\nopen('train.py', 'a').write('# x')\n"
        )
        (folder / name).write_text(f"#!{sys.executable}\n{body}")
        (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        return argv

    return make


@pytest.mark.parametrize("max_cost", [0.0, 5.0])
def test_claude_is_called_without_a_person(max_cost, program, workspace, purse):
    argv = program("claude")
    made = Command("claude --model opus", agent_settings.Command(estimate_usd=0.5), purse(max_cost).ledger, workspace)
    assert made.name == "command:claude"
    assert made.propose(CONTEXT).problem == ""
    words = json.loads(argv.read_text())
    assert words[:4] == ["-p", "--output-format", "stream-json", "--verbose"]
    assert words[words.index("--tools") + 1] == "Read,Edit,Write,Glob,Grep", "it runs nothing, and asks nobody"
    assert words[words.index("--permission-mode") + 1] == "acceptEdits"
    rest = words[words.index("--model") :]
    assert rest == (["--model", "opus", "--max-budget-usd", "0.5"] if max_cost else ["--model", "opus"])


def test_codex_is_called_without_a_person(program, workspace, purse):
    argv = program("codex")
    made = Command("codex -m best", agent_settings.Command(), purse().ledger, workspace)
    made.propose(CONTEXT)
    words = json.loads(argv.read_text())
    assert words[0] == "exec"
    assert words[words.index("--sandbox") + 1] == "workspace-write"
    assert Path(words[words.index("-o") + 1]).name == "HYPOTHESIS.txt"
    assert words[-3:] == ["-m", "best", "-"]


def test_a_line_of_ones_own_is_taken_word_by_word(program, workspace, purse):
    argv = program("claude")
    line = "claude -p 'read {prompt}; $HOME' --json {\"a\":1}"
    Command(line, agent_settings.Command(), purse().ledger, workspace).propose(CONTEXT)
    words = json.loads(argv.read_text())
    assert words[1].startswith("read /")
    assert words[1].endswith("/PROMPT.md; $HOME")
    assert words[2:] == ["--json", "{a:1}"]


@pytest.mark.parametrize(
    ("line", "problem"), [("'", "can't be read"), (" ", "no command"), ("nothing-here -p", "nothing-here")]
)
def test_a_command_that_can_not_be_used(line, problem):
    with pytest.raises(UsageError, match=problem):
        command_line(line)
