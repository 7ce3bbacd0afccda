"""A bigram of counts for the null backend. Tests insert faults at the lines that name a place in angle brackets."""

import numpy as np

from autoresearch.core.contract import Trained

# <top>

TOTAL_ROWS = 8


def logits(params, tokens):
    out = params["table"][tokens]
    # <logits>
    return np.ascontiguousarray(out)


def train(experiment):
    vocab = experiment.vocab_size
    counts = np.full((vocab, vocab), 0.05)
    rows = min(TOTAL_ROWS, experiment.max_rows)
    # <setup>
    for inputs, targets in experiment.batches(rows, TOTAL_ROWS // rows):
        # <step>
        loss = -np.log(counts[inputs, targets] / counts[inputs].sum(-1)).mean()
        np.add.at(counts, (inputs, targets), 1.0)
        # <log>
        experiment.log(loss)
    # <end>
    return Trained(logits, {"table": np.log(counts / counts.sum(-1, keepdims=True)).astype(np.float32)})
