"""Bits per byte, and every probe with a planted fault that shows what it stops."""

import contextlib
import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from autoresearch.backends.null import device as null
from autoresearch.core import measure
from autoresearch.core.contract import Trained
from autoresearch.core.errors import CandidateFailure
from autoresearch.core.measure import Evaluator

V, T = 300, 48
RNG = np.random.default_rng(5)
TABLE = RNG.normal(0, 2, (V, V)).astype(np.float32)
VAL = RNG.integers(0, V, (37, T + 1)).astype(np.uint16)
TEST = VAL[:9]
BYTES = RNG.integers(1, 9, V).astype(np.int32)
BYTES[:4] = 0  # special tokens


def bigram(table, tokens):
    return table[tokens]


def evaluator(logits=bigram, eval_rows=8, params=TABLE, backend=null, vocab=V, **device):
    return Evaluator(backend, replace(null.describe(), **device), Trained(logits, params), vocab, BYTES, eval_rows)


def run(logits=bigram, seed=0, val=VAL, **options):
    return evaluator(logits, **options).measure(val, {"test": TEST}, seed)


def failing(logits, **options):
    with pytest.raises(CandidateFailure) as raised:
        run(logits, **options)
    return raised.value


# ---------------------------------------------------------------------------------------------------------------------
# The metric


def expected_sums(rows):
    """Σ nats and Σ bytes in float64, one target after the other."""
    nats, size = 0.0, 0
    for row in rows.astype(int):
        for token, target in pairwise(row):
            if BYTES[target]:
                scores = TABLE[token].astype(np.float64)
                nats += np.log(np.exp(scores).sum()) - scores[target]
                size += int(BYTES[target])
    return nats, size


def test_bits_per_byte_is_nats_over_bytes():
    nats, size = expected_sums(VAL)
    score = evaluator().score(VAL)
    assert score.bytes == size
    assert score.tokens == VAL[:, 1:].size
    assert score.nats == pytest.approx(nats, rel=1e-6)
    assert score.bpb == pytest.approx(nats / (math.log(2) * size), rel=1e-6)


def test_special_tokens_count_neither_bytes_nor_nats():
    rows = VAL[:5].copy()
    rows[:, 1:] = np.arange(T) % 4  # each target is one of them
    rows[0, 7] = 50
    score = evaluator().score(rows)
    nats, size = expected_sums(rows)
    assert score.bytes == size == BYTES[50]
    assert score.nats == pytest.approx(nats)
    assert score.tokens == 5 * T


