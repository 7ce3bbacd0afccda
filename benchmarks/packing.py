"""Best-fit packing against a straightforward version of the same rule, on equal documents.

    python benchmarks/packing.py [--documents 50000] [--row-len 2049]

The straightforward version is what a data loader does: it keeps a buffer of token lists, scans it in Python for every
choice and joins lists into rows. Both give the rows as an array; they must be equal. Prints one line with the ratio.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoresearch.prepare.packing import BUFFER, gather, pack


def straightforward(documents: list[list[int]], row_len: int, buffer_size: int = BUFFER) -> NDArray[np.uint16]:
    """Rows (N, row_len) by the rule of `autoresearch.prepare.packing`, by scanning the buffer for every choice."""
    upcoming = iter(documents)
    buffer: list[list[int]] = []
    rows: list[list[int]] = []
    row: list[int] = []
    while True:
        while len(buffer) < buffer_size and (document := next(upcoming, None)) is not None:
            buffer.append(document)
        if not buffer:
            return np.array(rows, dtype=np.uint16).reshape(-1, row_len)
        room = row_len - len(row)
        best, best_len = -1, 0
        for i, document in enumerate(buffer):
            if best_len < len(document) <= room:
                best, best_len = i, len(document)
        if best < 0:
            best = min(range(len(buffer)), key=lambda i: len(buffer[i]))
        row.extend(buffer.pop(best)[:room])
        if len(row) == row_len:
            rows.append(row)
            row = []


def fast(tokens: NDArray[np.uint16], offsets: NDArray[np.int64], row_len: int) -> NDArray[Any]:
    """The same rows by the packer of the project."""
    packing = pack(np.diff(offsets), row_len)
    rows = np.empty((packing.rows, row_len), dtype=tokens.dtype)
    filled = 0
    for block in gather(packing, tokens, offsets, row_len):
        rows[filled : filled + len(block)] = block
        filled += len(block)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--row-len", type=int, default=2049, help="T + 1")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    # Lengths of web documents are about log-normal; the median here is a quarter of a row.
    lengths = np.maximum(1, rng.lognormal(np.log(arguments.row_len / 4), 1.0, arguments.documents)).astype(np.int64)
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    tokens = rng.integers(0, 8192, offsets[-1], dtype=np.uint16)
    documents = [part.tolist() for part in np.split(tokens, offsets[1:-1])]

    start = time.perf_counter()
    expected = straightforward(documents, arguments.row_len)
    slow_seconds = time.perf_counter() - start
    start = time.perf_counter()
    rows = fast(tokens, offsets, arguments.row_len)
    fast_seconds = time.perf_counter() - start
    if not np.array_equal(rows, expected):
        raise SystemExit("packing: the rows differ from those of the straightforward version")
    print(
        f"packing: {slow_seconds / fast_seconds:.1f} x the straightforward version "
        f"({fast_seconds:.2f} s against {slow_seconds:.2f} s, {rows.size / fast_seconds / 1e6:.0f} M tokens/s, "
        f"{len(rows)} rows of {arguments.row_len}, equal)"
    )


if __name__ == "__main__":
    main()
