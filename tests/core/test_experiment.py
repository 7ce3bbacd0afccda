"""What a train.py is handed: the stream, the steps in flight, and the rules of the loop."""

import math

import numpy as np
import pytest

from autoresearch.backends.null import device as null
from autoresearch.core import clock as clock_module
from autoresearch.core.errors import CandidateFailure, DataError
from autoresearch.core.experiment import CURVE_POINTS, ExperimentRun, public
from autoresearch.core.task import Task

V, T = 512, 8
ROWS = np.random.default_rng(0).integers(0, V, (50, T + 1)).astype(np.uint16)


class LazyLoss:
    """A scalar on a device: `computed` tells whether somebody has waited for it."""

    def __init__(self, value=1.0):
        self.value = value
        self.computed = False

    def __float__(self):
        self.computed = True
        return self.value


def make_run(steps=5, seed=1, max_rows=64, rows=ROWS, emit=None, seconds=1e6):
    task = Task(data="stories", seq_len=T, vocab_size=V, train_seconds=seconds, train_steps=steps)
    device = null.describe()
    return ExperimentRun(null, device, task, V, rows, seed, max_rows, *([emit] if emit else []))


def drive(run, rows=4, accumulation=1, loss=lambda step: 1.0):
    """A plain training loop; everything it was given."""
    batches = []
    for step, batch in enumerate(run.batches(rows, accumulation)):
        batches.append(batch)
        run.log(loss(step))
    run.finish(None)
    return batches


def stream(run, rows, accumulation):
    """Inputs and targets of the whole run as rows, (n, T) each."""
    batches = drive(run, rows, accumulation)
    return [np.concatenate([side.reshape(-1, T) for side in sides]) for sides in zip(*batches, strict=True)]


def failure(run, action):
    """The failure that `action` raises, which `finish` must raise again."""
    with pytest.raises(CandidateFailure) as raised:
        action()
    with pytest.raises(CandidateFailure) as again:
        run.finish(None)
    assert again.value is raised.value
    return raised.value


# ---------------------------------------------------------------------------------------------------------------------
# Data


def test_targets_are_the_inputs_one_token_later():
    for inputs, targets in drive(make_run(), rows=3, accumulation=2):
        assert inputs.shape == targets.shape == (2, 3, T)
        assert inputs.dtype == targets.dtype == np.int32
        np.testing.assert_array_equal(inputs[..., 1:], targets[..., :-1])


@pytest.mark.parametrize(
    ("rows", "accumulation", "steps"), [(1, 12, 10), (12, 1, 10), (4, 3, 10), (2, 3, 20), (8, 5, 3)]
)
def test_the_stream_is_the_same_whatever_the_batch_shape(rows, accumulation, steps):
    inputs, targets = stream(make_run(steps=steps), rows, accumulation)
    expected = stream(make_run(steps=120), 1, 1)
    np.testing.assert_array_equal(inputs, expected[0])
    np.testing.assert_array_equal(targets, expected[1])