@pytest.mark.parametrize("eval_rows", [1, 3, 7, 16, 37, 50])
def test_the_score_does_not_depend_on_the_rows_of_a_batch(eval_rows):
    """A small float32 network, so that matrix products of other shapes round in other ways."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(0, 0.3, shape).astype(np.float32) for shape in ((V, 64), (64, 64), (64, V))]

    def network(params, tokens):
        embedding, hidden, head = params
        return np.tanh(embedding[tokens] @ hidden) @ head

    score = evaluator(network, eval_rows, weights).score(VAL)
    reference = evaluator(network, 5, weights).score(VAL)
    assert abs(score.bpb - reference.bpb) <= 1e-6
    assert (score.bytes, score.tokens) == (reference.bytes, reference.tokens)


@pytest.mark.parametrize("eval_rows", [1, 3, 7, 16, 50])
def test_an_honest_model_passes_every_probe_at_any_shape(eval_rows):
    val, held_out = run(eval_rows=eval_rows)
    assert val == evaluator(eval_rows=eval_rows).score(VAL)
    assert held_out == {"test": evaluator(eval_rows=eval_rows).score(TEST)}


def test_an_honest_model_passes_with_few_rows_and_without_a_test_split():
    for rows in (1, 2, 5):
        val, held_out = evaluator().measure(VAL[:rows], {"test": VAL[:0]}, 0)
        assert val.tokens == rows * T
        assert held_out == {}


def test_every_call_has_the_one_static_shape():
    shapes = []

    def spy(params, tokens):
        shapes.append(tokens.shape)
        return params[tokens]

    run(spy)
    assert set(shapes) == {(8, T)}


def test_logits_stay_below_a_gibibyte_and_rows_divide_over_devices():
    assert evaluator(eval_rows=10**6)._rows_of(T) == 2**30 // (4 * T * V)
    assert evaluator(eval_rows=16, vocab=2**20)._rows_of(2048) == 1
    assert evaluator(eval_rows=15, count=4)._rows_of(T) == 12
    assert evaluator(eval_rows=2, count=4)._rows_of(T) == 4


# ---------------------------------------------------------------------------------------------------------------------
# Leaks. Each would lower the score, so a probe that is taken out shows by a better score than the honest one.


def leak(where, boost=4.0):
    """Raise the logit of the next token at the positions that `where` gives."""

    def logits(table, tokens):
        out = table[tokens]
        for t in where(tokens.shape[1] - 1):
            out[np.arange(len(tokens)), t, tokens[:, t + 1]] += boost
        return out

    return logits


def whole_row(table, tokens):
    """Tokens that occur anywhere in the row are more likely."""
    out = table[tokens]
    for row, seen in enumerate(tokens):
        out[row, :, seen] += 1.0
    return out


def sorted_row(table, tokens):
    """Half of the vocabulary is less likely by a statistic over the sorted row."""
    out = table[tokens]
    out[..., V // 2 :] -= np.sort(tokens, axis=1)[:, -4, None, None] / V
    return out


def two_ahead(table, tokens):
    out = table[tokens]
    rows, steps = np.indices(tokens.shape)
    np.add.at(out, (rows[:, :-2], steps[:, :-2], tokens[:, 2:]), 2.0)
    return out


LEAKS = {
    "the next token": leak(range),
    "at every sixth position": leak(lambda n: range(2, n, 6)),
    "in one part of the row": leak(lambda n: range(10, 16)),
    "at the first position": leak(lambda n: [0]),
    "at the last position": leak(lambda n: [n - 1]),
    "below the tolerance": leak(range, boost=1.5e-4),
    "two tokens ahead": two_ahead,
    "the whole row": whole_row,
    "a sorted row": sorted_row,
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_look_ahead_is_invalid(name):
    for seed in range(5):
        found = failing(LEAKS[name], seed=seed)
        assert found.status == "invalid"
        assert found.reason.startswith("causality: later tokens change earlier scores by ")


@pytest.mark.parametrize("name", ["the next token", "at every sixth position", "below the tolerance"])
def test_without_the_causality_probe_a_look_ahead_wins(monkeypatch, name):
    monkeypatch.setattr(Evaluator, "_check_causality", lambda *args: None)
    assert run(LEAKS[name])[0].bpb < run()[0].bpb


def test_without_the_mean_over_the_cuts_a_small_look_ahead_wins(monkeypatch):
    monkeypatch.setattr(measure, "_DRIFT", 1.0)
    assert run(LEAKS["below the tolerance"])[0].bpb < run()[0].bpb


def test_a_leak_at_few_positions_is_found_in_a_row_longer_than_all_cuts():
    """Every tenth position of 1024 leaks: 64 cuts miss all of them once in a thousand times."""
    rows = RNG.integers(0, V, (9, 1025)).astype(np.uint16)
    for seed in range(3):
        with pytest.raises(CandidateFailure, match="causality"):
            evaluator(leak(lambda n: range(0, n, 10))).measure(rows, {"test": rows[:1]}, seed)


def batch_mean(table, tokens):
    """Half of the vocabulary moves with the mean token of the batch at each position."""
    out = table[tokens]
    out[..., V // 2 :] += tokens.mean(axis=0)[None, :, None] / V
    return out


def neighbour(table, tokens):
    """Every row sees what the row before it holds."""
    out = table[tokens]
    out[np.arange(len(tokens))[:, None], np.arange(tokens.shape[1]), np.roll(tokens, 1, axis=0)] += 1.0
    return out


@pytest.mark.parametrize("logits", [batch_mean, neighbour])
def test_rows_that_see_each_other_are_invalid(logits):
    found = failing(logits)
    assert found.status == "invalid"
    assert found.reason.startswith("isolation: other rows of the batch change earlier scores by ")


def cached():
    """Remember every row that was scored, and recognise it by its first tokens."""
    seen = {}

    def logits(table, tokens):
        out = table[tokens]
        for row, line in enumerate(tokens):
            known = seen.setdefault(line[:4].tobytes(), None)
            if known is not None:
                out[row, np.arange(T - 1), known[1:]] += 9.0
            seen[line[:4].tobytes()] = line.copy()
        return out

    return logits


def drifting():
    """Parameters that go on changing while they are scored."""
    calls = []

    def logits(table, tokens):
        calls.append(None)
        return table[tokens] * (1.0 + 0.01 * len(calls))

    return logits


def dropout(table, tokens):
    return table[tokens] * (np.random.default_rng().random(V) > 0.1)


@pytest.mark.parametrize("logits", [cached(), drifting(), dropout], ids=["cached", "drifting", "dropout"])
def test_state_between_calls_is_invalid(logits):
    found = failing(logits)
    assert found.status == "invalid"
    assert found.reason.startswith("no memory: the same rows scored twice differ by ")


def test_scores_that_do_not_follow_from_the_logits_are_invalid():
    flattering = SimpleNamespace(
        **{name: getattr(null, name) for name in ("put", "logits")}, nats=lambda *args: 0.9 * null.nats(*args)
    )
    found = failing(bigram, backend=flattering)
    assert found.status == "invalid"
    assert found.reason.startswith("spot check: scores differ from their logits by ")


def test_without_the_spot_check_they_win(monkeypatch):
    monkeypatch.setattr(Evaluator, "_check_spot", lambda *args: None)
    flattering = SimpleNamespace(put=null.put, logits=null.logits, nats=lambda *args: 0.9 * null.nats(*args))
    assert run(backend=flattering)[0].bpb < run()[0].bpb


def lying(where):
    """A backend whose scores are too low where `where(call, B, T)` is true."""
    calls = [0]

    def nats(*args):
        calls[0] += 1
        found = null.nats(*args)
        return np.where(where(calls[0], *found.shape), 0.5 * found, found)

    return SimpleNamespace(put=null.put, logits=null.logits, nats=nats)


LIES = {
    "all rows but the first": lambda call, rows, length: np.arange(rows)[:, None] >= 4,
    "one row of each batch": lambda call, rows, length: np.arange(rows)[:, None] == 6,
    "every fourth position": lambda call, rows, length: np.arange(length) % 4 == 1,
    "one batch of five": lambda call, rows, length: call == 3,
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_about_some_rows_is_invalid(monkeypatch, name):
    for seed in range(5):
        assert failing(bigram, backend=lying(LIES[name]), seed=seed).status == "invalid"
    monkeypatch.setattr(Evaluator, "_check_spot", lambda *args: None)
    monkeypatch.setattr(Evaluator, "_check_causality", lambda *args: None)
    won = 0
    for seed in range(5):
        with contextlib.suppress(CandidateFailure):  # by chance, the batch that is scored twice
            won += run(backend=lying(LIES[name]), seed=seed)[0].bpb < run()[0].bpb
    assert won >= 3


def test_a_lie_about_one_batch_is_invalid_whichever_batch_is_probed():
    """Another batch is scored twice and changed: only the spot check sees this one."""
    reasons = [failing(bigram, backend=lying(LIES["one batch of five"]), seed=seed).reason for seed in range(12)]
    assert sum(reason.startswith("spot check") for reason in reasons) >= 6


def offset(rows=slice(4, None), by=1e9):
    """In float32, ln V is nothing beside so large a logit: ln Σ exp(x) − x would be zero for every target."""

    def logits(table, tokens):
        out = table[tokens]
        out[rows] = by
        return out

    return logits


def unshifted(trained, inputs, targets):
    logits = null._scores(trained, inputs)
    peak = logits.max(axis=-1, keepdims=True)
    log_sum = np.log(np.exp(logits - peak).sum(axis=-1)) + peak[..., 0]
    return log_sum - np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]


@pytest.mark.parametrize("by", [1e5, 1e9])
@pytest.mark.parametrize("rows", [slice(4, None), slice(None), slice(6, 7)], ids=["most", "all", "one"])
def test_an_offset_of_all_logits_is_invalid_and_gains_nothing(monkeypatch, rows, by):
    for seed in range(3):
        found = failing(offset(rows, by), seed=seed)
        assert found.status == "invalid"
        assert found.reason.startswith("spot check: logits so large that float32 keeps them to ")
    monkeypatch.setattr(Evaluator, "_check_spot", lambda *args: None)
    backend = SimpleNamespace(put=null.put, logits=null.logits, nats=unshifted)
    honest = np.log(V) * np.log2(np.e) / BYTES[VAL[:, 1:]].mean()
    if by == 1e9:
        assert run(offset(rows, by), backend=backend)[0].bpb < run()[0].bpb, "what the shift is for"
    if rows == slice(None):
        share = (BYTES[VAL[:, 1:]] > 0).mean()
        assert run(offset(rows, by))[0].bpb == pytest.approx(honest * share), "a uniform distribution's"


@pytest.mark.parametrize("by", [-1000.0, 100.0, 1000.0])
def test_a_moderate_offset_is_no_fault(by):
    assert run(lambda table, tokens: table[tokens] + np.float32(by))[0].bpb == pytest.approx(run()[0].bpb, rel=1e-3)


def writing():
    """Writes the next token into the inputs, where the probes would take it from."""

    def logits(table, tokens):
        seen = tokens % V
        after = np.where(tokens >= V, tokens // V - 1, -1)
        coming = np.concatenate([seen[:, 1:], np.full_like(seen[:, :1], -1)], axis=1)
        coming = np.where(after >= 0, after, coming)
        out = table[seen].copy()
        rows, steps = np.nonzero(coming >= 0)
        out[rows, steps, coming[rows, steps]] += 20
        tokens[:] = np.where(coming >= 0, seen + V * (coming + 1), seen)
        return out

    return logits


class Shared(np.ndarray):
    """An array that has no copies."""

    def copy(self, order="C"):
        return self


def test_what_a_candidate_writes_into_its_inputs_reaches_no_probe(monkeypatch):
    assert failing(writing()).reason.startswith("causality: ")
    batch = Evaluator._batch

    def shared(*args):
        inputs, targets, real = batch(*args)
        return inputs.view(Shared), targets, real

    monkeypatch.setattr(Evaluator, "_batch", shared)
    assert failing(writing()).reason.startswith("causality: "), "the backend copies as well"
    monkeypatch.setattr(null, "put", lambda tokens, device: tokens)
    assert run(writing())[0].bpb < run()[0].bpb, "what the copies are for"


def test_the_null_backend_hands_out_copies():
    tokens = np.zeros((2, 3), np.int32)
    null.put(tokens, null.describe())[:] = 1
    assert not tokens.any()


@pytest.mark.parametrize(
    ("dtype", "moves", "passes"),
    [("float32", 1e-5, True), ("float32", 1e-3, False), ("bfloat16", 1e-3, True), ("bfloat16", 0.2, False)],
)
def test_tolerances_follow_the_dtype(dtype, moves, passes):
    """Rounding that differs from call to call, without a direction."""
    rng = np.random.default_rng(0)

    def rounded(table, tokens):
        return table[tokens] + rng.uniform(-moves, moves, (*tokens.shape, V)).astype(np.float32)

    if passes:
        run(rounded, dtype=dtype)
    else:
        assert failing(rounded, dtype=dtype).status == "invalid"


# ---------------------------------------------------------------------------------------------------------------------
# Shapes, numbers, time


@pytest.mark.parametrize(
    ("logits", "told"),
    [
        (lambda table, tokens: table[tokens][..., :-1], rf"have the shape \(8, 24, {V - 1}\), not \(8, 24, {V}\)"),
        (lambda table, tokens: np.pad(table[tokens], ((0, 0), (0, 0), (0, 9))), rf"shape \(8, 24, {V + 9}\)"),
        (lambda table, tokens: table[tokens][:, -1:], rf"are \(8, 1, {V}\), not an array \(B, T, V\)"),
        (lambda table, tokens: table[tokens][:2], rf"are \(2, {T}, {V}\)"),
        (lambda table, tokens: table[tokens][..., 0], rf"are \(8, {T}\)"),
    ],
    ids=["narrow", "wide", "last position", "few rows", "no vocabulary"],
)
def test_logits_of_another_shape_are_invalid(logits, told):
    found = failing(logits)
    assert found.status == "invalid"
    assert "logits " in found.reason
    with pytest.raises(CandidateFailure, match=told):
        run(logits)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_diverged(value):
    def everywhere(table, tokens):
        return np.full((*tokens.shape, V), value, np.float32)

    def in_one_batch_of_the_middle(table, tokens):
        out = table[tokens]
        if (tokens == VAL[20, :-1]).all(axis=1).any():
            out[:, 3, 7] = value
        return out

    for logits in (everywhere, in_one_batch_of_the_middle):
        for seed in range(3):
            with np.errstate(invalid="ignore"):
                assert failing(logits, seed=seed, eval_rows=2).status == "diverged"


def work_later(seconds, skip=0):
    """The first call but `skip` takes `seconds` on the harness's clock."""
    now, calls = [0.0], [0]

    def logits(table, tokens):
        calls[0] += 1
        now[0] += seconds if calls[0] == 1 + skip else 0.1
        return table[tokens]

    return logits, lambda: now[0]


