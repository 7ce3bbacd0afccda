"""Tokens a second of the training iterator on one core, against what an H100 consumes.

    python benchmarks/row_stream.py [--seq-len 2048] [--rows 100000] [--batch 128]

What a train.py draws from: `experiment.batches` with its worker thread, inputs and targets apart, for a device that is
the host. The rows lie in a memory-mapped file in the page cache, as after `prepare`. Prints one line with the ratio to
the 1.7 M tokens/s of the original's published run on an H100 (499.6 M tokens in 300 s).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np

from autoresearch.backends.null import device
from autoresearch.core.experiment import ExperimentRun
from autoresearch.core.task import Task

H100_TOKENS_PER_SECOND = 1.7e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the file")
    parser.add_argument("--batch", type=int, default=128, help="rows taken at once")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    shape = (arguments.rows, arguments.seq_len + 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, np.random.default_rng(0).integers(0, 8192, shape, dtype=np.uint16))
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
        steps = max(1, arguments.rows // arguments.batch)
        task = Task(seq_len=arguments.seq_len, train_seconds=3600, train_steps=steps)
        run = ExperimentRun(device, device.describe(), task, 8192, rows, seed=0, max_rows=arguments.batch)
        for _ in run.batches(arguments.batch):
            run.log(0.0)
        run.finish(None)
    rate = run.tokens / run.clock.elapsed
    print(
        f"training iterator: {rate / H100_TOKENS_PER_SECOND:.0f} x what an H100 consumes "
        f"({rate / 1e6:.0f} M tokens/s on one core, T {arguments.seq_len}, int32 and the split into targets included)"
    )


if __name__ == "__main__":
    main()
