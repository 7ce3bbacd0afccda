"""The sandbox: its arguments and its profile everywhere, what it stops where bubblewrap runs.

The attacks start a shell past the audit hook, as native code could: what the guard in the process can't see.
"""

import os
import sys
from pathlib import Path

import pytest

from autoresearch.core import sandbox
from autoresearch.core.contract import Result
from autoresearch.core.errors import BackendUnavailable, UsageError
from autoresearch.core.executor import LocalExecutor
from autoresearch.core.sandbox import Bubblewrap, Places, SandboxExec, choose, code_folders, find, kernel_folders
from autoresearch.core.task import Limits

HERE = find().sandbox if sys.platform == "linux" else None
needs_bubblewrap = pytest.mark.skipif(HERE is None, reason="bubblewrap is absent, or refused by this machine")

# `subprocess` without its audit event.
SHELL = """
import os, subprocess, sys, types
quiet = types.ModuleType("quiet")
vars(quiet).update(vars(sys), audit=lambda *args: None)
subprocess.sys = quiet
def shell(script):
    found = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True)
    print("GAINED", found.stdout.strip().replace("\\n", " ") or "nothing")
"""


# ---------------------------------------------------------------------------------------------------------------------
# Bubblewrap's arguments


def mounts_of(command):
    """{path: kind} in the order of the command."""
    found = {}
    for n, word in enumerate(command[: command.index("--")]):
        if word in ("--bind", "--ro-bind-try"):
            assert command[n + 1] == command[n + 2]
            found[command[n + 1]] = word
        elif word == "--tmpfs":
            found[command[n + 1]] = word
    return found


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A home with a virtual environment, a workspace and a cache in it."""
    home = tmp_path / "home"
    for folder in ("scratch", "home/venv/lib", "home/lab/.autoresearch/tag/compile", "home/.cache/data/key"):
        (tmp_path / folder).mkdir(parents=True)
    (home / ".cache/data/key/train.rows.npy").touch()
    monkeypatch.setenv("HOME", str(home))
    return Places(
        tmp_path / "scratch",
        home / "lab/.autoresearch/tag/compile",
        (home / "venv", home / "venv/lib", home / "lab", home / ".cache/data/key/train.rows.npy"),
        (home / "lab/.autoresearch", home / ".cache/data"),
    )


def test_the_inner_one_of_two_places_decides(places, tmp_path):
    command = Bubblewrap("bwrap").command(["python", "-V"], places)
    assert command[0] == "bwrap"
    assert command[command.index("--") :] == ["--", "python", "-V"]
    assert command[command.index("--chdir") + 1] == str(places.scratch)
    mounts = mounts_of(command)
    home = str(tmp_path / "home")
    own = {path.removeprefix(home): kind for path, kind in mounts.items() if path.startswith(home)}
    assert own == {
        "": "--tmpfs",
        "/venv": "--ro-bind-try",
        "/lab": "--ro-bind-try",
        "/lab/.autoresearch": "--tmpfs",
        "/.cache/data": "--tmpfs",
        "/.cache/data/key/train.rows.npy": "--ro-bind-try",
        "/lab/.autoresearch/tag/compile": "--bind",
    }
    order = list(mounts)
    for outer in order:
        for inner in order:
            if inner.startswith(outer + "/"):
                assert order.index(outer) < order.index(inner), (outer, inner)
    assert {path for path, kind in mounts.items() if kind == "--bind"} == {str(places.scratch), str(places.cache)}


def test_no_network_no_privileges_and_nothing_to_write(places):
    command = Bubblewrap("bwrap").command(["true"], places)
    assert {"--unshare-all", "--die-with-parent"} <= set(command)
    assert command[command.index("--cap-drop") + 1] == "ALL"
    read_only = {command[n + 1] for n, word in enumerate(command) if word == "--remount-ro"}
    assert {"/", str(places.private[0]), os.environ["HOME"]} <= read_only
    shared = Bubblewrap("bwrap", own_processes=False).command(["true"], places)
    assert "--unshare-all" not in shared
    assert "--unshare-net" in shared


def test_devices_are_passed(places, monkeypatch):
    monkeypatch.setattr(sandbox, "_DEVICES", ("nul*", "dri-is-not-here"))
    command = Bubblewrap("bwrap").command(["true"], places)
    assert [command[n + 1] for n, word in enumerate(command) if word == "--dev-bind"] == ["/dev/null"]


def test_what_a_measurement_needs(tmp_path):
    (tmp_path / "hub" / "models--kernels").mkdir(parents=True)
    (tmp_path / "hub" / "datasets--text").mkdir()
    environment = {"HF_HUB_CACHE": str(tmp_path / "hub"), "LD_LIBRARY_PATH": f"{tmp_path}:", "CUDA_HOME": "/cuda"}
    assert kernel_folders(environment) == [tmp_path / "hub" / "models--kernels"]
    folders = code_folders(environment)
    assert {tmp_path, Path("/cuda"), Path(sys.prefix), Path(sys.base_prefix), sandbox.PACKAGE} <= set(folders)
    assert all(folder.is_absolute() for folder in folders)


# ---------------------------------------------------------------------------------------------------------------------
# The profile of macOS


def test_the_profile_of_sandbox_exec(places, tmp_path):
    command = SandboxExec("/usr/bin/sandbox-exec").command(["python", "-V"], places)
    assert command[:2] == ["/usr/bin/sandbox-exec", "-p"]
    assert command[3:] == ["python", "-V"]
    rules = command[2].splitlines()
    assert rules[:3] == ["(version 1)", "(allow default)", "(deny network*)"]
    home = str(tmp_path / "home")
    verdicts = [rule.split()[0] for rule in rules if f'"{home}/lab' in rule or f'"{home}/.cache/data' in rule]
    assert verdicts == ["(allow", "(deny", "(deny", "(allow", "(allow"], "the last one that fits decides"
    assert rules.index(f'(allow file-read* (subpath "{home}/venv"))') > rules.index(
        '(deny file-read* (subpath "/Users"))'
    )
    last = next(n for n, rule in enumerate(rules) if "file-read* file-write*" in rule)
    assert str(places.scratch) in rules[last]
    assert rules.index("(deny file-write*)") < last
    assert command[2].count("(") == command[2].count(")")


def test_a_name_with_quotes_stays_one_name():
    path = Path('/a "quoted" \\ name')
    profile = SandboxExec("x").profile(Places(path, path))
    assert '(subpath "/a \\"quoted\\" \\\\ name")' in profile


# ---------------------------------------------------------------------------------------------------------------------
# Which one is used

RECORDS = """#!/bin/sh
printf '%s\\n' "$@" > "{log}"
while [ "$1" != "--" ]; do shift; done
shift
exec "$@"
"""
REFUSES = """#!/bin/sh
echo "bwrap: No permissions to create new namespace" >&2
exit 1
"""


@pytest.fixture
def bwrap(tmp_path, monkeypatch):
    """Put a program `bwrap` first on the path: `bwrap(script)`; returns the file that it records its arguments in."""

    def install(script: str) -> Path:
        folder, log = tmp_path / "bin", tmp_path / "arguments.txt"
        folder.mkdir()
        program = folder / "bwrap"
        program.write_text(script.format(log=log))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        monkeypatch.setattr(sys, "platform", "linux")
        return log

    return install


@pytest.fixture
def no_bwrap(monkeypatch):
    monkeypatch.setattr(sandbox.shutil, "which", lambda *args, **kwargs: None)
    monkeypatch.setattr(sys, "platform", "linux")


def test_the_one_that_works_is_used(bwrap):
    log = bwrap(RECORDS)
    for setting in ("auto", "on"):
        found = choose(setting)
        assert found.sandbox.name == "bubblewrap"
        assert log.read_text().splitlines()[-1] == "true", "a command was started in it"
    assert choose("off").sandbox is None
    assert choose("off").reason == "switched off"


def test_on_fails_clearly_where_there_is_none(no_bwrap):
    assert choose("auto").sandbox is None
    with pytest.raises(BackendUnavailable, match="sandbox = on, but bubblewrap is not installed") as raised:
        choose("on")
    assert raised.value.hint.startswith("apt install bubblewrap")
    assert raised.value.exit_code == 4


def test_on_fails_clearly_where_the_machine_refuses(bwrap):
    bwrap(REFUSES)
    found = choose("auto")
    assert found.sandbox is None
    assert "No permissions to create new namespace" in found.reason
    with pytest.raises(BackendUnavailable, match="can't start anything here") as raised:
        choose("on")
    assert "user namespaces" in raised.value.hint


def test_where_a_process_namespace_is_refused_it_goes_without(bwrap):
    bwrap('#!/bin/sh\nfor word in "$@"; do [ "$word" = --unshare-all ] && exit 1; done\nexit 0\n')
    found = find()
    assert found.sandbox == Bubblewrap(found.sandbox.program, own_processes=False)
    assert "sees the machine's processes" in found.reason


def test_another_setting_is_an_error():
    with pytest.raises(UsageError, match="sandbox must be auto, on or off, received 'of'") as raised:
        choose("of")
    assert raised.value.hint == "did you mean 'off'?"


def test_the_command_of_a_measurement_and_its_record(bwrap, lab, candidate, dataset):
    log = bwrap(RECORDS)
    lab.executor = LocalExecutor(lab.folder / "lab/.autoresearch/tag", choose("on").sandbox)
    result = lab.result(candidate())
    assert result.status == "ok"
    assert result.guards[0] == "sandbox"
    command = log.read_text().splitlines()
    assert command[-4:-2] == ["-m", "autoresearch.core.child"]
    mounts = mounts_of(command)
    readable = {name for name in os.listdir(dataset.path) if str(dataset.path / name) in mounts}
    assert readable == {"manifest.json", "train.rows.npy"}
    assert str(dataset.path) not in mounts
    failed = lab.result(candidate(step="1 / 0"))
    assert failed.guards == ("sandbox",)
    lab.executor = LocalExecutor()
    assert "sandbox" not in lab.result(candidate()).guards
    assert Result.from_json(result.to_json()) == result


# ---------------------------------------------------------------------------------------------------------------------
# What it stops


@pytest.fixture
def gained(lab, candidate, dataset):
    """What a shell of the candidate prints, in the sandbox and outside: `gained(script) -> (inside, outside)`."""
    run = lab.folder / "lab/.autoresearch/tag"
    run.mkdir(parents=True)
    (run / "journal.jsonl").write_text("the only truth")

    def try_both(script: str, place: str = "setup") -> tuple[str, str]:
        script = script.format(journal=run / "journal.jsonl", data=dataset.path, parent=os.getpid())
        told = []
        for chosen in (HERE, None):
            lab.executor = LocalExecutor(run, chosen)
            lab.log.unlink(missing_ok=True)
            result = lab.result(candidate(top=SHELL, **{place: f"shell({script!r})"}))
            assert result.status == "ok", result.reason
            told.append(lab.log.read_text().split("GAINED ", 1)[1].splitlines()[0])
        return told[0], told[1]

    return try_both


@needs_bubblewrap
@pytest.mark.parametrize(
    ("script", "outside"),
    [
        ("cat {journal}", "the only truth"),
        ("echo x > {journal}.2 && echo written", "written"),
        ("wc -c < {data}/val.rows.npy", None),
        ("ls {data} | grep -c val", None),
        ("tr '\\0' '\\n' < /proc/{parent}/environ | grep -c =", None),
    ],
    ids=["journal", "writing", "validation rows", "their names", "the parent's environment"],
)
def test_what_native_code_could_reach_is_out_of_reach(gained, script, outside):
    inside, beyond = gained(script)
    assert inside in ("nothing", "0")
    assert beyond == outside if outside else beyond not in ("nothing", "0")


@needs_bubblewrap
def test_shared_memory_is_its_own(gained):
    """What one measurement leaves there, no other one finds."""
    name = f"autoresearch-{os.getpid()}"
    seen = Path("/dev/shm") / name
    seen.touch()
    try:
        assert gained(f"ls /dev/shm | grep {name}") == ("nothing", name)
    finally:
        seen.unlink()


@needs_bubblewrap
def test_there_is_no_network(gained):
    inside, outside = gained("grep -c : /proc/net/dev")
    assert inside == "1", "the loopback of its own"
    assert int(outside) >= 1
    inside, outside = gained("grep -v ' lo:' /proc/net/dev | grep -c :")
    assert inside == "0"


@needs_bubblewrap
def test_other_processes_are_not_seen(gained):
    inside, outside = gained("ls /proc | grep -c '^[0-9]'")
    assert int(inside) < 10 < int(outside)


@needs_bubblewrap
def test_every_gate_and_limit_works_in_it(lab, candidate, quick):
    """Crashes, signals, time and memory are told as they are outside."""
    lab.executor = LocalExecutor(lab.folder / "run", HERE)
    honest = lab.result(candidate())
    lab.executor = LocalExecutor(lab.folder / "run")
    outside = lab.result(candidate())
    assert honest.val_bpb == outside.val_bpb
    assert honest.guards == ("sandbox", *outside.guards)
    lab.executor = LocalExecutor(lab.folder / "run", HERE)
    assert (
        "in train" in lab.fails(candidate(step="while True: pass"), "timeout", "training", train_seconds=0.3).log_tail
    )
    lab.fails(candidate(step="import os; os._exit(7)"), "crash", "exit code 7")
    lab.fails(candidate(step="import os; os.abort()"), "crash", r"signal 6 \(Aborted\)")
    small = Limits(setup_seconds=60, eval_seconds=60, memory_fraction=400e6 / _memory())
    hoard = "import time\nhoard = []\nwhile len(hoard) < 400:\n    hoard.append(np.ones(2_000_000)); time.sleep(0.01)"
    lab.fails(candidate(step=hoard), "out_of_memory", "the process tree holds", limits=small)


def _memory() -> int:
    from autoresearch.core.process import memory_bytes

    return memory_bytes()


@needs_bubblewrap
def test_nothing_outlives_it(lab, candidate, find_processes):
    lab.executor = LocalExecutor(lab.folder / "run", HERE)
    step = "subprocess.Popen(['/bin/sh', '-c', 'sleep 86409 & sleep 86409'], env={}, start_new_session=True)"
    lab.fails(candidate(top=SHELL, step=step + "\nos._exit(1)"), "crash", "exit code 1")
    assert not find_processes(lambda p: "86409" in p.cmdline())
