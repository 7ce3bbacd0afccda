"""A machine that changed is told from a candidate that did: by recorded numbers, and in real measurements.

How busy the machine is that runs the tests must not matter, so its slowness is planted in a backend's probe.
"""

from dataclasses import replace

import pytest

from autoresearch.core import suspect
from autoresearch.core.contract import Result
from autoresearch.core.suspect import LASTING, suspicion

# FLOP/s of half-second probes, before and after training, of the reference model on two cores.
QUIET = [(9.66, 9.52), (9.70, 9.61), (9.87, 9.58), (9.58, 9.66), (9.91, 9.49)]
HOG = 4.97
"""With one busy process beside it."""


def measured(before=9.7, after=9.6, drift=1.02, source="a", seen=""):
    rates = {"probe_before": before and before * 1e11, "probe_after": after and after * 1e11}
    return Result("ok", suspect=seen, val_bpb=1.0, source_hash=source, step_drift=drift, **rates)


def judged(results, earlier=()):
    """The results one after the other, each with the verdict that it gets."""
    journal = list(earlier)
    for result in results:
        journal.append(replace(result, suspect=suspicion(result, journal)))
    return journal[len(earlier) :]


CLEAN = judged(measured(*rates, source=f"s{n}") for n, rates in enumerate(QUIET))


def test_a_quiet_machine_gives_no_alarm():
    assert [result.suspect for result in CLEAN] == [""] * len(QUIET)


@pytest.mark.parametrize("known", range(len(QUIET) + 1), ids="{} earlier".format)
@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (measured(9.7, HOG), "after training the device ran at 497 GFLOP/s, usual are 9|at 0.51 times its rate"),
        (measured(HOG, 9.6), "before training the device ran at 497 GFLOP/s|at 1.93 times its rate"),
        (measured(HOG, HOG, 1.6), "before training the device|steps took 1.60 times as long"),
        (measured(9.66, 5.05, 1.96), "after training the device ran at 505 GFLOP/s|at 0.52 times its rate"),
        (measured(9.65, 4.19, 0.995), "after training the device ran at 419 GFLOP/s|at 0.43 times its rate"),
        (measured(drift=1.6), "^steps took 1.60 times as long later in the training as in its first third$"),
        (measured(drift=0.62), "^steps took 0.62 times as long"),
    ],
    ids=["started", "ended", "present", "from the middle on", "in the last steps", "drift", "drift down"],
)
def test_a_hog_is_seen_however_little_is_known(result, reason, known):
    found = suspicion(result, CLEAN[:known])
    assert any(part in found for part in reason.strip("^$").split("|")), found


def test_a_hog_that_was_there_throughout_is_seen_once_the_machine_is_known():
    present = measured(HOG, HOG)
    assert suspicion(present, []) == ""
    assert "before training the device ran at" in suspicion(present, CLEAN[:1])


def test_a_hog_that_stays_through_the_repetition_of_the_first_measurement_is_seen_by_the_first_probe():
    journal = judged([measured(9.7, HOG), measured(HOG, HOG)])
    assert all(result.suspect for result in journal)
    assert suspicion(measured(), journal) == ""
    assert suspicion(measured(), judged([measured(HOG, 9.6)])) == "", "it ended: what is fast is at rest"


def test_each_number_has_its_bound():
    """Planted faults: with a wider bound the same numbers pass."""
    assert suspicion(measured(9.7 * 0.87), CLEAN) == suspicion(measured(after=9.6 * 1.13), CLEAN) == ""
    assert suspicion(measured(drift=1.24), CLEAN) == suspicion(measured(drift=0.76), CLEAN) == ""
    for name, value, result in [
        ("NARROWEST", 0.25, measured(9.7 * 0.83)),
        ("NARROWEST", 0.25, measured(after=9.6 * 1.17)),
        ("DRIFT", 0.4, measured(drift=1.27)),
        ("DRIFT", 0.4, measured(drift=0.73)),
    ]:
        assert suspicion(result, CLEAN) != ""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(suspect, name, value)
            assert suspicion(result, CLEAN) == ""


def test_the_band_is_as_wide_as_the_machine_is_unsteady_within_limits():
    unsteady = [measured(rate, rate, source=f"s{rate}") for rate in (8.0, 9.0, 9.5, 10.0, 11.0, 12.0)]
    assert suspicion(measured(7.2, 7.2), unsteady) == ""
    assert suspicion(measured(7.2, 7.2), CLEAN) != ""
    assert suspicion(measured(HOG, HOG), unsteady) != ""


def test_what_a_candidate_does_to_itself_is_not_the_machine_s_doing():
    """A setting that slows the device, a schedule that makes later steps dearer: seen, repeated, and then believed."""
    for own in (measured(after=6.0, source="x"), measured(drift=1.9, source="x")):
        first, again = judged([own, own], CLEAN)
        assert first.suspect != ""
        assert again.suspect == ""
        assert suspicion(replace(own, source_hash="y"), [*CLEAN, first]) != ""
    hog_twice = measured(HOG, HOG, source="x")
    assert all(result.suspect for result in judged([measured(9.7, HOG, source="x"), hog_twice], CLEAN))


