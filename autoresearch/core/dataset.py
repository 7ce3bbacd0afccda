"""The read side of a prepared data set: what is in its folder, and the checks before it is used.

A data set is a folder named by its content key. `prepare` writes it once; after that it is only read, and only
through memory maps, so that a data set larger than the memory costs nothing to open.

    manifest.json                    facts, and the size and SHA-256 of every other file
    tokenizer.json                   the byte-pair encoding
    token_bytes.npy                  (V,) int32, raw bytes of each token, 0 for special tokens
    {train,val,test}.tokens.npy      (tokens,) uint16 or uint32, every document of the split behind its BOS
    {train,val,test}.offsets.npy     (documents + 1,) int64, where each document starts in them
    {train,val,test}.rows.npy        (N, T + 1) uint16 or uint32, packed; targets are the inputs one token later
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from autoresearch.core.errors import DataError

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
FORMAT = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
TOKEN_BYTES = "token_bytes.npy"
CONTENT = (
    TOKENIZER,
    TOKEN_BYTES,
    *(f"{split}.{kind}.npy" for split in SPLITS for kind in ("tokens", "offsets", "rows")),
)
"""Every file of a data set but the manifest."""
TRAINING_ROWS = "train.rows.npy"
REMEDY = "run `autoresearch prepare`, which makes it anew"


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest of uint16 and uint32 that holds every token id."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


@dataclass(frozen=True)
class SplitFacts:
    """What one split holds."""

    documents: int
    """Documents, or passages where the task cuts long documents."""
    tokens: int
    """One BOS for each of them included."""
    bytes: int
    """UTF-8 bytes of their text; equal to the raw bytes of the tokens."""
    rows: int


@dataclass(frozen=True)
class Dataset:
    """A prepared data set that passed the checks of `open_dataset`."""

    path: Path
    key: str
    """Content key: 16 hex digits of everything that shapes the content."""
    source: str
    """What the text came from, e.g. "sample"."""
    vocab_size: int
    """V, special tokens included."""
    seq_len: int
    """T."""
    bos: int
    """The token that begins every document."""
    splits: Mapping[Split, SplitFacts]

    def training_files(self) -> list[Path]:
        """All that `open_for_training` reads."""
        return [self.path / name for name in (MANIFEST, TRAINING_ROWS)]

    def rows(self, split: Split) -> NDArray[Any]:
        """The packed rows of a split, memory-mapped read-only: (N, T + 1) uint16 or uint32.

        Raises:
            DataError: the file isn't what the manifest says.
        """
        shape = (self.splits[split].rows, self.seq_len + 1)
        return _array(self.path / f"{split}.rows.npy", shape, token_dtype(self.vocab_size))

    def tokens(self, split: Split) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The documents of a split before packing, memory-mapped read-only.

        Returns:
            Tokens (n,) uint16 or uint32, and offsets (documents + 1,) int64: document i is
            `tokens[offsets[i]:offsets[i + 1]]`, its BOS first.

        Raises:
            DataError: a file isn't what the manifest says.
        """
        facts = self.splits[split]
        tokens = _array(self.path / f"{split}.tokens.npy", (facts.tokens,), token_dtype(self.vocab_size))
        offsets = _array(self.path / f"{split}.offsets.npy", (facts.documents + 1,), np.dtype(np.int64))
        return tokens, offsets

    def token_bytes(self) -> NDArray[np.int32]:
        """Raw bytes of each token, 0 for special tokens: (V,) int32.

        Raises:
            DataError: the file isn't what the manifest says.
        """
        return np.array(_array(self.path / TOKEN_BYTES, (self.vocab_size,), np.dtype(np.int32)))


def _array(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} can't be read: {error}", REMEDY) from error
    if array.shape != shape or array.dtype != dtype:
        raise DataError(f"{path} holds {array.dtype} {array.shape}, expected {dtype} {shape}", REMEDY)
    return cast(NDArray[Any], array)


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's content, in hex. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def manifest_json(dataset: Dataset, provenance: Mapping[str, Any]) -> str:
    """The manifest of a folder whose other files are all written.

    Args:
        provenance: what the key is made of, for people; nothing reads it back.
    """
    files = {
        name: {"size": (dataset.path / name).stat().st_size, "sha256": sha256_file(dataset.path / name)}
        for name in CONTENT
    }
    document = {
        "format": FORMAT,
        "key": dataset.key,
        "source": dataset.source,
        "vocab_size": dataset.vocab_size,
        "seq_len": dataset.seq_len,
        "bos": dataset.bos,
        "splits": {split: asdict(facts) for split, facts in dataset.splits.items()},
        "files": files,
        "provenance": dict(provenance),
    }
    return json.dumps(document, indent=1) + "\n"


def _read_manifest(path: Path) -> tuple[Dataset, dict[str, tuple[int, str]]]:
    """The facts, and (size, SHA-256) by file name."""
    manifest = path / MANIFEST
    try:
        document = json.loads(manifest.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"no prepared data at {path}", "run `autoresearch prepare`") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{manifest} can't be read: {error}", REMEDY) from error
    try:
        if document["format"] != FORMAT:
            raise DataError(f"{manifest} has format {document['format']!r}, expected {FORMAT}", REMEDY)
        dataset = Dataset(
            path=path,
            key=str(document["key"]),
            source=str(document["source"]),
            vocab_size=int(document["vocab_size"]),
            seq_len=int(document["seq_len"]),
            bos=int(document["bos"]),
            splits={split: SplitFacts(**document["splits"][split]) for split in SPLITS},
        )
        files = {
            name: (int(document["files"][name]["size"]), str(document["files"][name]["sha256"])) for name in CONTENT
        }
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{manifest} is damaged: {error!r}", REMEDY) from error
    return dataset, files


def open_dataset(path: Path, verify: bool = True) -> Dataset:
    """Open a prepared data set.

    Args:
        path: the folder of the data set.
        verify: compare the SHA-256 of every file too, which reads all of it. Sizes, shapes and dtypes are always
            compared.

    Raises:
        DataError: missing or damaged; names the file and the remedy.
    """
    dataset, files = _read_manifest(path)
    _check_files(path, files, verify)
    for split in SPLITS:
        dataset.rows(split)
        dataset.tokens(split)
    dataset.token_bytes()
    return dataset


def open_for_training(path: Path) -> Dataset:
    """Open a prepared data set of which nothing but `Dataset.training_files` need be there.

    Raises:
        DataError: missing or damaged; names the file and the remedy.
    """
    dataset, files = _read_manifest(path)
    _check_files(path, {TRAINING_ROWS: files[TRAINING_ROWS]}, verify=False)
    dataset.rows("train")
    return dataset


def _check_files(path: Path, files: Mapping[str, tuple[int, str]], verify: bool) -> None:
    """Compare sizes, and SHA-256 where `verify`.

    Raises:
        DataError: a file is missing or another one.
    """
    for name, (size, digest) in files.items():
        file = path / name
        try:
            found = file.stat().st_size
            if found != size:
                raise DataError(f"{file} has {found} bytes, expected {size}", REMEDY)
            if verify and sha256_file(file) != digest:
                raise DataError(f"{file} is damaged: its SHA-256 isn't the one in the manifest", REMEDY)
        except FileNotFoundError as error:
            raise DataError(f"{file} is missing", REMEDY) from error
        except OSError as error:
            raise DataError(f"{file} can't be read: {error}", REMEDY) from error
