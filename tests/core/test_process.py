"""The child as its parent holds it: whatever it starts is ended, whatever it hoards is counted, its log is bounded.

`lab` (tests/conftest.py) asserts after every measurement that no process, scratch directory or descriptor is left.
"""

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autoresearch.core import executor, process
from autoresearch.core.process import TAIL_BYTES, kill_marked, log_tail, memory_bytes, one_line
from autoresearch.core.task import Limits

# ---------------------------------------------------------------------------------------------------------------------
# Processes


# `subprocess` without its audit event: what a guard in the same process can't see, the parent still ends.
UNSEEN = """
import os, subprocess, sys, time, types
quiet = types.ModuleType("quiet")
vars(quiet).update(vars(sys), audit=lambda *args: None)
subprocess.sys = quiet
def start(script, **options):
    return subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True, **options)
"""


@pytest.fixture
def sleeper(find_processes):
    """An argument of `sleep` that nobody else uses, by which its processes are found."""
    name = str(secrets.randbelow(10**9) + 10**9)
    yield name
    for survivor in find_processes(lambda p: name in p.cmdline()):
        survivor.kill()


@pytest.mark.parametrize("environment", ["None", "{}"], ids=["its environment", "an empty environment"])
@pytest.mark.parametrize(("ending", "status"), [("while True: pass", "timeout"), ("1 / 0", "crash"), ("pass", "ok")])
def test_no_descendant_is_left(lab, candidate, quick, find_processes, sleeper, environment, ending, status):
    """Children in sessions of their own that ignore SIGTERM, and grandchildren whose parents are gone."""
    family = f"trap '' TERM HUP; (sleep {sleeper} & sleep {sleeper} & wait) & sleep {sleeper}"
    orphan = f"(trap '' TERM HUP; sleep {sleeper}) &"
    step = f"""
    if experiment.progress == 0.0:
        start({family!r}, env={environment})
        start({orphan!r}, env={environment}).wait()
        time.sleep(0.2)
    elif experiment.progress == 0.5:
        {ending}
    """
    seen = []

    def look(event):
        if event["event"] == "progress":
            seen.extend(find_processes(lambda p: sleeper in p.cmdline()))

    result = lab.result(candidate(top=UNSEEN, step=step), train_seconds=2.0, on_event=look)
    assert result.status == status, result.reason
    assert len(seen) >= 4, "they did run"
    assert not find_processes(lambda p: sleeper in p.cmdline())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process doesn't adopt its orphans")
def test_without_the_search_for_descendants_they_survive(lab, candidate, monkeypatch, find_processes, sleeper):
    monkeypatch.setattr(process, "_kill_descendants", lambda pid: None)
    monkeypatch.setattr(process, "kill_inside", lambda *args: None)
    step = f"if experiment.progress == 0.0: start('sleep {sleeper} & sleep {sleeper}', env={{}})"
    assert lab.result(candidate(top=UNSEEN, step=step)).status == "ok"
    assert find_processes(lambda p: sleeper in p.cmdline())


def test_what_a_dead_child_left_is_found_by_its_mark(lab, candidate, monkeypatch, find_processes, sleeper):
    step = f"start('sleep {sleeper} & sleep {sleeper}')\ntime.sleep(0.2)\nos._exit(1)"
    source = candidate(top=UNSEEN, step=step)
    lab.fails(source, "crash", "exit code 1")
    assert not find_processes(lambda p: sleeper in p.cmdline())
    # And so is what a killed parent left: a search that resumes knows the mark from its journal.
    with monkeypatch.context() as patch:
        patch.setattr(process, "kill_marked", lambda *args: None)
        patch.setattr(process, "kill_inside", lambda *args: None)
        lab.measure(source, leftovers=True)
    assert find_processes(lambda p: sleeper in p.cmdline())
    kill_marked(lab.mark)
    assert not find_processes(lambda p: sleeper in p.cmdline())


