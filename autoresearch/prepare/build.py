"""Preparing a data set: text → splits → tokenizer → token shards → packed rows, once, under a content key."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from autoresearch.core import dataset as layout
from autoresearch.core.dataset import SPLITS, Dataset, Split, SplitFacts, open_dataset
from autoresearch.core.errors import DataError
from autoresearch.core.files import io_error, sync_directory, write_atomic
from autoresearch.core.task import Task
from autoresearch.prepare import packing, splits
from autoresearch.prepare.shards import ArrayWriter, Written, write_shards
from autoresearch.prepare.sources import Corpus, Texts, resolve_source
from autoresearch.prepare.tokenizer import Tokenizer, split_pattern

log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done, 0..1."""

_TOKENIZER_BYTES = 50_000_000
"""Of text, that merges are learned from."""
_BYTES_PER_TOKEN = 5
"""Of text, before its tokenizer is known: rather more than it will be."""
_PACKING_SLACK = 1.5
"""Held-out text per text in rows, for what packing crops."""
_LOW_KEPT_SHARE = 0.25
"""Of the train tokens in rows; below it the user is told."""


def cache_root() -> Path:
    """Where prepared data are kept: AUTORESEARCH_CACHE, XDG_CACHE_HOME/autoresearch or ~/.cache/autoresearch."""
    if own := os.environ.get("AUTORESEARCH_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "autoresearch"
    return Path.home() / ".cache" / "autoresearch"


def _provenance(task: Task, corpus: Corpus) -> dict[str, Any]:
    """Everything that shapes the content of a data set."""
    return {
        "format": layout.FORMAT,
        "source": corpus.identity,
        "split_rule": splits.RULE,
        "packing_rule": packing.VERSION,
        "trainer": f"rustbpe {version('rustbpe')}",
        "split_pattern": split_pattern(task.split_pattern),
        "vocab_size": task.vocab_size,
        "seq_len": task.seq_len,
        "document_chars": task.document_chars,
        "train_tokens": task.train_tokens,
        "val_tokens": task.val_tokens,
    }


def dataset_key(task: Task, corpus: Corpus) -> str:
    """16 hex digits of everything that shapes the content, the name of the data set's folder."""
    return hashlib.sha256(json.dumps(_provenance(task, corpus), sort_keys=True).encode()).hexdigest()[:16]


def prepare(task: Task, source: str, cache: Path, progress: Progress, workers: int | None = None) -> Dataset:
    """Make a data set, or verify the one that is there.

    Safe to call from several processes at once: one builds, the others wait and use what it built. An interruption
    leaves nothing under the final name.

    Args:
        source: see `sources.resolve_source`, which tells beforehand what it will be and whether it is a fallback.
        cache: folder of all data sets, made where missing; `cache_root()` by default of the command line.
        workers: threads that encode; None is one per core. The result doesn't depend on it.

    Returns:
        The data set, every file verified.

    Raises:
        UsageError: no such source or split pattern.
        DataError: text missing, damaged or too little; a file of the hub missing.
        AutoresearchError: the cache can't be written.
    """
    corpus = resolve_source(task, source, cache)
    if corpus.notice:
        log.warning(corpus.notice)
    key = dataset_key(task, corpus)
    target = cache / key
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{key}.lock", progress):
            if target.exists():
                progress("verifying the prepared data", 0.0)
                try:
                    return _verified(target)
                except DataError as error:
                    log.warning("%s; preparing it anew", error.message)
            building = cache / f"{key}.building"
            _remove(building)
            try:
                building.mkdir()
                _build(task, corpus, key, building, progress, workers)
                _remove(target)
                building.replace(target)
            except BaseException:
                _remove(building)
                raise
            sync_directory(cache)
    except OSError as error:
        raise io_error("write", target, error) from error
    return open_dataset(target, verify=False)


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress("waiting for another process that prepares the same data", 0.0)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _verified(folder: Path) -> Dataset:
    """Open a data set after all checks. Raises DataError."""
    opened = open_dataset(folder)
    file = folder / layout.TOKENIZER
    tokenizer = Tokenizer.from_json(file.read_bytes(), str(file))
    if not np.array_equal(tokenizer.token_bytes, opened.token_bytes()):
        raise DataError(f"{folder / layout.TOKEN_BYTES} doesn't belong to {layout.TOKENIZER}", layout.REMEDY)
    return opened


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _build(task: Task, corpus: Corpus, key: str, folder: Path, progress: Progress, workers: int | None) -> None:
    """Write every file of the data set into an empty folder, the manifest last."""
    texts = corpus.load(progress)
    progress("splitting the text", 0.0)
    dealt = _split(task, texts)
    progress("training the tokenizer", 0.0)
    tokenizer = Tokenizer.train(_tokenizer_texts(dealt), task.vocab_size, task.split_pattern)
    write_atomic(folder / layout.TOKENIZER, tokenizer.to_json())
    with ArrayWriter(folder / layout.TOKEN_BYTES, np.dtype(np.int32)) as writer:
        writer.append(tokenizer.token_bytes)

    def on_written(written: Mapping[Split, Written]) -> None:
        shares = []
        if dealt.train_bytes:
            shares.append(written["train"].bytes / dealt.train_bytes)
        if task.train_tokens:
            shares.append(written["train"].tokens / task.train_tokens)
        progress("encoding", min(1.0, max(shares, default=0.0)))

    shards = write_shards(
        dealt.documents,
        tokenizer,
        folder,
        document_chars=task.document_chars,
        limits={"train": task.train_tokens} if task.train_tokens else {},
        workers=workers,
        on_written=on_written,
    )
    facts = {}
    for i, split in enumerate(SPLITS):
        progress("packing", i / len(SPLITS))
        rows = _pack_split(task, split, shards[split], folder, tokenizer)
        facts[split] = SplitFacts(shards[split].documents, shards[split].tokens, shards[split].bytes, rows)
    kept = facts["train"].rows * (task.seq_len + 1) / facts["train"].tokens
    if kept < _LOW_KEPT_SHARE:
        log.warning(
            "packing keeps only %.0f %% of the train text, because documents are longer than rows of %d tokens: "
            "[task] document_chars = %d would cut them into passages",
            100 * kept,
            task.seq_len + 1,
            3 * task.seq_len,
        )
    built = Dataset(folder, key, corpus.name, tokenizer.vocab_size, task.seq_len, tokenizer.bos, facts)
    write_atomic(folder / layout.MANIFEST, layout.manifest_json(built, _provenance(task, corpus)))


def _split(task: Task, texts: Texts) -> splits.Splits:
    if texts.held_out is not None:
        return splits.split_by_shard(texts.documents, texts.held_out)
    row_bytes = (task.seq_len + 1) * _BYTES_PER_TOKEN

    def usable(size: int) -> int:
        """A passage longer than a row fills one row at most."""
        passages = -(-size // task.document_chars) if task.document_chars else 1
        return min(size, passages * row_bytes)

    held_out = int(task.val_tokens * _BYTES_PER_TOKEN * _PACKING_SLACK)
    # A bounded source is read twice as far as it should need: the train split is cut off exactly later.
    limit = 2 * (task.train_tokens * _BYTES_PER_TOKEN + 2 * held_out) if task.train_tokens else None
    return splits.split_by_content(texts.documents, held_out, limit, usable)


def _tokenizer_texts(dealt: splits.Splits) -> Iterator[str]:
    """Train documents that the merges are learned from: spread over the split, or its start where it is shuffled."""
    train = (text for split, text in dealt.documents(frozenset({"val", "test"})) if split == "train")
    stride = max(1, -(-(dealt.train_bytes or 0) // _TOKENIZER_BYTES))
    size = 0
    for text in islice(train, 0, None, stride):
        yield text
        size += len(text.encode())
        if size >= _TOKENIZER_BYTES:
            return


def _pack_split(task: Task, split: Split, shard: Written, folder: Path, tokenizer: Tokenizer) -> int:
    """Write the rows of a split; returns how many.

    Raises:
        DataError: not enough text for a single row.
    """
    row_len = task.seq_len + 1
    max_rows = None if split == "train" else max(1, task.val_tokens // task.seq_len)
    tokens = np.load(folder / f"{split}.tokens.npy", mmap_mode="r", allow_pickle=False)
    offsets = np.load(folder / f"{split}.offsets.npy", mmap_mode="r", allow_pickle=False)
    packed = packing.pack(np.diff(offsets), row_len, max_rows=max_rows)
    if packed.rows == 0:
        raise DataError(
            f"the {split} split has too little text: {shard.documents} documents, {shard.bytes} bytes, "
            f"{shard.tokens} tokens; one row needs {row_len} tokens",
            "give more text, or a task with a shorter seq_len",
        )
    with ArrayWriter(folder / f"{split}.rows.npy", tokenizer.dtype, (row_len,)) as writer:
        for block in packing.gather(packed, tokens, offsets, row_len):
            writer.append(block)
    return packed.rows