@pytest.mark.parametrize("skip", [0, 1], ids=["logits", "nats"])
@pytest.mark.parametrize(("seconds", "compile", "valid"), [(2.9, False, True), (3.1, False, False), (140, True, True)])
def test_work_put_off_until_the_evaluation_is_invalid(monkeypatch, seconds, compile, valid, skip):
    logits, now = work_later(seconds, skip)
    monkeypatch.setattr(measure, "_now", now)
    if valid:
        run(logits, compile=compile)
    else:
        found = failing(logits, compile=compile)
        assert found.status == "invalid"
        assert "took 3.1 s, at most 3.0 s is allowed" in found.reason


@pytest.mark.parametrize("skip", [0, 2, 4, 9], ids=["first", "second", "batch", "probe"])
def test_without_the_check_of_calls_it_passes(monkeypatch, skip):
    logits, now = work_later(1000.0, skip)
    monkeypatch.setattr(measure, "_now", now)
    monkeypatch.setattr(Evaluator, "_check_calls", lambda self, tokens: None)
    assert run(logits) == run()


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("skip", [2, 4, 9, 17], ids=["second batch", "batch", "probe", "spot"])
def test_work_put_off_until_a_later_call_is_invalid(monkeypatch, skip, compile):
    """A call that nothing is compiled for gets no time to compile."""
    logits, now = work_later(3.1, skip)
    monkeypatch.setattr(measure, "_now", now)
    found = failing(logits, compile=compile)
    assert found.status == "invalid"
    assert found.reason == "call time: a later call took 3.1 s, at most 3.0 s is allowed"
    logits, now = work_later(2.9, skip)
    monkeypatch.setattr(measure, "_now", now)
    run(logits, compile=compile)


