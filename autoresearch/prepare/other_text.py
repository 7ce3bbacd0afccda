"""Rows of a text that belongs to no split: what an audit scores besides, with the tokenizer of a data set."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoresearch.core.dataset import TOKENIZER, Dataset
from autoresearch.core.errors import DataError
from autoresearch.prepare.packing import gather, pack
from autoresearch.prepare.passages import passages
from autoresearch.prepare.readers import READERS
from autoresearch.prepare.shards import encode
from autoresearch.prepare.tokenizer import Tokenizer

MIN_ROWS = 16
"""Fewer say too little about a domain."""
PASSAGE_CHARS_PER_TOKEN = 3
"""Long documents are cut into passages that a row holds whole, so that packing drops little."""
SPARE = 2
"""Tokens that are read per token of the most rows, for what packing drops."""
_BATCH = 256


def rows_of_text(path: Path, dataset: Dataset, max_rows: int) -> NDArray[Any]:
    """Encode and pack a text as a data set's own rows are.

    Args:
        path: a .txt, .jsonl or .parquet file.
        dataset: gives tokenizer and row length.
        max_rows: the start of a longer text is taken.

    Returns:
        (N, T + 1) uint16 or uint32, MIN_ROWS <= N <= max_rows; each row begins with a BOS.

    Raises:
        DataError: no such file, of another kind, damaged, or too small.
    """
    if path.suffix not in READERS or not path.is_file():
        raise DataError(f"{path} is no {', '.join(READERS)} file", "name a text file of another domain: --text FILE")
    stored = dataset.path / TOKENIZER
    tokenizer = Tokenizer.from_json(stored.read_bytes(), str(stored))
    row_len = dataset.seq_len + 1
    try:
        tokens, lengths = _encoded(path, tokenizer, dataset.seq_len, SPARE * max_rows * row_len)
    except OSError as error:
        raise DataError(f"can't read {path}: {error.strerror or error}", "check the file") from error
    packed = pack(lengths, row_len, max_rows=max_rows)
    needed = min(MIN_ROWS, max_rows)
    if packed.rows < needed:
        raise DataError(
            f"{path} has too little text: its {len(tokens)} tokens fill {packed.rows} rows of {row_len}",
            f"give a text that fills {needed} rows, about {needed * row_len * 5 // 1000 + 1} kB",
        )
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return np.concatenate([*gather(packed, tokens, offsets, row_len)])


def _encoded(path: Path, tokenizer: Tokenizer, seq_len: int, enough: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The tokens of the first passages of a text, and the length of each passage."""
    pieces, lengths, total = [], [], 0
    for batch in _batches(path, seq_len * PASSAGE_CHARS_PER_TOKEN):
        encoded = encode(batch, tokenizer)
        pieces.append(encoded.tokens)
        lengths.append(encoded.lengths)
        total += len(encoded.tokens)
        if total >= enough:
            break
    if not pieces:
        return np.empty(0, tokenizer.dtype), np.empty(0, np.int64)
    return np.concatenate(pieces), np.concatenate(lengths)


def _batches(path: Path, passage_chars: int) -> Iterator[list[str]]:
    documents = (text for text in READERS[path.suffix](path) if text.strip())
    cut = chain.from_iterable(passages(text, passage_chars) for text in documents)
    while batch := list(islice(cut, _BATCH)):
        yield batch