def test_the_seed_alone_orders_the_rows():
    first, again, other = (stream(make_run(steps=25, seed=seed), 2, 1)[0] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    np.testing.assert_array_equal(np.sort(first, axis=0), np.sort(other, axis=0))


def test_dummy_batches_have_the_shape_of_batches_and_leave_the_stream_and_the_clock_alone():
    plain = drive(make_run(), 3, 2)
    run = make_run()
    for _ in range(7):
        for dummy, real in zip(run.dummy_batch(3, 2), plain[0], strict=True):
            assert (dummy.shape, dummy.dtype) == (real.shape, real.dtype)
            assert dummy.min() >= 0
            assert dummy.max() < V
    assert not run.clock.started
    for warm, cold in zip(drive(run, 3, 2), plain, strict=True):
        np.testing.assert_array_equal(warm[0], cold[0])
        np.testing.assert_array_equal(warm[1], cold[1])


@pytest.mark.parametrize(("rows", "accumulation"), [(1, 1), (1, 3), (3, 2)])
def test_batches_lie_in_memory_as_dummy_batches_do(rows, accumulation):
    """A step that was compiled for other strides would be compiled again, on the clock."""
    run = make_run()
    dummy = run.dummy_batch(rows, accumulation)
    assert {array.strides for array in (*dummy, *drive(run, rows, accumulation)[0])} == {dummy[0].strides}


def test_dummy_tokens_are_not_training_data():
    run = make_run()
    known = {row.tobytes() for row in ROWS[:, :-1].astype(np.int32)}
    inputs, targets = run.dummy_batch(64)
    assert not known & {row.tobytes() for row in inputs[0]}
    assert (inputs[..., 1:] != targets[..., :-1]).any(), "they are no sequence either"


def test_no_rows_are_an_error_of_the_data():
    with pytest.raises(DataError, match="no rows"):
        make_run(rows=ROWS[:0])


# ---------------------------------------------------------------------------------------------------------------------
# The loop


def test_at_most_two_steps_are_in_flight():
    run = make_run(steps=6)
    losses = []
    for _ in run.batches(2):
        losses.append(LazyLoss())
        run.log(losses[-1])
        assert [loss.computed for loss in losses] == [True] * (len(losses) - 1) + [False]
    run.finish(None)
    assert all(loss.computed for loss in losses)


def test_in_the_first_steps_and_near_the_end_nothing_is_in_flight(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(clock_module, "_now", lambda: now[0])
    run, losses, pending = make_run(steps=0, seconds=10.0), [], []
    for _ in run.batches(2):
        pending.append(sum(not loss.computed for loss in losses))
        losses.append(LazyLoss())
        run.log(losses[-1])
        now[0] += 1.0
    assert len(losses) == 10
    assert pending == [0, 0, 0, 1, 1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(("value", "name"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_a_loss_that_is_not_finite_is_seen_one_step_late(value, name):
    run = make_run(steps=10)
    steps = 0

    def loop():
        nonlocal steps
        for _ in run.batches(2):
            run.log(value if steps == 3 else 2.0)
            steps += 1

    found = failure(run, loop)
    assert (found.status, found.reason) == ("diverged", f"the training loss is {name} at step 3")
    assert steps == 4


def test_the_last_loss_is_judged_too():
    run = make_run(steps=3)
    with pytest.raises(CandidateFailure, match="nan at step 2") as raised:
        drive(run, loss=lambda step: math.nan if step == 2 else 1.0)
    assert raised.value.status == "diverged"


def test_an_explosion_is_three_times_a_uniform_guess():
    limit = 3 * math.log(V)
    drive(make_run(), loss=lambda step: 0.999 * limit)
    found = failure(run := make_run(), lambda: drive(run, loss=lambda step: 1.001 * limit))
    assert found.status == "diverged"
    assert "above 3 ln V = 18.7" in found.reason


def test_a_failure_counts_where_the_candidate_catches_it_and_the_first_one_is_told():
    run = make_run(steps=6)
    for step, _ in enumerate(run.batches(2)):
        try:
            run.log(math.nan if step == 3 else 1.0)
        except CandidateFailure:
            pass
    with pytest.raises(CandidateFailure):
        run.batches(2)
    with pytest.raises(CandidateFailure, match="nan at step 3"):
        run.check()
    with pytest.raises(CandidateFailure, match="nan at step 3"):
        run.finish(None)


def draw_without_log(run):
    iterator = run.batches(1)
    next(iterator)
    next(iterator)


def log_twice(run):
    for _ in run.batches(1):
        run.log(1.0)
        run.log(1.0)


def log_after_the_end(run):
    drive(run)
    run.log(1.0)


def batches_twice(run):
    next(run.batches(1))
    run.batches(1)


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (draw_without_log, "before experiment.log was called for the last one"),
        (log_twice, "experiment.log was called without a new batch"),
        (lambda run: run.log(1.0), "experiment.log was called without a new batch"),
        (log_after_the_end, "experiment.log was called without a new batch"),
        (batches_twice, "experiment.batches was called twice"),
        (lambda run: run.batches(65), "65 rows asked for, experiment.max_rows is 64"),
        (lambda run: run.dummy_batch(65), "65 rows asked for, experiment.max_rows is 64"),
        (lambda run: run.batches(0), "must be positive integers, received 0 and 1"),
        (lambda run: run.batches(2, 0), "must be positive integers, received 2 and 0"),
        (lambda run: run.batches(2.0), "must be positive integers, received 2.0 and 1"),
        (lambda run: run.dummy_batch(-1), "must be positive integers, received -1 and 1"),
        (lambda run: run.report(depth=math.nan), "received 'depth' = nan"),
        (lambda run: run.report(note="x" * 201), "short printable texts"),
        (lambda run: run.report(note="\x1b[31m"), "short printable texts"),
        (lambda run: run.report(**{"a\nb": 1}), "short names"),
        (lambda run: run.report(huge=10**400), "finite numbers"),
        (lambda run: run.report(shape=[1]), r"received 'shape' = \[1\]"),
        (lambda run: run.report(**{f"a{n}": n for n in range(51)}), "at most 50"),
    ],
)
def test_broken_rules_are_invalid(action, reason):
    found = failure(run := make_run(), lambda: action(run))
    assert found.status == "invalid"
    with pytest.raises(CandidateFailure, match=reason):
        run.check()


def test_training_without_a_batch_is_invalid():
    with pytest.raises(CandidateFailure, match="without drawing a batch") as raised:
        make_run().finish(None)
    assert raised.value.status == "invalid"


def test_an_overrun_budget_is_invalid(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(clock_module, "_now", lambda: now[0])

    def train(tail):
        now[0] = 0.0
        run = make_run(steps=0, seconds=10.0)
        for _ in run.batches(2):
            run.log(1.0)
            now[0] += 1.0
        now[0] += tail
        run.finish(None)

    train(0.9)
    with pytest.raises(CandidateFailure, match=r"training took 12 s, 1 s beyond the budget") as raised:
        train(2.0)
    assert raised.value.status == "invalid"


def test_the_parameters_are_waited_for_before_the_clock_stops(monkeypatch):
    run = make_run()
    waited = []
    monkeypatch.setattr(null, "wait", lambda value: waited.append((value, run.clock._end)))
    for _ in run.batches(2):
        run.log(1.0)
    run.finish("params")
    assert waited == [("params", None)]


def test_progress_and_curve():
    run, seen = make_run(steps=1000), []
    for _ in run.batches(1):
        seen.append(run.progress)
        run.log(2.0 - run.progress)
    run.finish(None)
    assert seen == [step / 1000 for step in range(1000)]
    curve = run.curve()
    assert len(curve) == CURVE_POINTS
    assert curve == tuple(sorted(curve))
    assert curve[-1] == (0.999, 1.001)
    assert run.tokens == 1000 * T


def test_what_the_parent_is_told():
    events = []
    run = make_run(steps=3, emit=lambda event, **data: events.append((event, data)))
    run.dummy_batch(4, 2)
    assert events == [("rows", {"rows": 4})]
    drive(run, 8)
    assert [event for event, _ in events] == ["rows", "rows", "clock_start", "progress"]
    assert events[1][1] == {"rows": 8}
    assert events[3][1]["loss"] == 1.0


# ---------------------------------------------------------------------------------------------------------------------
# The public side


def test_the_candidate_sees_the_contract_alone():
    run = make_run()
    experiment = public(run)
    names = {name for name in dir(experiment) if not name.startswith("_")}
    assert names == {
        "vocab_size", "seq_len", "seed", "device", "max_rows", "progress", "dummy_batch", "batches", "log", "report",
    }  # fmt: skip
    assert not [name for name in dir(experiment) if name.startswith("_") and not name.endswith("__")]
    assert (experiment.vocab_size, experiment.seq_len, experiment.seed, experiment.max_rows) == (V, T, 1, 64)
    assert experiment.device == run.device
    assert experiment.device is not run.device


@pytest.mark.parametrize("name", ["max_rows", "seed", "progress", "log", "_clock", "anything"])
def test_it_can_not_be_changed(name):
    with pytest.raises(AttributeError):
        setattr(public(make_run()), name, 10**9)


def test_it_does_what_the_run_does():
    run = make_run(steps=4)
    experiment = public(run)
    experiment.dummy_batch(2)
    progress = []
    for inputs, _ in experiment.batches(2, 3):
        assert inputs.shape == (3, 2, T)
        progress.append(experiment.progress)
        experiment.log(1.5)
    experiment.report(depth=3, kind="bigram")
    run.finish(None)
    assert progress == [0.0, 0.25, 0.5, 0.75]
    assert run.facts == {"depth": 3, "kind": "bigram"}
    assert [loss for _, loss in run.losses] == [1.5] * 4
