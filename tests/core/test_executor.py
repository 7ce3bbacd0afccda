"""Real measurements in real processes: each way to fail has its verdict, its reason and its limit.

`lab` (tests/conftest.py) asserts after every measurement that no process, scratch directory or descriptor is left.
"""

import json
import os
import re
from dataclasses import asdict, replace

import numpy as np
import pytest

from autoresearch.core import child, executor, registry
from autoresearch.core.contract import DeviceInfo, Result
from autoresearch.core.decide import Incumbent, decide
from autoresearch.core.errors import AutoresearchError, BackendUnavailable, UsageError
from autoresearch.core.executor import LocalExecutor
from autoresearch.core.task import Limits, Rules

FOREVER = "while True:\n    pass"


# ---------------------------------------------------------------------------------------------------------------------
# Measurements that go well


def test_a_measurement(lab, candidate, dataset):
    measured = lab.measure(candidate(end="experiment.report(depth=0, flops_per_token=10)"))
    result = measured.result
    val = np.asarray(dataset.rows("val"))
    assert result.status == "ok"
    assert result.val_tokens == val[:, 1:].size
    assert result.val_bytes == dataset.token_bytes()[val[:, 1:]].sum()
    assert result.steps == 20
    assert result.tokens == 20 * 8 * 64
    assert result.tokens_per_second == pytest.approx(result.tokens / result.train_seconds)
    assert result.num_params == 512 * 512
    assert result.peak_memory_bytes > 10 * 2**20
    assert result.facts == {"depth": 0, "flops_per_token": 10}
    assert result.mfu is None, "the peak of the null backend is unknown"
    assert result.guards == child.GATES
    assert len(result.loss_curve) == 20
    assert (result.seed, result.comparability_key) == (1, "key")
    assert 0 < result.train_seconds + result.setup_seconds + result.eval_seconds <= result.total_seconds
    assert measured.audit.keys() == {"test_bpb", "test_bytes", "test_tokens"}
    assert measured.audit["test_tokens"] == len(val) // 4 * 64
    assert "test" not in json.dumps(asdict(result))
    assert Result.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_the_baseline_of_the_null_backend(lab):
    source = registry.facts("null").BASELINE.read_text()
    short, long = (lab.result(source, train_steps=steps) for steps in (2, 20))
    assert short.status == long.status == "ok"
    assert long.val_bpb < short.val_bpb
    assert long.tokens == 20 * 2048
    assert long.facts == {"depth": 0}


def test_the_seed_decides_the_trace_and_the_batch_shape_does_not(lab, candidate):
    def trace(seed, faults):
        result = lab.result(candidate(**faults), seed=seed)
        return result.val_bpb, result.loss_curve

    halves = {"setup": "rows = 4"}
    warm = {"setup": "for _ in range(3):\n    experiment.dummy_batch(rows, 2)"}
    first = trace(1, {})
    assert first == trace(1, {}) == trace(1, halves) == trace(1, warm)
    assert first != trace(2, {})


def test_a_better_candidate_is_kept_and_a_worse_one_is_not(lab, candidate):
    base = lab.result(candidate()).val_bpb
    incumbent = Incumbent(base, 1, 10)
    better = lab.result(candidate(setup="counts[:] = 0.005")).val_bpb
    worse = lab.result(candidate(end="counts += 5.0")).val_bpb
    rules = Rules(spread=0.001)
    assert decide(incumbent, [better], 10, rules.spread, rules).action == "keep"
    assert decide(incumbent, [worse], 10, rules.spread, rules).action == "discard"


def test_training_ends_within_its_budget(lab, candidate):
    result = lab.result(candidate(), train_steps=0, train_seconds=0.3)
    assert result.status == "ok"
    assert 0.1 < result.train_seconds < 0.3 + 0.25
    progress = [p for p, _ in result.loss_curve]
    assert progress == sorted(progress)
    assert 0.0 <= progress[0] < progress[-1] <= 1.0
    assert [e["event"] for e in lab.events if e["event"] != "progress"] == [
        "started", "rows", "clock_start", "clock_stop",
    ]  # fmt: skip