def in_small_portions(share, seconds):
    """`share` of all calls take `seconds`, and others 0.1, on the harness's clock."""
    now, calls = [0.0], [0]

    def logits(table, tokens):
        calls[0] += 1
        now[0] += seconds if calls[0] % 10 < 10 * share else 0.1
        return table[tokens]

    return logits, lambda: now[0]


def test_work_spread_over_many_calls_is_invalid(monkeypatch):
    """Each call is fast enough for itself."""
    logits, now = in_small_portions(0.2, 2.9)
    monkeypatch.setattr(measure, "_now", now)
    found = failing(logits, eval_rows=1)
    assert found.status == "invalid"
    assert found.reason.startswith("call time: all calls took ")
    logits, now = in_small_portions(0.4, 0.6)
    monkeypatch.setattr(measure, "_now", now)
    run(logits, eval_rows=1)
    monkeypatch.setattr(measure, "MEAN", measure.SLOWEST)
    logits, now = in_small_portions(0.2, 2.9)
    monkeypatch.setattr(measure, "_now", now)
    run(logits, eval_rows=1)


def test_two_first_calls_share_the_time_to_compile(monkeypatch):
    now, calls = [0.0], [0]

    def logits(table, tokens):
        calls[0] += 1
        now[0] += 100.0 if calls[0] <= 2 else 0.1
        return table[tokens]

    monkeypatch.setattr(measure, "_now", lambda: now[0])
    assert failing(logits, compile=True).reason.startswith("call time: all calls took 201")
