"""Sleep is inhibited while a search runs; sleep and pauses are seen where they happened.

Pauses are real ones, of real processes, by SIGSTOP.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from autoresearch.core import awake
from autoresearch.core.process import ChildProcess

HOLD = (sys.executable, "-c", "import sys; sys.stdin.read()", "held-awake-by-a-test")


def holders():
    return [p for p in psutil.Process().children() if "held-awake-by-a-test" in p.cmdline()]


def test_the_command_runs_as_long_as_the_block():
    with awake.kept_awake(HOLD):
        assert len(holders()) == 1
    assert holders() == []


def test_it_ends_with_an_error_in_the_block_too():
    with pytest.raises(RuntimeError), awake.kept_awake(HOLD):
        raise RuntimeError
    assert holders() == []


@pytest.mark.parametrize("command", [(), ("/no/such/command",), (sys.executable, "-c", "raise SystemExit(1)")])
def test_a_command_that_can_t_be_held_stops_nothing(command):
    with awake.kept_awake(command):
        done = True
    assert done


@pytest.mark.parametrize(
    ("platform", "tools", "first"),
    [
        ("darwin", {"caffeinate"}, "caffeinate"),
        ("linux", {"systemd-inhibit"}, "systemd-inhibit"),
        ("linux", set(), None),
    ],
)
def test_the_inhibitor_of_each_system(platform, tools, first, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(awake.shutil, "which", lambda name: name if name in tools else None)
    monkeypatch.setattr(awake.Path, "is_dir", lambda path: True)
    command = awake.inhibitor()
    assert (command[0] if command else None) == first


@pytest.mark.skipif(sys.platform != "linux", reason="fakes the clocks of Linux")
def test_sleep_is_what_one_clock_counts_and_the_other_does_not(monkeypatch):
    clocks = {time.CLOCK_BOOTTIME: 1000.0, time.CLOCK_MONOTONIC: 900.0}
    monkeypatch.setattr(awake.time, "clock_gettime", clocks.__getitem__)
    before = awake.slept_seconds()
    clocks[time.CLOCK_BOOTTIME] += 30.0
    clocks[time.CLOCK_MONOTONIC] += 10.0
    assert awake.slept_seconds() - before == pytest.approx(20.0)


def test_a_waking_machine_does_not_sleep():
    before = awake.slept_seconds()
    time.sleep(0.05)
    assert awake.slept_seconds() - before == pytest.approx(0.0, abs=0.02)


def test_a_measurement_that_the_machine_slept_through_is_suspect(lab, candidate, monkeypatch):
    asleep = iter((0.0, 42.0))
    monkeypatch.setattr("autoresearch.core.awake.slept_seconds", lambda: next(asleep))
    assert lab.measure(candidate()).result.suspect == "the machine slept for 42.0 s"


def test_a_measurement_on_a_waking_machine_is_not(lab, candidate):
    assert lab.measure(candidate()).result.suspect == ""


# ---------------------------------------------------------------------------------------------------------------------
# Pauses


@pytest.fixture
def clock(monkeypatch):
    """The clock of `awake`, which moves when told to; the machine never sleeps."""
    now = [100.0]
    monkeypatch.setattr(awake, "_now", lambda: now[0])
    monkeypatch.setattr(awake, "slept_seconds", lambda: 7.0)
    return now


def test_turns_that_come_in_time_are_no_pause(clock):
    seen = awake.Interruptions()
    for late in (0.0, 0.1, awake.PAUSE_SECONDS, 0.0):
        seen.turn(0.25)
        clock[0] += 0.25 + late
    seen.turn(0.25)
    assert str(seen) == ""


def test_a_late_turn_is_one_and_pauses_add_up(clock):
    seen = awake.Interruptions()
    for late in (3.0, 0.0, 2.0):
        seen.turn(0.25)
        clock[0] += 0.25 + late
    seen.turn(0.25)
    assert str(seen) == "the search was paused for 5.0 s"


def test_the_time_between_two_looks_counts_where_the_child_is_stopped(clock):
    seen = awake.Interruptions()
    for stopped in (False, True, True, False, True):
        clock[0] += 0.5
        seen.look(stopped)
    assert str(seen) == "the training process was stopped for 1.5 s"


FLAG = """
import os
while not os.path.exists({flag!r}):
    pass
"""


@pytest.fixture
def halted(monkeypatch):
    """An `on_event` that stops the child when its clock starts, until the parent has looked at it some times."""
    really = ChildProcess.stopped

    def build(looks, then=lambda: None, blind=False):
        seen = []

        def stopped(child):
            seen.append(really(child))
            if seen.count(True) == looks:
                child.process.send_signal(signal.SIGCONT)
                then()
            return seen[-1] and not blind

        pids = []

        def on_event(event):
            if event["event"] == "started":
                pids.append(event["pid"])
            if event["event"] == "clock_start":
                os.kill(pids[0], signal.SIGSTOP)

        monkeypatch.setattr(ChildProcess, "stopped", stopped)
        return on_event

    return build


def test_a_child_that_was_stopped_is_suspect_with_a_good_score_too(lab, candidate, tmp_path, halted):
    flag = tmp_path / "flag"
    result = lab.result(candidate(step=FLAG.format(flag=str(flag))), on_event=halted(2, flag.touch))
    assert result.status == "ok"
    assert result.suspect.startswith("the training process was stopped for ")


@pytest.mark.parametrize("blind", [False, True])
def test_a_stop_is_the_machine_s_and_unseen_the_candidate_s_fault(lab, candidate, halted, blind):
    """Planted fault: blind to the stop, the candidate alone is blamed for the time that passed."""
    source = candidate(step="import time; time.sleep(0.01)")
    budget = {"train_seconds": 0.5, "train_steps": 0}
    result = lab.fails(
        source, "invalid", "^training took|^the child counted", **budget, on_event=halted(12, blind=blind)
    )
    assert result.suspect.startswith("the training process was stopped for ") != blind


def test_a_search_that_was_paused_is_suspect(candidate, dataset, tmp_path):
    """The parent is stopped while its child trains on: it sees the end of the training too late."""
    flag, source = tmp_path / "flag", tmp_path / "train.py"
    source.write_text(candidate(step=FLAG.format(flag=str(flag))))
    parent_py = Path(__file__).parents[1] / "candidates/parent.py"
    command = [sys.executable, parent_py, source, dataset.path, "mark", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline().strip().isdigit(), "the child trains"
        parent.send_signal(signal.SIGSTOP)
        flag.touch()
        time.sleep(1.5)
        parent.send_signal(signal.SIGCONT)
        result = json.loads(parent.stdout.readline())
    assert result["suspect"].startswith("the search was paused for "), result
    assert result["status"] == "invalid"
    assert result["reason"].startswith("the child counted"), result
