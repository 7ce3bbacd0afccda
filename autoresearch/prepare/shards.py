"""Token shards: text is encoded once, in parallel, into flat arrays on disk with the offsets of its documents.

Threads, not processes: tiktoken releases the interpreter's lock, so threads with a tokenizer of their own are as fast
and nothing is sent between processes (`benchmarks/encoding.py`). Batches are cut and written in the order of the text,
so the bytes are the same whatever the number of workers.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from autoresearch.core.dataset import SPLITS, Split
from autoresearch.core.errors import DataError
from autoresearch.prepare.passages import passages
from autoresearch.prepare.tokenizer import Tokenizer

_BATCH_CHARS = 1 << 18


class ArrayWriter:
    """An .npy file that grows along its first axis; the header is written on closing."""

    def __init__(self, path: Path, dtype: np.dtype[Any], row: tuple[int, ...] = ()) -> None:
        """Args:
        row: shape of one item.
        """
        self.length = 0
        self._dtype = dtype
        self._row = row
        self._stream: IO[bytes] = path.open("xb")
        # NumPy pads the header so that the first axis can grow in place.
        self._header()
        self._data_start = self._stream.tell()

    def _header(self) -> None:
        self._stream.seek(0)
        shape = (self.length, *self._row)
        npy.write_array_header_1_0(
            self._stream, {"descr": npy.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        )

    def append(self, items: NDArray[Any]) -> None:
        """Append items (n, *row), cast to the dtype of the file."""
        assert items.shape[1:] == self._row
        self._stream.write(np.ascontiguousarray(items, dtype=self._dtype).data)
        self.length += len(items)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, *_: object) -> None:
        with self._stream:
            self._header()
            assert self._stream.tell() == self._data_start
            self._stream.flush()
            os.fsync(self._stream.fileno())


class Encoded(NamedTuple):
    """A batch of documents as tokens."""

    tokens: NDArray[Any]
    """(n,) every document behind its BOS."""
    lengths: NDArray[np.int64]
    """(documents,) tokens of each, its BOS included."""
    sizes: NDArray[np.int64]
    """(documents,) UTF-8 bytes of each."""


class Written(NamedTuple):
    """What was written of one split."""

    documents: int
    tokens: int
    bytes: int


class _Shard:
    """The two growing files of one split."""

    def __init__(self, folder: Path, split: Split, tokenizer: Tokenizer, limit: int | None) -> None:
        self.written = Written(0, 0, 0)
        self._limit = limit
        self._tokens = ArrayWriter(folder / f"{split}.tokens.npy", tokenizer.dtype)
        self._offsets = ArrayWriter(folder / f"{split}.offsets.npy", np.dtype(np.int64))
        self._offsets.append(np.zeros(1, dtype=np.int64))

    @property
    def full(self) -> bool:
        return self._limit is not None and self.written.tokens >= self._limit

    def append(self, batch: Encoded) -> None:
        """Write a batch, up to the document that reaches the limit."""
        documents, tokens, size = self.written
        ends = tokens + np.cumsum(batch.lengths)
        if self._limit is not None:
            ends = ends[: int(np.searchsorted(ends, self._limit)) + 1]
        count, total = len(ends), int(ends[-1])
        self._tokens.append(batch.tokens[: total - tokens])
        self._offsets.append(ends)
        self.written = Written(documents + count, total, size + int(batch.sizes[:count].sum()))

    def __enter__(self) -> _Shard:
        return self

    def __exit__(self, *_: object) -> None:
        with self._tokens, self._offsets:
            pass


def encode(texts: list[str], tokenizer: Tokenizer) -> Encoded:
    """Encode documents in this thread.

    Raises:
        DataError: the tokens of a document don't hold exactly the bytes of its text.
    """
    sizes = np.array([len(text.encode()) for text in texts], dtype=np.int64)
    tokens = tokenizer.encode_documents(texts)
    starts = np.flatnonzero(tokens == tokenizer.bos)
    lengths = np.diff(starts, append=len(tokens))
    raw = np.add.reduceat(tokenizer.token_bytes[tokens], starts, dtype=np.int64)
    if not np.array_equal(raw, sizes):
        wrong = int(np.flatnonzero(raw != sizes)[0])
        raise DataError(
            f"the tokenizer is wrong: {sizes[wrong]} bytes of text became tokens of {raw[wrong]} bytes; "
            f"the text begins {texts[wrong][:40]!r}",
            "report this as a bug, with the text",
        )
    return Encoded(tokens.astype(tokenizer.dtype), lengths, sizes)


def _batches(documents: Iterator[tuple[Split, str]], document_chars: int) -> Iterator[tuple[Split, list[str]]]:
    """Passages of one split each, about `_BATCH_CHARS` at a time, in the order of the text within each split."""
    pending: dict[Split, list[str]] = {split: [] for split in SPLITS}
    chars: dict[Split, int] = dict.fromkeys(SPLITS, 0)
    for split, document in documents:
        for passage in passages(document, document_chars):
            pending[split].append(passage)
            chars[split] += len(passage)
            if chars[split] >= _BATCH_CHARS:
                yield split, pending[split]
                pending[split], chars[split] = [], 0
    for split, rest in pending.items():
        if rest:
            yield split, rest


def write_shards(
    documents: Callable[[Set[str]], Iterator[tuple[Split, str]]],
    tokenizer: Tokenizer,
    folder: Path,
    *,
    document_chars: int = 0,
    limits: Mapping[Split, int] | None = None,
    workers: int | None = None,
    on_written: Callable[[Mapping[Split, Written]], None] = lambda _: None,
) -> dict[Split, Written]:
    """Encode all splits in one pass over the text into `{split}.tokens.npy` and `{split}.offsets.npy`.

    Memory is bounded: a few batches per worker are in flight.

    Args:
        documents: given the splits that are full, the documents of the others (`splits.Splits.documents`).
        folder: exists and holds none of these files.
        document_chars: longer documents are cut into passages; 0 leaves them whole.
        limits: tokens after which a split is full; it ends with the document that reaches them.
        workers: threads; None is one per core that this process may use.
        on_written: called after each batch with the state so far.

    Raises:
        DataError: see `encode`.
    """
    workers = workers or available_cores()
    limits = limits or {}
    own = threading.local()

    def start_worker() -> None:
        own.tokenizer = tokenizer.clone()

    def work(texts: list[str]) -> Encoded:
        return encode(texts, own.tokenizer)

    full: set[str] = set()
    in_flight: deque[tuple[Split, Future[Encoded]]] = deque()
    with ExitStack() as stack:
        shards = {s: stack.enter_context(_Shard(folder, s, tokenizer, limits.get(s))) for s in SPLITS}
        pool = ThreadPoolExecutor(workers, initializer=start_worker)
        stack.callback(pool.shutdown, cancel_futures=True)

        def drain(most: int) -> None:
            while len(in_flight) > most:
                split, future = in_flight.popleft()
                if split in full:
                    continue
                shards[split].append(future.result())
                if shards[split].full:
                    full.add(split)
                on_written({name: shard.written for name, shard in shards.items()})

        for split, texts in _batches(documents(full), document_chars):
            in_flight.append((split, pool.submit(work, texts)))
            drain(2 * workers)
        drain(0)
    return {name: shard.written for name, shard in shards.items()}


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