def test_a_survivor_that_holds_the_pipes_open_blocks_nobody(lab, candidate, monkeypatch, find_processes, sleeper):
    monkeypatch.setattr(process, "kill_marked", lambda *args: None)
    monkeypatch.setattr(process, "kill_inside", lambda *args: None)
    step = f"""
    ends = [int(fd) for fd in os.listdir("/dev/fd") if int(fd) > 2]
    start("sleep {sleeper}", pass_fds=[fd for fd in ends if os.path.exists(f"/dev/fd/{{fd}}")])
    os._exit(1)
    """
    lab.fails(candidate(top=UNSEEN, step=step), "crash", "exit code 1", leftovers=True)
    assert find_processes(lambda p: sleeper in p.cmdline())


def test_a_child_killed_from_outside_has_run_out_of_memory(lab, candidate):
    def kill(event):
        if event["event"] == "clock_start":
            os.kill(lab.events[0]["pid"], signal.SIGKILL)

    lab.fails(candidate(step="while True: pass"), "out_of_memory", "the system killed the process", on_event=kill)
    assert [event["event"] for event in lab.events].count("started") == 1, "it was training: no second try"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only a thread of the child watches the parent")
def test_a_child_dies_with_its_parent(candidate, dataset, tmp_path, find_processes):
    """Also one that never lets its threads run: a call that holds the interpreter's lock."""
    (tmp_path / "train.py").write_text(candidate(step="sum(range(10**15))"))
    mark = secrets.token_hex(8)
    parent = subprocess.Popen(
        [sys.executable, Path(__file__).parents[1] / "candidates/parent.py", tmp_path / "train.py", dataset.path, mark],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
    )
    with parent:
        pid = int(parent.stdout.readline())
        child = find_processes(lambda p: p.pid == pid)[0]
        assert child.environ()["AUTORESEARCH_CHILD"] == mark
        parent.kill()
    child.wait(timeout=20)
    assert not find_processes(lambda p: p.environ().get("AUTORESEARCH_CHILD") == mark)


# ---------------------------------------------------------------------------------------------------------------------
# Memory


@pytest.fixture
def small():
    """Limits with 400 MB for the process tree."""
    return Limits(setup_seconds=60, eval_seconds=60, memory_fraction=400e6 / memory_bytes())


FAST = "hoard = []\nwhile len(hoard) < 400: hoard.append(np.ones(2_000_000))"
SLOW = "import time\nhoard = []\nwhile len(hoard) < 400:\n    hoard.append(np.ones(2_000_000)); time.sleep(0.01)"
SHARED = """
import mmap
hoard = mmap.mmap(-1, 800_000_000)
for n in range(0, 800_000_000, 4_000_000):
    hoard[n : n + 4_000_000] = bytes(4_000_000)
    time.sleep(0.005)
"""
OF_A_CHILD = """
start(f"exec {sys.executable} -c 'x = bytes([1]) * 800_000_000; input()'", stdin=subprocess.PIPE)
time.sleep(30)
"""


@pytest.mark.parametrize("place", ["setup", "step", "logits"])
@pytest.mark.parametrize("fault", [FAST, SLOW], ids=["fast", "slow"])
def test_memory_that_runs_out(lab, candidate, small, place, fault):
    result = lab.fails(
        candidate(**{place: fault}),
        "out_of_memory",
        r"^the process tree holds 0\.\d GB, the limit is 0\.4 GB$",
        limits=small,
    )
    assert bool(result.train_seconds) == (place != "setup")
    assert "halved" not in [event["event"] for event in lab.events], "no rows were asked for before"


@pytest.mark.parametrize("fault", [SHARED, OF_A_CHILD], ids=["shared", "of a child process"])
def test_memory_in_other_places_counts_too(lab, candidate, small, fault):
    lab.fails(
        candidate(top=UNSEEN, step=fault), "out_of_memory", "^the process tree holds ", limits=small, train_seconds=60
    )


def test_memory_mapped_data_does_not_count(lab, candidate, small):
    step = """
    if experiment.progress == 0.0:
        np.lib.format.open_memmap("big.npy", "w+", np.uint8, (600_000_000,))[0] = 1
        big = np.load("big.npy", mmap_mode="r")
        assert big[::512].sum() == 1
    """
    assert lab.result(candidate(step=step), limits=small).status == "ok"


def test_memory_error_in_training_is_final(lab, candidate):
    lab.fails(candidate(step="np.ones(1 << 50)"), "out_of_memory", "MemoryError: Unable to allocate 8")
    assert [event["event"] for event in lab.events].count("started") == 1


