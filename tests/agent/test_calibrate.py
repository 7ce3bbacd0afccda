"""Calibration with invented scores: the spread, its two sources, and what later runs know of it."""

import json
import math
import random
import statistics
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from autoresearch.agent import calibrate as calibration
from autoresearch.agent.lab import Run
from autoresearch.agent.loop import search
from autoresearch.core import noise, spreads
from autoresearch.core.errors import AutoresearchError, DataError
from autoresearch.core.interval import chi_square_quantile, spread_limits
from autoresearch.core.records import Prior
from autoresearch.core.suspect import LASTING

SLOPE = -0.5
STEPS = [1000, 1010, 990, 1030, 970, 1000, 1005]
LUCK = [0.0, 0.004, -0.003, 0.001, -0.002, 0.005, -0.001]


@pytest.fixture
def calibrate(lab_of, machine, listener, place, monkeypatch):
    """Calibrate the run "tag", whose scores follow from the steps reached and from luck."""

    def execute(repeats=6, key="a", **more):
        @contextmanager
        def opened(directory, tag, options, program, view):
            yield lab_of(machine, key, listener, **more).run

        def measure(request, dataset, log, on_event):
            index = len(machine.measured)
            made = machine_measure(request, dataset, log, on_event)
            steps, luck = request.task.train_steps, 0.0
            if not steps:
                steps, luck = STEPS[index % 7], LUCK[index % 7]
            if made.result.val_bpb is None:
                return made
            score = made.result.val_bpb + SLOPE * math.log(steps / 1000) + luck
            return replace(made, result=replace(made.result, steps=steps, val_bpb=score))

        machine_measure = type(machine).measure.__get__(machine)
        monkeypatch.setattr(calibration.start, "open_run", opened)
        executor = SimpleNamespace(measure=measure)
        monkeypatch.setattr(Run, "executor", lambda run: executor)
        return calibration.calibrate(place.directory, "tag", repeats, {}, listener)

    return execute


def events(place) -> list[dict]:
    return [json.loads(line) for line in (place.run_dir("tag") / "journal.jsonl").read_text().splitlines()]


def test_the_spread_and_its_two_sources(calibrate, place):
    found, used = calibrate()
    logs = [math.log(steps / statistics.median(STEPS[1:])) for steps in STEPS[1:]]
    scores = [2.0 + SLOPE * math.log(s / 1000) + luck for s, luck in zip(STEPS[1:], LUCK[1:], strict=True)]
    assert found.repeats == 6
    assert found.spread == pytest.approx(statistics.stdev(scores))
    assert found.slope == pytest.approx(SLOPE)
    assert found.throughput == pytest.approx(0.5 * statistics.stdev(logs))
    assert found.fixed == pytest.approx(statistics.stdev(LUCK[1:]))
    assert (found.low, found.high) == spread_limits(found.spread, 5)
    assert used.measured == 6, "the baseline's first score and six more"
    text = calibration.text(found, used)
    assert f"at fixed tokens (seed, kernels): {found.fixed:.5f}" in text and "through throughput: " in text
    assert json.loads(json.dumps(calibration.document(found, used)))["decides_by"]["measured"] == 6


def test_the_journal_holds_the_measurements_as_the_experiments_own(calibrate, place, lab_of, machine):
    calibrate()
    kinds = [event["event"] for event in events(place)]
    assert kinds.count("measured") == 7, "those with fixed steps are no results of the experiment"
    assert [event["value_n"] for event in events(place) if event["event"] == "anchored"] == [2, 3, 4, 5, 6, 7]
    calibrated = next(event for event in events(place) if event["event"] == "calibrated")
    assert [steps for steps, _ in calibrated["points"]] == [802, 1253]
    baseline = lab_of(machine).history.experiments[0]
    assert (baseline.value_n, len(baseline.results)) == (7, 7)
    assert len({seed for _, seed in machine.measured}) == 8, "both points of the slope have the same seed"
    assert kinds[-1] == "stopped"


def test_a_later_run_with_this_key_starts_from_it(calibrate, place, lab_of, machine):
    found, _ = calibrate()
    known = spreads.stored(place.run_dir("tag").parent)
    assert known == {"a": Prior(pytest.approx(5 * found.spread**2), 5)}
    calibrate()
    assert spreads.stored(place.run_dir("tag").parent)["a"].dof == 10
    assert noise.spread_of(lab_of(machine).history, lab_of(machine).run.settings.rules).measured == 12


def test_a_suspect_measurement_is_made_again(calibrate, machine, place):
    machine.changes = {2: {"suspect": "busy"}}
    found, used = calibrate(3)
    assert (found.repeats, used.measured) == (3, 3)
    assert [event["event"] for event in events(place)].count("measured") == 5


