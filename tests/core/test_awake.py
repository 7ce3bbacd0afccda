"""Sleep is inhibited while a search runs, and seen where it happened."""

import sys
import time

import psutil
import pytest

from autoresearch.core import awake

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
    monkeypatch.setattr("autoresearch.core.executor.slept_seconds", lambda: next(asleep))
    assert lab.measure(candidate()).result.suspect == "the machine slept for 42 s"


def test_a_measurement_on_a_waking_machine_is_not(lab, candidate):
    assert lab.measure(candidate()).result.suspect == ""
