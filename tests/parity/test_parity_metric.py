"""Nats and bytes of each backend for the same logits: equal to NumPy, whatever the batch, blind to padding."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import reference_numpy as reference
from parity_harness import SEQ_LEN, VOCAB, text_rows

from autoresearch.core.contract import Trained
from autoresearch.core.measure import Evaluator

ROWS = text_rows(17, seed=5)
TOKEN_BYTES = np.random.default_rng(0).integers(0, 5, VOCAB).astype(np.int32)
"""Zero bytes, as of special tokens, among them."""
TABLE = (np.random.default_rng(1).normal(size=(VOCAB, VOCAB)) * 6).astype(np.float32)
"""Logits (V, V) by the token before: a bigram, which every backend looks up alike."""


def table_lookup(backend, table=TABLE):
    return Trained(lambda params, tokens: params[tokens], backend.array(table))


def expected(table=TABLE):
    """Σ nats and Σ bytes of ROWS in float64."""
    targets = ROWS[:, 1:]
    nats = reference.nats(table[ROWS[:, :-1]].astype(np.float64), targets)
    return (nats * (TOKEN_BYTES[targets] > 0)).sum(), int(TOKEN_BYTES[targets].sum())


def score(backend, eval_rows, device=None):
    evaluator = Evaluator(
        device or backend.device(), backend.info(), table_lookup(backend), VOCAB, TOKEN_BYTES, eval_rows
    )
    return evaluator.score(ROWS)


@pytest.mark.parametrize("eval_rows", [1, 3, 7, 16, 32])
def test_the_score_depends_on_no_batch_and_no_padding(backend, eval_rows):
    got = score(backend, eval_rows)
    nats, count = expected()
    assert got.nats == pytest.approx(nats, rel=1e-6)
    assert (got.bytes, got.tokens) == (count, 17 * SEQ_LEN)


def test_scores_are_equal_pairwise(all_backends):
    scores = {name: score(backend, 7) for name, backend in all_backends.items()}
    for one, other in itertools.combinations(scores.values(), 2):
        assert one.nats == pytest.approx(other.nats, rel=1e-6)
        assert one.bytes == other.bytes


WRONG_NATS = {
    "in bits": lambda nats: nats / np.log(2),
    "mean over the batch": lambda nats: np.full_like(nats, nats.mean()),
    "in half precision": lambda nats: nats.astype(np.float16).astype(np.float32) * np.float32(1 + 2**-11),
    "one token late": lambda nats: np.roll(nats, 1, axis=1),
}


@pytest.mark.parametrize("wrong", WRONG_NATS.values(), ids=WRONG_NATS.keys())
def test_a_wrong_score_is_seen(backend, wrong):
    """Rows of padding move a mean; a shift moves nats to tokens of other bytes."""
    device = backend.device()
    faulty = SimpleNamespace(put=device.put, nats=lambda *arguments: wrong(device.nats(*arguments)))
    assert score(backend, 7, faulty).nats != pytest.approx(expected()[0], rel=1e-6)


def test_padding_that_counts_is_seen(backend, monkeypatch):
    batch = Evaluator._batch
    monkeypatch.setattr(Evaluator, "_batch", lambda *arguments: (*batch(*arguments)[:2], 7))
    got = score(backend, 7)
    assert got.nats != pytest.approx(expected()[0], rel=1e-3)


def test_nats_of_each_target_equal_numpy(backend):
    rng = np.random.default_rng(2)
    for size in (0.01, 1.0, 10.0):
        logits = (rng.normal(size=(3, 8, VOCAB)) * size).astype(np.float32)
        targets = rng.integers(0, VOCAB, (3, 8))
        got = backend.nats(backend.array(logits), targets)
        assert (got.dtype, got.shape) == (np.float32, (3, 8))
        np.testing.assert_allclose(got, reference.nats(logits.astype(np.float64), targets), rtol=1e-5, atol=1e-5)


def test_nats_of_half_precision_logits_are_computed_in_float32(backend):
    rng = np.random.default_rng(3)
    targets = rng.integers(0, VOCAB, (3, 8))
    logits = backend.array((rng.normal(size=(3, 8, VOCAB)) * 10).astype(np.float32), "bfloat16")
    rounded = backend.host(logits)
    got = backend.nats(logits, targets)
    np.testing.assert_allclose(got, reference.nats(rounded.astype(np.float64), targets), rtol=1e-5, atol=1e-5)
