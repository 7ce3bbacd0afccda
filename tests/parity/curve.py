"""The golden curve: twenty steps from fixed weights on fixed rows, and the score at their end.

    python tests/parity/curve.py    writes golden.json again, from the reference backend

Only where the model, the optimizer, a schedule or the rows were changed on purpose, in the commit that says why. A
backend that left the curve without such a change has a fault: then the file stays, and the train.py is corrected.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
if __name__ == "__main__":
    sys.path += [str(HERE), str(HERE.parent / "backends")]

import dialects  # noqa: E402
import parity_harness as harness  # noqa: E402
import reference_numpy as reference  # noqa: E402

from autoresearch.core.files import write_atomic  # noqa: E402

GOLDEN = HERE / "golden.json"
STEPS = 20
TRAIN_ROWS = harness.text_rows(256, seed=1)
VAL_ROWS = harness.text_rows(32, seed=2)


def rows_hash():
    """Of what the curve is trained and scored on."""
    return hashlib.sha256(TRAIN_ROWS.tobytes() + VAL_ROWS.tobytes()).hexdigest()


def start_weights():
    return reference.initial(harness.parity_constants(), harness.VOCAB)


def run(subject, **options):
    """(losses of the steps in nats per token, val_bpb) of a train.py."""
    losses, trained = subject.train(start_weights(), steps=STEPS, rows=TRAIN_ROWS, **options)
    return losses, subject.score(trained, VAL_ROWS).bpb


def golden():
    """The stored losses and val_bpb.

    Raises:
        AssertionError: the file belongs to other rows.
    """
    stored = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert stored["rows_sha256"] == rows_hash(), (
        f"the rows of the curve are no longer those of {GOLDEN.name}: {__doc__}"
    )
    return np.array(stored["losses"]), stored["val_bpb"]


def main():
    losses, val_bpb = run(dialects.Torch())
    document = {
        "when": __doc__.strip(),
        "rows_sha256": rows_hash(),
        "losses": [round(loss, 8) for loss in losses.tolist()],
        "val_bpb": round(val_bpb, 8),
    }
    write_atomic(GOLDEN, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
