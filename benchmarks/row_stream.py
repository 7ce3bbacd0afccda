"""Training rows per second on one core, against what an H100 consumes.

    python benchmarks/row_stream.py [--seq-len 2048] [--rows 100000] [--batch 128]

The rows lie in a memory-mapped file in the page cache, as after `prepare`. Prints one line with the ratio to the 1.7 M
tokens/s of the original's published run on an H100 (499.6 M tokens in 300 s).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from autoresearch.core.rows import RowStream

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
        start = time.perf_counter()
        stream = RowStream(np.load(path, mmap_mode="r", allow_pickle=False), seed=0)
        opened = time.perf_counter() - start
        takes = max(1, arguments.rows // arguments.batch)
        for _ in range(takes // 10):
            stream.take(arguments.batch)
        start = time.perf_counter()
        for _ in range(takes):
            stream.take(arguments.batch)
        seconds = time.perf_counter() - start
    rate = takes * arguments.batch * arguments.seq_len / seconds
    print(
        f"row stream: {rate / H100_TOKENS_PER_SECOND:.0f} x what an H100 consumes "
        f"({rate / 1e6:.0f} M tokens/s on one core, T {arguments.seq_len}, int32 included; opened in {opened:.3f} s)"
    )


if __name__ == "__main__":
    main()
