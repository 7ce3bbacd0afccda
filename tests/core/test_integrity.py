"""Cheats by what they try, each with the gate that stops it, and with that gate removed, or why it gains nothing.

See also test_trust.py (forgeries, the clock, files), test_measure.py (probes), test_guard.py (events, patches,
threads), test_candidate.py (lint, seeds) and test_sandbox.py (native code).
"""

import shutil

import numpy as np
import pytest

from autoresearch.backends.null import device as null
from autoresearch.core import harness, measure
from autoresearch.core.contract import Result, Trained
from autoresearch.core.errors import CandidateFailure
from autoresearch.core.measure import Evaluator

V, T = 64, 32
RNG = np.random.default_rng(3)
EMBEDDING = RNG.normal(0.0, 1.0, (V, 16)).astype(np.float32)
HEAD = RNG.normal(0.0, 1.0, (16, V)).astype(np.float32)
VAL = RNG.integers(0, V, (24, T + 1)).astype(np.uint16)
BYTES = np.ones(V, np.int32)


def score(logits, check=lambda: None, passed=None):
    trained = Trained(logits, None)
    return Evaluator(null, null.describe(), trained, V, BYTES, 8, None, check, passed).measure(VAL, {}, 1)[0].bpb


# ---------------------------------------------------------------------------------------------------------------------
# Looking ahead, through whatever part of a model


def through_attention(_, tokens):
    """Scores of all pairs, without the mask."""
    x = EMBEDDING[tokens]  # (B, T, C)
    weights = np.exp(x @ x.transpose(0, 2, 1) / 4.0)
    return (weights / weights.sum(-1, keepdims=True)) @ x @ HEAD


def through_rotary_tables(_, tokens):
    """Positions are counted from the last token that differs from its successor: angles tell what comes."""
    ends = (tokens[:, :-1] != tokens[:, 1:]).sum(axis=1)[:, None] + tokens[:, -1:]
    angles = (np.arange(tokens.shape[1]) - ends)[..., None] / 10.0 ** (np.arange(8) / 8.0)  # (B, T, C / 2)
    x1, x2 = np.split(EMBEDDING[tokens], 2, axis=-1)
    turned = np.concatenate([x1 * np.cos(angles) - x2 * np.sin(angles), x1 * np.sin(angles) + x2 * np.cos(angles)], -1)
    return turned.astype(np.float32) @ HEAD


def through_a_convolution(_, tokens):
    """Three taps, centred instead of shifted to the past."""
    x = np.pad(EMBEDDING[tokens], ((0, 0), (1, 1), (0, 0)))
    return (0.5 * x[:, :-2] + x[:, 1:-1] + 0.5 * x[:, 2:]) @ HEAD


def through_normalisation_over_time(_, tokens):
    x = EMBEDDING[tokens]
    return (x - x.mean(axis=1, keepdims=True)) / (x.std(axis=1, keepdims=True) + 0.1) @ HEAD


def through_sorting(_, tokens):
    """Experts take the tokens that want them most, as in expert choice: who is taken depends on who comes later."""
    x = EMBEDDING[tokens]
    taken = np.argsort(np.argsort(-x[..., 0], axis=1), axis=1) < tokens.shape[1] // 2
    return np.where(taken[..., None], 2.0 * x, x) @ HEAD


def through_the_batch_axis(_, tokens):
    """Batch normalisation with the statistics of the batch that is scored."""
    x = EMBEDDING[tokens]
    return (x - x.mean(axis=0)) / (x.std(axis=0) + 0.1) @ HEAD


def through_sorting_of_the_batch(_, tokens):
    """An expert with room for half of the rows at each position: what one row takes, another lacks."""
    x = EMBEDDING[tokens]
    taken = np.argsort(np.argsort(-x[..., 0], axis=0), axis=0) < len(tokens) // 2
    return np.where(taken[..., None], 2.0 * x, x) @ HEAD


def honest(_, tokens):
    return EMBEDDING[tokens] @ HEAD


AHEAD = [
    *(through_attention, through_rotary_tables, through_a_convolution),
    *(through_normalisation_over_time, through_sorting),
]
ACROSS = [through_the_batch_axis, through_sorting_of_the_batch]


@pytest.mark.parametrize("logits", [*AHEAD, *ACROSS], ids=lambda f: f.__name__)
def test_a_look_ahead_is_named_by_its_gate(logits, monkeypatch):
    passed = []
    with pytest.raises(CandidateFailure) as raised:
        score(logits, passed=passed)
    gates = ("isolation",) if logits in ACROSS else ("causality", "isolation")
    assert raised.value.status == "invalid"
    assert raised.value.reason.startswith(gates)
    assert passed == ["shape", "finite", "no memory"], "the gates that had run by then"
    monkeypatch.setattr(Evaluator, "_check_causality", lambda *args: None)
    if logits in ACROSS:
        # It looks at rows of several batches in one, so that it would see these, too.
        monkeypatch.setattr(Evaluator, "_check_spot", lambda *args: None)
    score(logits)


def test_an_honest_model_passes_all_of_them():
    passed = []
    score(honest, passed=passed)
    assert tuple(passed) == measure.GATES


# ---------------------------------------------------------------------------------------------------------------------
# What is replaced only while nobody looks


