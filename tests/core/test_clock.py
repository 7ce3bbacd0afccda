"""The budget: which step still fits, what counts as overrun, and progress."""

import pytest

from autoresearch.core import clock as clock_module
from autoresearch.core.clock import DRIFT_SECONDS, DRIFT_STEPS, LATENCY_SECONDS, TOLERANCE, Clock


class Time:
    """A clock that only moves when told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def time(monkeypatch):
    time = Time()
    monkeypatch.setattr(clock_module, "_now", time)
    return time


def train(clock, time, durations):
    """Draw and take steps of these durations until the clock ends; progress at every draw."""
    seen = []
    for duration in durations:
        if not clock.draw():
            break
        seen.append(clock.progress)
        time.now += duration
    return seen


def test_it_stands_still_before_the_first_draw(time):
    clock = Clock(10.0)
    time.now = 1000.0
    assert not clock.started
    assert (clock.elapsed, clock.progress, clock.step_seconds) == (0.0, 0.0, 0.0)
    clock.draw()
    time.now = 1003.0
    assert clock.started
    assert clock.elapsed == 3.0


@pytest.mark.parametrize(
    ("seconds", "step", "steps"), [(10.0, 1.0, 10), (10.0, 3.0, 3), (10.0, 4.9, 2), (10.0, 5.1, 1)]
)
def test_it_ends_before_a_step_that_would_not_fit(time, seconds, step, steps):
    clock = Clock(seconds)
    train(clock, time, [step] * 100)
    clock.stop()
    assert clock.steps == steps
    assert clock.elapsed <= seconds
    assert clock.overshoot() == 0.0
    assert not clock.draw()


def test_one_slow_step_does_not_change_the_estimate(time):
    clock = Clock(100.0)
    train(clock, time, [1.0, 1.0, 30.0, 1.0, 1.0])
    clock.draw()
    assert clock.step_seconds == 1.0
    assert clock.steps == 6


def test_progress_is_the_share_of_the_budget_and_never_falls(time):
    clock = Clock(10.0)
    seen = train(clock, time, [0.5, 2.0, 0.1, 1.0] * 10)
    assert seen[:3] == [0.0, 0.05, 0.25]
    assert seen == sorted(seen)
    assert 0.7 < seen[-1] <= 1.0


def test_steps_mode_counts_steps(time):
    clock = Clock(1e9, steps=4)
    assert train(clock, time, [1.0, 50.0, 1.0, 1.0, 1.0]) == [0.0, 0.25, 0.5, 0.75]
    assert clock.steps == 4
    assert clock.progress == 1.0


def test_seconds_limit_steps_mode_too(time):
    clock = Clock(10.0, steps=1000)
    train(clock, time, [3.0] * 1000)
    assert clock.steps == 3


def overshoot(time, seconds, durations):
    """Of a training whose steps take these durations."""
    clock = Clock(seconds)
    for duration in durations:
        assert clock.draw()
        time.now += duration
    clock.draw()
    clock.stop()
    time.now += 1000.0  # scoring is not training
    return clock.overshoot()


def test_tolerance_is_two_percent(time):
    assert overshoot(time, 100.0, [1.0] * 10 + [91.9]) == 0.0
    assert overshoot(time, 100.0, [0.1] * 100 + [92.1]) == pytest.approx(0.1)


def test_tolerance_is_two_median_steps_where_these_are_more(time):
    assert overshoot(time, 100.0, [4.0] * 24 + [11.9]) == 0.0
    assert overshoot(time, 100.0, [4.0] * 24 + [12.1]) == pytest.approx(0.1)


def test_tolerance_is_never_more_than_a_tenth(time):
    assert TOLERANCE == 0.1
    assert overshoot(time, 100.0, [30.0, 30.0, 30.0 + 19.9]) == 0.0
    assert overshoot(time, 100.0, [30.0, 30.0, 30.0 + 20.1]) == pytest.approx(0.1)


def test_one_giant_step_does_not_excuse_itself(time):
    assert overshoot(time, 100.0, [500.0]) == pytest.approx(398.0)
    assert overshoot(time, 100.0, [45.0, 160.0]) == pytest.approx(95.0)


def test_a_wait_of_the_machine_is_not_held_against_a_short_budget(time):
    assert overshoot(time, 0.2, [0.02] * 9 + [0.02 + LATENCY_SECONDS]) == 0.0
    assert overshoot(time, 0.2, [0.02] * 9 + [0.1 + LATENCY_SECONDS]) == pytest.approx(0.08)


def test_the_end_is_near_within_four_steps(time):
    clock = Clock(10.0)
    near = []
    for _ in range(10):
        near.append(clock.near_end())
        clock.draw()
        time.now += 1.0
    assert near == [False] * 7 + [True] * 3


def drift(time, durations):
    """Of a training whose steps take these durations."""
    clock = Clock(1e6)
    train(clock, time, durations)
    clock.draw()
    return clock.drift()


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ([0.5] * 60, 1.0),
        ([0.5] * 40 + [0.8] * 20, 1.6),
        ([0.5] * 20 + [0.8] * 40, 1.6),
        ([0.5] * 20 + [0.8] * 20 + [0.5] * 20, 1.6),
        ([0.8] * 20 + [0.5] * 40, 0.625),
        ([0.5] * 45 + [0.8] * 15, 1.6),
        ([0.5] * 54 + [5.0] * 6, 1.0),
        ([9.0] + [0.5] * 59, 1.0),
        ([0.5, 0.5, 0.5, 4.0] * 15, 1.0),
    ],
    ids=[
        "even",
        "late",
        "from the middle",
        "middle",
        "early",
        "most of a third",
        "less of it",
        "first",
        "now and then",
    ],
)
def test_drift_is_a_later_third_of_the_steps_against_the_first(time, durations, expected):
    assert drift(time, durations) == pytest.approx(expected)


def test_few_or_short_steps_say_nothing_of_a_drift(time):
    slower = [0.5] * 10 + [1.0] * 20
    assert len(slower) == DRIFT_STEPS
    assert drift(time, slower) == pytest.approx(2.0)
    assert drift(time, slower[1:]) is None
    assert drift(time, [0.1 * duration for duration in slower]) is None, f"less than {DRIFT_SECONDS} s"
    assert Clock(1.0).drift() is None


def test_a_patched_time_module_changes_nothing(monkeypatch):
    import time

    clock = Clock(10.0)
    clock.draw()
    monkeypatch.setattr(time, "monotonic", lambda: -1e6)
    monkeypatch.setattr(time, "perf_counter", lambda: -1e6)
    clock.stop()
    assert 0.0 <= clock.elapsed < 5.0
