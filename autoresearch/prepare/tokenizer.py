"""Byte-pair encoding: trained by rustbpe, used through tiktoken, stored as JSON.

Ids 0..255 are the bytes, merges follow in the order they were learned, and the last four ids are special: the first of
them is BOS, the others are reserved. Text never encodes to a special token.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import rustbpe
import tiktoken
from numpy.typing import NDArray

from autoresearch.core.dataset import REMEDY, token_dtype
from autoresearch.core.errors import DataError, UsageError, did_you_mean

FORMAT = 1
SPECIAL_TOKENS = ("<|bos|>", "<|reserved_1|>", "<|reserved_2|>", "<|reserved_3|>")
BOS = SPECIAL_TOKENS[0]

# How text is cut before merging: contractions, words with one leading character, numbers, punctuation, white space.
PATTERNS = {
    # The pattern of GPT-4 with numbers of at most two digits instead of three: fewer tokens go to rare numbers.
    "gpt4-digits2": "|".join(
        (
            r"'(?i:[sdmt]|ll|ve|re)",
            r"[^\r\n\p{L}\p{N}]?+\p{L}+",
            r"\p{N}{1,2}",
            r" ?[^\s\p{L}\p{N}]++[\r\n]*",
            r"\s*[\r\n]",
            r"\s+(?!\S)",
            r"\s+",
        )
    ),
}


def split_pattern(name: str) -> str:
    """The regular expression of a named pattern.

    Raises:
        UsageError: no such pattern; the hint names the nearest.
    """
    if name not in PATTERNS:
        raise UsageError(f"[task] no split_pattern {name!r}", did_you_mean(name, PATTERNS))
    return PATTERNS[name]


class Tokenizer:
    """A byte-pair encoding with V tokens."""

    def __init__(self, tokens: Sequence[bytes], pattern: str) -> None:
        """Args:
            tokens: (V - 4,) the bytes of each token in rank order, single bytes first.
            pattern: name of the split pattern.

        Raises:
            ValueError: the tokens are no byte-pair encoding.
        """
        _check_ranks(tokens)
        self.tokens = tuple(tokens)
        self.pattern = pattern
        self.vocab_size = len(tokens) + len(SPECIAL_TOKENS)
        self.bos = len(tokens)
        self.dtype = token_dtype(self.vocab_size)
        self._encoding = tiktoken.Encoding(
            "autoresearch",
            pat_str=split_pattern(pattern),
            mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
            special_tokens={name: len(tokens) + i for i, name in enumerate(SPECIAL_TOKENS)},
            explicit_n_vocab=self.vocab_size,
        )

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, pattern: str) -> Tokenizer:
        """Learn merges.

        Raises:
            DataError: the text is too small to give that many merges.
        """
        trainer = rustbpe.Tokenizer()
        merged = vocab_size - len(SPECIAL_TOKENS)
        trainer.train_from_iterator(iter(texts), merged, pattern=split_pattern(pattern))
        tokens = [bytes(token) for token, _ in sorted(trainer.get_mergeable_ranks(), key=lambda pair: pair[1])]
        if len(tokens) < merged:
            raise DataError(
                f"the train text gives a vocabulary of {len(tokens) + len(SPECIAL_TOKENS)} tokens, "
                f"the task asks for {vocab_size}",
                f"give more text, or set vocab_size to at most {len(tokens) + len(SPECIAL_TOKENS)}",
            )
        return cls(tokens, pattern)

    def clone(self) -> Tokenizer:
        """An equal tokenizer for another thread.

        Threads that share one take half as long again: the regular expression engine keeps its scratch space ready for
        the first thread that used it, and the others queue for theirs.
        """
        return Tokenizer(self.tokens, self.pattern)

    def encode(self, text: str) -> NDArray[np.uint32]:
        """Token ids of a text, (n,) uint32; text that looks like a special token is ordinary text."""
        return self._encoding.encode_to_numpy(text, disallowed_special=())

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.uint32]:
        """Documents one after another, a BOS before each: (n,) uint32, equal to `encode` of each.

        One call for many documents: threads that encode short ones would spend their time on handing over the
        interpreter's lock. tiktoken encodes the text between special tokens by itself, so documents don't mix.
        """
        if any(BOS in text for text in texts):
            bos = np.array([self.bos], dtype=np.uint32)
            return np.concatenate([piece for text in texts for piece in (bos, self.encode(text))])
        joined = BOS + BOS.join(texts)
        return self._encoding.encode_to_numpy(joined, allowed_special={BOS}, disallowed_special=())

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; special tokens show by name, bytes cut within a character as U+FFFD."""
        return self._encoding.decode([int(i) for i in ids])

    @cached_property
    def token_bytes(self) -> NDArray[np.int32]:
        """Raw bytes of each token, 0 for special tokens: (V,) int32."""
        ordinary = [len(self._encoding.decode_single_token_bytes(i)) for i in range(self.bos)]
        return np.array(ordinary + [0] * len(SPECIAL_TOKENS), dtype=np.int32)

    def to_json(self) -> str:
        document = {
            "format": FORMAT,
            "pattern": self.pattern,
            "special_tokens": list(SPECIAL_TOKENS),
            "tokens": [base64.b64encode(token).decode() for token in self.tokens],
        }
        return json.dumps(document, indent=0) + "\n"

    @classmethod
    def from_json(cls, data: bytes | str, where: str) -> Tokenizer:
        """The inverse of `to_json`.

        Args:
            where: the file that errors name.

        Raises:
            DataError: not such a document; nothing in it is executed and no pattern but a known one is used.
        """
        try:
            document: Any = json.loads(data)
            if not isinstance(document, dict) or document.get("format") != FORMAT:
                raise ValueError(f"not a tokenizer of format {FORMAT}")
            if document.get("special_tokens") != list(SPECIAL_TOKENS):
                raise ValueError("other special tokens")
            if document.get("pattern") not in PATTERNS:
                raise ValueError(f"unknown split pattern {document.get('pattern')!r}")
            return cls([base64.b64decode(token, validate=True) for token in document["tokens"]], document["pattern"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{where} is damaged: {error}", REMEDY) from error


def _check_ranks(tokens: Sequence[bytes]) -> None:
    """Every byte is its own rank, every later token joins two earlier ones, none comes twice."""
    if list(tokens[:256]) != [bytes([value]) for value in range(256)]:
        raise ValueError("ranks 0 to 255 aren't the bytes")
    known = set(tokens[:256])
    for rank, token in enumerate(tokens[256:], start=256):
        if token in known or not any(token[:i] in known and token[i:] in known for i in range(1, len(token))):
            raise ValueError(f"rank {rank} isn't a new join of two earlier tokens")
        known.add(token)