def test_the_loop_goes_on_after_every_kind_of_failure(lab, candidate, quick):
    before = lab.result(candidate())
    for fault in ("1 / 0", "import os; os._exit(3)", "loss = np.nan", FOREVER):
        assert lab.result(candidate(log=fault), train_seconds=0.2).status != "ok"
    after = lab.result(candidate())
    assert after.val_bpb == before.val_bpb
    assert after.loss_curve == before.loss_curve


# ---------------------------------------------------------------------------------------------------------------------
# Crashes


def test_an_exception(lab, candidate):
    source = candidate(step="hidden = np.ones((3, 4)) @ np.ones((5, 6))")
    line = source.splitlines().index("        hidden = np.ones((3, 4)) @ np.ones((5, 6))") + 1
    result = lab.fails(source, "crash", rf"^ValueError: matmul: .*\(train\.py line {line}\)$")
    assert "Traceback (most recent call last)" in result.log_tail
    assert f'train.py", line {line}, in train' in result.log_tail
    assert "hidden = np.ones((3, 4)) @ np.ones((5, 6))" in result.log_tail
    assert result.setup_seconds > 0


@pytest.mark.parametrize(
    ("faults", "status", "reason"),
    [
        ({"top": "def broken(:"}, "crash", r"^SyntaxError: invalid syntax \(train\.py, line 7\)"),
        ({"top": "import torchvision_is_not_here"}, "crash", r"^ModuleNotFoundError: .*\(train\.py line 7\)$"),
        ({"step": "raise SystemExit"}, "crash", r"^SystemExit:"),
        ({"step": "import sys; sys.exit(0)"}, "crash", r"^SystemExit: 0"),
        ({"step": "import os; os._exit(0)"}, "crash", "exit code 0 before it was scored"),
        ({"step": "import os; os._exit(7)"}, "crash", "exit code 7 before it was scored"),
        ({"step": "import os; os.abort()"}, "crash", r"signal 6 \(Aborted\)"),
        ({"step": "raise KeyboardInterrupt"}, "crash", "^KeyboardInterrupt"),
        ({"step": "def f(): f()\nf()"}, "crash", "^RecursionError: "),
        ({"step": "raise ValueError('\\x1b[31mred\\nsecond line')"}, "crash", r"^ValueError: red \(train\.py"),
        ({"logits": "raise ValueError('not in training')"}, "crash", "^ValueError: not in training"),
        ({"end": "return np.ones(3)"}, "invalid", r"must return contract\.Trained\(logits, params\), received ndarray"),
        ({"end": "return None"}, "invalid", "received NoneType"),
        ({"end": "return (logits, counts)"}, "invalid", "received tuple"),
        ({"end": "return Trained(counts, counts)"}, "invalid", "received Trained"),
        ({"top": "", "end": "return Trained(logits, counts)"}, "crash", "^IndexError: "),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_endings_without_a_score(lab, candidate, faults, status, reason):
    lab.fails(candidate(**faults), status, reason)


def test_no_entry_point(lab):
    lab.fails("x = 1\n", "invalid", r"^train\.py defines no function train\(experiment\)$")
    lab.fails("", "invalid", "defines no function train")


def test_a_segmentation_fault_leaves_its_stack(lab, candidate):
    """NumPy reads through a stride that points nowhere."""
    fault = "np.lib.stride_tricks.as_strided(np.ones(1), (1 << 40,), (1 << 20,)).sum()"
    result = lab.fails(candidate(step=fault), "crash", r"signal 11 \(Segmentation fault\)")
    assert "Fatal Python error: Segmentation fault" in result.log_tail
    assert "in train" in result.log_tail


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("loss = np.nan if experiment.progress > 0.2 else 1.0", "^the training loss is nan at step 5$"),
        ("loss = np.inf", "^the training loss is inf at step 0$"),
        ("loss = 19.0", r"^the training loss is 19\.0 at step 0, above 3 ln V = 18\.7$"),
    ],
)
@pytest.mark.parametrize("caught", [False, True])
def test_a_loss_that_diverges(lab, candidate, step, reason, caught):
    """`log` comes after the place `log`, which replaces the loss; caught, training goes on to its end."""
    fault = step
    if caught:
        fault += "\ntry:\n    experiment.log(loss)\nexcept Exception:\n    pass\ncontinue"
    lab.fails(candidate(log=fault), "diverged", reason)