def test_a_suspect_measurement_is_no_part_of_the_band():
    busy = judged([measured(HOG, HOG)] * (LASTING - 1), CLEAN)
    assert all(result.suspect for result in busy)
    assert suspicion(measured(), [*CLEAN, *busy]) == ""
    assert suspicion(measured(HOG, HOG), [*CLEAN, *busy]) != ""


def test_a_machine_that_changed_for_good_becomes_the_usual_one():
    slower = judged([measured(HOG, HOG, source=f"t{n}") for n in range(LASTING + 4)], CLEAN)
    assert [bool(result.suspect) for result in slower] == [True] * LASTING + [False] * 4
    assert "before training" in suspicion(measured(), [*CLEAN, *slower]), "and the former one is strange"


def test_measurements_without_probes_say_nothing():
    nothing = measured(None, None, None)
    assert suspicion(nothing, CLEAN) == suspicion(nothing, [nothing] * 5) == suspicion(measured(), [nothing] * 5) == ""
    assert suspicion(Result("crash", "ValueError"), CLEAN) == ""


def test_what_the_executor_saw_is_passed_on():
    assert suspicion(measured(seen="the machine slept for 42.0 s"), CLEAN) == "the machine slept for 42.0 s"
    failed = Result("timeout", suspect="the search was paused for 9.0 s")
    assert suspicion(failed, CLEAN) == failed.suspect
    both = suspicion(measured(drift=2.0, seen="the machine slept for 42.0 s"), CLEAN)
    assert both.startswith("the machine slept for 42.0 s; steps took 2.00 times")


# ---------------------------------------------------------------------------------------------------------------------
# Real measurements, on a machine that is busy where a file lies


BUSY = """
import os
from autoresearch.backends.null.device import *
from autoresearch.core import clock
clock.DRIFT_SECONDS = 0.05
def probe(device, seconds):
    return 1e9 / (2 if os.path.exists({flag!r}) else 1)
"""
WAIT = """
import os
while not os.path.exists({flag!r}):
    pass
"""


@pytest.fixture
def busy(lab, plug_in, device, tmp_path):
    """The file; measurements run on that machine."""
    flag = tmp_path / "busy"
    plug_in(BUSY.format(flag=str(flag)))
    lab._device = replace(device, backend="broken")
    return flag


def test_a_hog_that_starts_during_one_measurement_makes_it_suspect_and_not_the_others(lab, candidate, busy):
    def hog(event):
        if event["event"] == "clock_start":
            busy.touch()

    journal = judged(lab.result(candidate(), probe=0.01, seed=seed) for seed in range(2))
    assert [(result.status, result.suspect) for result in journal] == [("ok", "")] * 2
    hit = lab.result(candidate(step=WAIT.format(flag=str(busy))), probe=0.01, on_event=hog)
    assert (hit.status, hit.probe_before, hit.probe_after) == ("ok", 1e9, 5e8)
    assert suspicion(hit, journal).startswith(
        "after training the device ran at 0.5 GFLOP/s, usual are 1 GFLOP/s within"
    )
    assert suspicion(replace(hit, probe_after=None), journal) == "", "planted fault: one probe alone"
    again = lab.result(candidate(), probe=0.01)
    assert suspicion(again, journal).startswith("before training the device ran at 0.5 GFLOP/s"), "it is still there"
    busy.unlink()
    assert suspicion(lab.result(candidate(), probe=0.01), journal) == ""


def test_steps_that_become_slower_are_seen(lab, candidate, busy):
    slower = "import time; time.sleep(0.02 if experiment.progress > 0.6 else 0.001)"
    result = lab.result(candidate(step=slower), probe=0.01, train_steps=36)
    assert result.step_drift > 2.0
    assert suspicion(result, []).startswith("steps took ")


def test_without_time_for_probes_there_are_none(lab, candidate):
    result = lab.result(candidate())
    assert (result.probe_before, result.probe_after, result.step_drift) == (None, None, None)


def test_the_probes_of_the_null_backend_are_real(lab, candidate):
    result = lab.result(candidate(), probe=0.05)
    assert result.status == "ok"
    assert min(result.probe_before, result.probe_after) > 1e6
    assert result.train_seconds < 20


def test_memory_that_is_too_little_for_the_probe_is_not_the_candidate_s_end(lab, candidate, plug_in, device):
    plug_in(
        "from autoresearch.backends.null.device import *\ndef probe(device, seconds): raise MemoryError('no room')\n"
    )
    lab._device = replace(device, backend="broken")
    result = lab.result(candidate(), probe=0.01)
    assert (result.status, result.probe_before, result.probe_after) == ("ok", None, None)