class Hider:
    """Replaces a function after each call of the model, and puts it back at the start of the next one."""

    def __init__(self, monkeypatch):
        self._log = np.log
        self._patch = monkeypatch.setattr

    def logits(self, _, tokens):
        self._patch(np, "log", self._log)
        out = honest(_, tokens)
        self._patch(np, "log", lambda x: self._log(x) * 0.5)
        return out

    def check(self):
        if np.log is not self._log:
            raise CandidateFailure("invalid", "guard: numpy.log was replaced")


def test_a_patch_that_is_put_back_in_time_is_seen_between_two_calls(monkeypatch):
    hider = Hider(monkeypatch)
    with pytest.raises(CandidateFailure, match=r"numpy\.log was replaced"):
        score(hider.logits, hider.check)
    monkeypatch.setattr(np, "log", hider._log)
    # The spot check would see this one; a cleverer one would know which call that is.
    monkeypatch.setattr(Evaluator, "_check_spot", lambda *args: None)
    fair = score(honest)
    assert score(Hider(monkeypatch).logits) < fair, "without a look in between it wins"


@pytest.mark.parametrize("batches", [2, 100])
def test_looks_are_few_and_can_not_be_foreseen(batches):
    seen = []
    rows = np.tile(VAL[:2], (batches, 1))
    for _ in range(3):
        counts = [0]

        def check(counts=counts):
            counts[0] += 1

        Evaluator(null, null.describe(), Trained(honest, None), V, BYTES, 2, None, check).measure(rows, {}, 1)
        seen.append(counts[0])
    assert min(seen) >= 1
    assert max(seen) <= (6 * measure.CHECKS if batches == 100 else 2 + 1 + measure.MAX_ROUNDS)


# ---------------------------------------------------------------------------------------------------------------------
# Work outside the clock


def test_training_on_dummy_batches_is_allowed_and_useless(lab, candidate):
    """300 steps for nothing before the clock: their tokens are random. The same steps on the rows would pay."""
    dummy = "for _ in range(300):\n    for a, b in zip(*experiment.dummy_batch(rows)): np.add.at(counts, (a, b), 1.0)"
    fair, free, paid = (
        lab.result(candidate(), train_steps=5),
        lab.result(candidate(setup=dummy), train_steps=5),
        lab.result(candidate(), train_steps=40),
    )
    assert fair.status == free.status == paid.status == "ok"
    assert free.val_bpb > fair.val_bpb
    assert paid.val_bpb < fair.val_bpb
    assert free.tokens == fair.tokens


LATE = """
import threading, time
def go_on(counts):
    while True:
        counts[:] *= 1.0
        time.sleep(0.001)
"""


@pytest.mark.parametrize("place", ["setup", "step", "end"])
def test_a_thread_that_goes_on_after_training_is_invalid(lab, candidate, place):
    start = "threading.Thread(target=go_on, args=(counts,), name='late', daemon=True).start()"
    result = lab.fails(
        candidate(top=LATE, **{place: start}),
        "invalid",
        "^guard: the thread 'late' goes on after train has returned$",
    )
    assert result.guards == ()


def test_a_thread_that_ended_with_training_is_fine(lab, candidate):
    end = "worker = threading.Thread(target=counts.sum)\nworker.start()\nworker.join()"
    assert lab.result(candidate(top="import threading", end=end)).status == "ok"


def test_a_thread_that_scoring_starts_is_seen_at_the_end(lab, candidate):
    start = "threading.Thread(target=go_on, args=(np.ones(1),), name='late', daemon=True).start()"
    lab.fails(candidate(top=LATE, logits=start), "invalid", "^guard: the thread 'late' goes on")


# ---------------------------------------------------------------------------------------------------------------------
# The record


def test_a_record_says_which_gates_ran_also_where_it_failed(lab, candidate, monkeypatch):
    ahead = "out[:, :-1][np.arange(len(tokens))[:, None], np.arange(63), tokens[:, 1:]] += 3.0"
    ended = {
        "crash": (lab.result(candidate(step="1 / 0")), ()),
        "shape": (lab.result(candidate(logits="out = out[..., :-1]")), ("clock",)),
        "diverged": (lab.result(candidate(end="counts[:] = np.nan")), ("clock", "shape")),
        "causality": (lab.result(candidate(logits=ahead)), ("clock", "shape", "finite", "no memory")),
        "death": (lab.result(candidate(logits="import os; os._exit(3)")), ("clock",)),
        "ok": (lab.result(candidate()), ("clock", *measure.GATES, "guard")),
    }
    for name, (result, guards) in ended.items():
        assert result.guards == guards, name
        assert result.harness_hash == harness.harness_hash()
        assert Result.from_json(result.to_json()) == result
    assert Result.from_json({"status": "ok"}).harness_hash == "", "an older record"


def test_the_hash_of_the_harness_is_that_of_its_sources(tmp_path):
    copy = tmp_path / "autoresearch"
    shutil.copytree(harness.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "notes.txt").write_text("no source")
    assert harness.sources_hash(copy) == harness.sources_hash(harness.PACKAGE)
    guard = copy / "core" / "guard.py"
    text = guard.read_text()
    for change in (lambda: guard.write_text(text + "\n"), lambda: (copy / "more.py").touch()):
        before = harness.sources_hash(copy)
        change()
        assert harness.sources_hash(copy) != before
    moved = harness.sources_hash(copy)
    guard.rename(copy / "core" / "guards.py")
    assert harness.sources_hash(copy) != moved
