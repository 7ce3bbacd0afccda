"""Which document belongs to train, val or test: by whole document, fixed by content.

A document is known by a 64-bit hash of its text. Val and test are sets of such hashes, all else is train, so exact
duplicates end in one split wherever they stand. Where a data set pins its held-out shard, the sets come from that
shard; otherwise documents are dealt in the order of their hashes until val and test hold what the task asks.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from autoresearch.core.dataset import Split
from autoresearch.core.errors import DataError

RULE = 1
"""Version of the rule, part of a data set's key."""
MAX_HELD_OUT_SHARE = 0.1
"""Of the text, for each of val and test."""

Documents = Callable[[], Iterator[str]]


@dataclass(frozen=True)
class Splits:
    """Text dealt into splits."""

    documents: Callable[[Set[str]], Iterator[tuple[Split, str]]]
    """Given the splits that are full by now: all documents of the others, in the order of the source."""
    train_bytes: int | None
    """UTF-8 bytes of the train split; None where it is only known once it has been read."""


def content_hash(text: str) -> int:
    """64 bits of the text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _not_empty(documents: Documents) -> Documents:
    """The documents that have text: an empty one would fill a held-out split by itself."""
    return lambda: (text for text in documents() if text.strip())


def split_by_content(
    documents: Documents,
    held_out_bytes: int,
    limit_bytes: int | None = None,
    usable: Callable[[int], int] = lambda size: size,
) -> Splits:
    """Deal documents by their hash.

    Args:
        documents: starts a pass over the text; passes are equal.
        held_out_bytes: usable bytes that val and test should hold each; at most a tenth of the text is given.
        limit_bytes: documents are read until this many UTF-8 bytes; None is all.
        usable: the bytes that count of a document of so many UTF-8 bytes.

    Raises:
        DataError: fewer than three distinct documents.
    """
    documents = _not_empty(documents)
    hashes, sizes = array("Q"), array("q")
    total = 0
    for text in documents():
        if limit_bytes is not None and total >= limit_bytes:
            break
        data = len(text.encode())
        hashes.append(content_hash(text))
        sizes.append(data)
        total += data
    # np.unique sorts: this is the order of the hashes, as good as a random one and the same on every machine.
    distinct, which = np.unique(np.asarray(hashes, dtype=np.uint64), return_inverse=True)
    counted = np.array([usable(size) for size in sizes], dtype=np.int64)
    if len(distinct) < 3:
        raise DataError(
            f"the text has {len(distinct)} distinct documents ({total} bytes); train, val and test need one each",
            "give more text, or separate its documents: blank lines or <|endoftext|> in .txt, one line each in .jsonl",
        )
    target = min(held_out_bytes, int(counted.sum() * MAX_HELD_OUT_SHARE))
    # With every copy of it, so that a text full of duplicates doesn't fill the held-out splits.
    counted = np.bincount(which, weights=counted, minlength=len(distinct)).astype(np.int64)
    val = _deal(distinct, counted, target, spare=2)
    rest = ~np.isin(distinct, np.fromiter(val, dtype=np.uint64))
    test = _deal(distinct[rest], counted[rest], target, spare=1)
    count = len(hashes)

    def dealt(full: Set[str]) -> Iterator[tuple[Split, str]]:
        for known, text in zip(hashes, islice(documents(), count), strict=True):
            split = _split_of(known, val, test)
            if split not in full:
                yield split, text

    held_out = sum(size for known, size in zip(hashes, sizes, strict=True) if known in val or known in test)
    return Splits(dealt, total - held_out)


def split_by_shard(documents: Documents, held_out: Documents) -> Splits:
    """Take val and test from a pinned shard: the first two thirds of its documents and the rest.

    Documents of the train shards that are also held out are left out of train.

    Raises:
        DataError: the pinned shard has fewer than two distinct documents.
    """
    hashes = [content_hash(text) for text in held_out()]
    cut = (2 * len(hashes) + 2) // 3
    val = frozenset(hashes[:cut])
    test = frozenset(hashes[cut:]) - val
    if not val or not test:
        raise DataError(
            f"the pinned validation shard has {len(val) + len(test)} distinct documents; val and test need one each",
            "check the data set's source",
        )

    def dealt(full: Set[str]) -> Iterator[tuple[Split, str]]:
        for known, text in zip(hashes, held_out(), strict=True):
            yield _split_of(known, val, test), text
        for text in documents():
            if "train" in full:
                return
            if _split_of(content_hash(text), val, test) == "train":
                yield "train", text

    return Splits(dealt, None)


def _split_of(known: int, val: Set[int], test: Set[int]) -> Split:
    return "val" if known in val else "test" if known in test else "train"


def _deal(hashes: NDArray[np.uint64], sizes: NDArray[np.int64], target: int, spare: int) -> frozenset[int]:
    """Documents for one held-out split: each in turn that fits into what is missing; at least one, sparing some."""
    chosen: list[int] = []
    missing = target
    smallest = int(sizes.min())
    for known, size in zip(hashes.tolist(), sizes.tolist(), strict=True):
        if missing < smallest or len(chosen) == len(hashes) - spare:
            break
        if size <= missing:
            chosen.append(known)
            missing -= size
    return frozenset(chosen or [int(hashes[np.argmin(sizes)])])
