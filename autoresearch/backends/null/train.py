"""A bigram language model in NumPy: a table of logits for the next token, trained by Adagrad.

It exists so that the whole search runs in seconds: everything around it is the same as for the real backends.
"""

import numpy as np

from autoresearch.core.contract import Experiment, Trained, run_experiment

# ---------------------------------------------------------------------------------------------------------------------
# Hyper-parameters
# ---------------------------------------------------------------------------------------------------------------------

TOTAL_BATCH_SIZE = 2048  # tokens a step, search: 512 | 1024 | 2048 | 4096 | 8192
DEVICE_BATCH_ROWS = 64  # most rows in one micro-batch
LEARNING_RATE = 0.3  # search: 0.03..3.0 log
SMOOTHING = 1e-8  # added to the root of Adagrad's accumulator, search: 1e-10..1e-4 log
INIT_SCALE = 0.01  # spread of the initial logits, search: 0.001..0.1 log
WARMDOWN_RATIO = 0.5  # share of the budget in which the rate falls to zero, search: 0.0..1.0

# ---------------------------------------------------------------------------------------------------------------------
# Model
# ---------------------------------------------------------------------------------------------------------------------


def logits(table, tokens):
    """Logits (B, T, V) of the token after each of `tokens` (B, T)."""
    return table[tokens]


def loss_and_gradient(table, inputs, targets):
    """Mean cross-entropy in nats, the rows of `table` that occur, and the gradient of these rows."""
    flat, wanted = inputs.reshape(-1), targets.reshape(-1)
    scores = table[flat]  # (n, V)
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    each = np.arange(len(flat))
    loss = -np.log(scores[each, wanted]).mean()
    scores[each, wanted] -= 1.0
    scores /= len(flat)
    order = np.argsort(flat, kind="stable")
    rows, starts = np.unique(flat[order], return_index=True)
    return loss, rows, np.add.reduceat(scores[order], starts, axis=0)


# ---------------------------------------------------------------------------------------------------------------------
# Schedules
# ---------------------------------------------------------------------------------------------------------------------


def learning_rate(progress):
    """Constant, then linear to zero over the last WARMDOWN_RATIO of the budget."""
    return LEARNING_RATE * min(1.0, (1.0 - progress) / WARMDOWN_RATIO) if WARMDOWN_RATIO else LEARNING_RATE


# ---------------------------------------------------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------------------------------------------------


def train(experiment: Experiment) -> Trained:
    total_rows = max(1, TOTAL_BATCH_SIZE // experiment.seq_len)
    rows = min(DEVICE_BATCH_ROWS, experiment.max_rows, total_rows)
    while total_rows % rows:
        rows -= 1
    rng = np.random.default_rng(experiment.seed)
    vocab = experiment.vocab_size
    table = rng.normal(0.0, INIT_SCALE, (vocab, vocab)).astype(np.float32)
    accumulator = np.zeros_like(table)
    for inputs, targets in experiment.batches(rows, total_rows // rows):
        loss, seen, gradient = loss_and_gradient(table, inputs, targets)
        accumulator[seen] += gradient * gradient
        rate = learning_rate(experiment.progress)
        table[seen] -= rate * gradient / (np.sqrt(accumulator[seen]) + SMOOTHING)
        experiment.log(loss)
    experiment.report(depth=0)
    return Trained(logits, table)


if __name__ == "__main__":
    run_experiment()