def test_a_failure_that_the_candidate_turns_into_its_own_keeps_its_type(lab, candidate):
    fault = """
    try:
        experiment.log(np.nan if experiment.progress == 0.0 else 1.0)
    except Exception as error:
        raise RuntimeError from error
    continue
    """
    lab.fails(candidate(log=fault), "diverged", "^the training loss is nan at step 0$")


def test_parameters_that_are_nan_after_a_finite_loss(lab, candidate):
    with_nan = candidate(end="counts[:] = np.nan")
    lab.fails(with_nan, "diverged", "not finite")
    only_one = candidate(end="counts[:, 7] = -1.0")
    lab.fails(only_one, "diverged", "not finite")


# ---------------------------------------------------------------------------------------------------------------------
# Limits of time


STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER


def test_a_hang_in_set_up(lab, candidate):
    for place in ("top", "setup"):
        result = lab.fails(
            candidate(**{place: STUBBORN}), "timeout", "^set-up took more than 2 s$", limits=Limits(setup_seconds=2.0)
        )
        assert result.train_seconds == 0.0
        assert 2.0 <= result.setup_seconds < 20.0
        assert re.search(r'train\.py", line \d+ in ', result.log_tail), "where it hung"


def test_a_hang_in_training(lab, candidate, quick):
    source = candidate(step=STUBBORN)
    result = lab.fails(source, "timeout", "^training took more than 1 s$", train_seconds=0.3)
    assert 0.8 <= result.train_seconds < 10.0
    line = source.splitlines().index("        while True:") + 1
    assert re.search(rf'train\.py", line ({line}|{line + 1}) in train', result.log_tail)


def test_a_hang_in_the_evaluation(lab, candidate):
    result = lab.fails(
        candidate(logits=STUBBORN),
        "timeout",
        "^evaluation took more than 1 s$",
        limits=Limits(eval_seconds=1.0),
    )
    assert "in logits" in result.log_tail


# ---------------------------------------------------------------------------------------------------------------------
# Describe


def test_describe(device):
    assert isinstance(device, DeviceInfo)
    assert (device.backend, device.dtype, device.count) == ("null", "float32", 1)
    assert device.reasons.keys() >= {"dtype", "attention", "compile"}
    assert DeviceInfo(**asdict(device)) == device


def test_a_device_that_is_not_here():
    with pytest.raises(BackendUnavailable, match="no device 'cuda'") as raised:
        LocalExecutor().describe("null", "cuda")
    assert raised.value.hint == "leave --device out"
    assert raised.value.exit_code == 4


def test_a_backend_that_nobody_knows():
    with pytest.raises(UsageError, match="no backend 'nul'") as raised:
        LocalExecutor().describe("nul", "auto")
    assert raised.value.hint == "did you mean 'null'?"


def test_a_framework_that_is_not_installed(plug_in):
    plug_in("import a_framework_that_is_not_here")
    with pytest.raises(BackendUnavailable, match="a_framework_that_is_not_here") as raised:
        LocalExecutor().describe("broken", "auto")
    assert raised.value.hint == "pip install broken-framework"


def test_a_probe_that_crashes_says_so_with_the_end_of_its_output(plug_in):
    plug_in("def describe(device, budget): raise RuntimeError('driver too old')")
    with pytest.raises(AutoresearchError, match="backend 'broken' could not describe this machine") as raised:
        LocalExecutor().describe("broken", "auto")
    assert raised.value.exit_code == 1
    assert raised.value.hint.rstrip().endswith("RuntimeError: driver too old")


def test_a_probe_that_hangs_is_given_up(plug_in, monkeypatch, find_processes):
    monkeypatch.setattr(executor, "DESCRIBE_SECONDS", 1.0)
    plug_in("def describe(device, budget):\n    while True: pass\n")
    with pytest.raises(AutoresearchError, match="could not describe this machine"):
        LocalExecutor().describe("broken", "auto")
    assert not find_processes(lambda p: p.ppid() == os.getpid() and "autoresearch.core.child" in p.cmdline())


def test_damaged_data_is_an_error_of_the_machine_and_not_of_the_candidate(lab, candidate, dataset, tmp_path):
    elsewhere = replace(dataset, path=tmp_path / "gone")
    lab.dataset = elsewhere
    with pytest.raises(AutoresearchError, match="no prepared data at") as raised:
        lab.measure(candidate())
    assert raised.value.exit_code == 5