def halving(enough):
    return f"experiment.dummy_batch(rows)\nif rows > {enough}: raise MemoryError('too many rows')"


def test_a_micro_batch_that_does_not_fit_is_halved_and_the_total_batch_kept(lab, candidate):
    whole = lab.result(candidate())
    result = lab.result(candidate(setup=halving(enough=2)))
    assert result.status == "ok"
    halved = [event for event in lab.events if event["event"] == "halved"]
    assert [event["max_rows"] for event in halved] == [4, 2]
    assert "too many rows" in halved[0]["reason"]
    assert result.max_rows == 2
    assert result.tokens == whole.tokens
    assert result.val_bpb == whole.val_bpb


def test_not_even_one_row_fits(lab, candidate):
    lab.fails(candidate(setup=halving(enough=0)), "out_of_memory", "^MemoryError: too many rows$")
    assert [event["max_rows"] for event in lab.events if event["event"] == "halved"] == [4, 2, 1]


def test_a_child_that_the_system_kills_before_the_clock_is_tried_again(lab, candidate):
    def kill(event):
        if event["event"] == "rows" and event["rows"] > 4:
            os.kill(lab.events[0]["pid"], signal.SIGKILL)

    setup = "experiment.dummy_batch(rows)\nwhile rows > 4: pass"
    result = lab.result(candidate(setup=setup), on_event=kill)
    assert (result.status, result.max_rows) == ("ok", 4)


# ---------------------------------------------------------------------------------------------------------------------
# The log


def test_a_flood_of_output_is_invalid(lab, candidate, monkeypatch):
    monkeypatch.setattr(executor, "LOG_BYTES", 2**20)
    flood = "while True: print('x' * 1000)"
    result = lab.fails(candidate(step=flood), "invalid", "^more than 1 MB were printed$", train_seconds=60)
    assert len(result.log_tail.encode()) <= TAIL_BYTES
    # The limit is that of one measurement, though all of an experiment write to one log.
    assert lab.log.stat().st_size > 2**20
    assert lab.result(candidate()).status == "ok"


def test_output_goes_to_the_log_and_its_end_is_shown(lab, candidate):
    chatter = "import sys\nprint('\\x1b[1mbold\\x1b[0m \\x07', 'größer' * 900)\nprint('to stderr', file=sys.stderr)"
    result = lab.fails(candidate(step=chatter, end="1 / 0"), "crash", "^ZeroDivisionError: division by zero")
    assert len(result.log_tail.encode()) <= TAIL_BYTES
    assert "\x1b" not in result.log_tail
    assert "ZeroDivisionError: division by zero" in result.log_tail
    assert "to stderr" in result.log_tail
    assert lab.log.stat().st_size > 20 * 900


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"", ""),
        (b"plain\ttext\n", "plain\ttext\n"),
        (b"\x1b[31;1mred\x1b[0m \x1b[2K\rdone\x00\x07\x7f", "red done"),
        (b"\x1b]0;title\x07after \x1b]8;;http://x\x1b\\link", "after link"),
        ("c1 \x9b31m".encode(), "c1 31m"),
        (b"bad \xff byte", "bad \ufffd byte"),
        ("kept \u202ekcab\u2069".encode(), "kept kcab"),
    ],
)
def test_the_tail_of_a_log(tmp_path, raw, shown):
    path = tmp_path / "log"
    path.write_bytes(raw)
    assert log_tail(path) == shown
    assert one_line(raw.decode("utf-8", "replace")) == " ".join(shown.split())


@pytest.mark.parametrize("character", ["é", "東", "\U0001f389"])
@pytest.mark.parametrize("shift", range(4))
def test_the_tail_is_cut_between_characters(tmp_path, character, shift):
    path = tmp_path / "log"
    path.write_text("x" * shift + character * 5000 + "end")
    tail = log_tail(path)
    assert len(tail.encode()) <= TAIL_BYTES
    assert tail.endswith(character * 900 + "end")
    assert len(tail.encode()) > TAIL_BYTES - 12


def test_no_log_has_no_tail(tmp_path):
    assert log_tail(tmp_path / "none") == ""


def test_memory_of_the_machine():
    assert 2**28 < memory_bytes() < 2**50
