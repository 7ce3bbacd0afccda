"""Packing documents into rows of equal length: BOS-aligned best-fit, the rule of nanochat's and autoresearch's loader.

A row is filled from a buffer of documents: the longest one that fits what is left of the row, the oldest among equals.
Where none fits, the shortest is cropped to fill the row exactly and its remainder is dropped. So every row is full,
begins with a BOS, and no document continues in another row. The rule needs nothing but lengths: `pack` decides, `Rows`
copies.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

VERSION = 1
"""Of the rule, part of a data set's key."""
BUFFER = 1000
"""Documents that wait to be chosen from, as in the reference."""
_GATHER_TOKENS = 1 << 21


class Packing(NamedTuple):
    """What goes into the rows: segments in row order, row after row without gaps."""

    documents: NDArray[np.int64]
    """(S,) the document that each segment begins."""
    lengths: NDArray[np.int64]
    """(S,) tokens taken from its start; they sum to rows · row_len."""
    rows: int


def pack(lengths: NDArray[np.int64], row_len: int, buffer: int = BUFFER, max_rows: int | None = None) -> Packing:
    """Choose what goes into each row.

    The buffer is filled up with the next documents before every choice. Once no documents are left, a last row that
    can't be filled is dropped.

    Documents that a row could hold wait in one queue per length, and one integer has a bit set for every queue that
    isn't empty: the longest that fits is the highest set bit at or below what is left, the shortest the lowest set bit.

    Args:
        lengths: (D,) tokens of each document, 1 or more.
        row_len: tokens of a row, T + 1.
        max_rows: stop after this many rows.
    """
    sizes: list[int] = lengths.tolist()
    queues: list[deque[int]] = [deque() for _ in range(row_len + 1)]
    waiting = 0  # bit n: a document of n tokens waits
    at_most = [(2 << room) - 1 for room in range(row_len + 1)]  # bits 0..room
    longer: list[tuple[int, int]] = []  # heap of (length, document): they fit no row whole
    documents, taken = array("q"), array("q")
    buffered = upcoming = rows = row_start = 0
    room = row_len
    while max_rows is None or rows < max_rows:
        while buffered < buffer and upcoming < len(sizes):
            size = sizes[upcoming]
            if size <= row_len:
                queues[size].append(upcoming)
                waiting |= 1 << size
            else:
                heapq.heappush(longer, (size, upcoming))
            upcoming += 1
            buffered += 1
        if not buffered:
            break
        fitting = waiting & at_most[room]
        if fitting or waiting:
            size = fitting.bit_length() - 1 if fitting else (waiting & -waiting).bit_length() - 1
            queue = queues[size]
            document = queue.popleft()
            if not queue:
                waiting ^= 1 << size
        else:
            size, document = heapq.heappop(longer)
        buffered -= 1
        documents.append(document)
        taken.append(min(size, room))
        room -= taken[-1]
        if not room:
            rows, room, row_start = rows + 1, row_len, len(documents)
    return Packing(np.array(documents[:row_start], dtype=np.int64), np.array(taken[:row_start], dtype=np.int64), rows)


def gather(packing: Packing, tokens: NDArray[Any], offsets: NDArray[np.int64], row_len: int) -> Iterator[NDArray[Any]]:
    """Copy the segments of a packing.

    Args:
        tokens: (n,) all documents, one after another; may be memory-mapped.
        offsets: (D + 1,) where each document starts.

    Yields:
        Read-only blocks of whole rows, (n, row_len) in the dtype of `tokens`; together the packing's rows, in order.
    """
    # Joining slices of the bytes copies at the speed of memory; an index array would be four times the tokens' size.
    raw = tokens.data.cast("B")
    starts = offsets[packing.documents] * tokens.itemsize
    stops = starts + packing.lengths * tokens.itemsize
    rows_at_once = max(1, _GATHER_TOKENS // row_len)
    ends = np.cumsum(packing.lengths)
    # Segments never cross rows, so they don't cross blocks either.
    blocks = np.searchsorted(ends, np.arange(rows_at_once, packing.rows, rows_at_once) * row_len) + 1
    for first, last in pairwise([0, *blocks.tolist(), len(ends)]):
        spans = zip(starts[first:last].tolist(), stops[first:last].tolist(), strict=True)
        yield np.frombuffer(b"".join([raw[a:b] for a, b in spans]), dtype=tokens.dtype).reshape(-1, row_len)