def test_a_repeat_that_is_suspect_too_counts_and_is_told(calibrate, machine, place):
    """A machine whose speed changes by itself, e.g. a shared one, would never be calibrated."""
    machine.changes = {2: {"suspect": "busy"}, 3: {"suspect": "still busy"}, 4: {"suspect": "busy"}}
    found, used = calibrate(3)
    assert (found.repeats, found.suspect) == (3, 1)
    assert [event["event"] for event in events(place)].count("measured") == 6
    assert "1 of them suspect" in calibration.text(found, used)
    assert "suspect" not in calibration.text(replace(found, suspect=0), used)


def test_two_failures_in_a_row_end_it(calibrate, machine, place):
    failed = {"status": "timeout", "val_bpb": None, "reason": "too slow"}
    machine.changes = {2: failed, 3: failed}
    with pytest.raises(AutoresearchError, match="two measurements in a row failed: timeout: too slow"):
        calibrate(3)
    assert events(place)[-1]["reason"] == "calibrating was interrupted"


@pytest.mark.parametrize("cut", range(1, 5))
def test_one_that_was_killed_goes_on_where_it_was(calibrate, machine, place, monkeypatch, cut):
    """`cut` measurements after the baseline's: among the repeats, and between the two points of the slope."""
    measured = type(machine).measure

    def killed(self, *args):
        if len(self.measured) > cut:
            raise KeyboardInterrupt
        return measured(self, *args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(machine), "measure", killed)
        calibrate(3)
    found, used = calibrate(3)
    assert (found.repeats, used.measured) == (3, 3)
    seeds = [seed for _, seed in machine.measured]
    assert len(seeds) == 6 and len(set(seeds)) == 5, "nothing twice; both points of the slope have one seed"
    again, _ = calibrate(3)
    assert again.repeats == 3 and len(machine.measured) == 11, "one that is finished isn't gone on with"


def test_a_keep_that_is_withdrawn_on_the_way(calibrate, machine, place, lab_of, listener, listed):
    machine.changes = {1: {"val_bpb": 1.9}}
    search(lab_of(machine), listed(a=2.1), listener)
    found, _ = calibrate(3)
    assert found.experiment == 0, "the incumbent again"
    assert [event["n"] for event in events(place) if event["event"] == "withdrawn"] == [1]
    assert found.repeats == 3


def test_without_the_slope_the_spread_is_told_all_the_same(calibrate, machine, listener):
    machine.changes = {4: {"status": "timeout", "val_bpb": None, "reason": "too slow"}}
    found, used = calibrate(3)
    assert found.slope is None and found.fixed is None and found.throughput is None
    assert found.spread > 0
    assert "sources of the spread stay unknown: timeout: too slow" in " ".join(listener.notes)
    assert "fixed tokens" not in calibration.text(found, used)


def test_a_damaged_file_of_spreads_says_what_to_do(place):
    folder = place.run_dir("tag").parent
    (folder / spreads.FILE).write_text('{"a": {"square": "x"}}')
    with pytest.raises(DataError, match=r"spread\.json can't be used") as caught:
        spreads.stored(folder)
    assert "delete it" in caught.value.hint


@pytest.mark.parametrize(
    ("p", "dof", "quantile"),
    [
        (0.05, 1, 0.00393214),
        (0.95, 1, 3.84145882),
        (0.05, 5, 1.14547623),
        (0.95, 5, 11.0704977),
        (0.95, 100, 124.342113),
    ],
)
def test_chi_square_quantiles_are_those_of_the_tables(p, dof, quantile):
    assert chi_square_quantile(p, dof) == pytest.approx(quantile, rel=1e-6)


def test_the_interval_of_a_spread_covers_it_as_often_as_it_says():
    rng = random.Random(1)
    limits = [spread_limits(statistics.stdev(rng.gauss(0, 1) for _ in range(6)), 5) for _ in range(2000)]
    covered = sum(low <= 1 <= high for low, high in limits) / 2000
    assert 0.88 < covered < 0.92, "three standard errors"


def test_the_jump_of_a_machine_that_changed_for_good_is_no_spread(calibrate, machine, place):
    machine.score = lambda rate: 2.0 + 0.001 * (len(machine.measured) % 3) + (0.4 if len(machine.measured) > 4 else 0)
    machine.changes = {number: {"suspect": "slower"} for number in range(4, 4 + LASTING)}
    found, _ = calibrate(6)
    assert found.mean > 2.4 and found.spread < 0.05 and found.suspect == 0
