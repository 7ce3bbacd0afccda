"""Encoding text into token shards on all cores, against one tiktoken thread on the same text.

    python benchmarks/encoding.py [--megabytes 20] [--vocab-size 4096]

The one thread calls `encode_ordinary` on every document and throws the lists away; the project's number includes the
arrays, the exact count of bytes and the files. Prints one line per way with the ratio.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Set
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import tiktoken

from autoresearch.core.dataset import Split
from autoresearch.prepare.shards import Encoded, available_cores, encode, write_shards
from autoresearch.prepare.stories import stories
from autoresearch.prepare.tokenizer import PATTERNS, Tokenizer

_of_process: list[Tokenizer] = []


def _use(document: str) -> None:
    _of_process.append(Tokenizer.from_json(document, "tokenizer"))


def _encode(texts: list[str]) -> Encoded:
    return encode(texts, _of_process[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--vocab-size", type=int, default=4096)
    arguments = parser.parse_args()
    texts = list(stories(arguments.megabytes))
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    tokenizer = Tokenizer.train(texts[: len(texts) // 4], arguments.vocab_size, "gpt4-digits2")
    plain = tiktoken.Encoding(
        "plain",
        pat_str=PATTERNS["gpt4-digits2"],
        mergeable_ranks={token: rank for rank, token in enumerate(tokenizer.tokens)},
        special_tokens={},
    )

    def documents(_: Set[str]) -> Iterator[tuple[Split, str]]:
        return (("train", text) for text in texts)

    start = time.perf_counter()
    for text in texts:
        plain.encode_ordinary(text)
    one = megabytes / (time.perf_counter() - start)
    print(f"encoding: one tiktoken thread {one:.1f} MB/s")
    cores = available_cores()
    for workers in sorted({1, cores}):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            write_shards(documents, tokenizer, Path(folder), workers=workers)
            rate = megabytes / (time.perf_counter() - start)
        print(f"encoding: {rate / one:.2f} x with {workers} threads, files written ({rate:.1f} MB/s)")
    # The way not taken, for comparison: processes, which pay for sending text and arrays.
    batches = [texts[i : i + 512] for i in range(0, len(texts), 512)]
    with ProcessPoolExecutor(cores, initializer=_use, initargs=(tokenizer.to_json(),)) as pool:
        list(pool.map(_encode, batches[:cores]))
        start = time.perf_counter()
        list(pool.map(_encode, batches))
        rate = megabytes / (time.perf_counter() - start)
    print(f"encoding: {rate / one:.2f} x with {cores} processes, no files ({rate:.1f} MB/s)")


if __name__ == "__main__":
    main()
