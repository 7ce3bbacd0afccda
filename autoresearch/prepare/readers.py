"""Documents of one file: .txt, .jsonl and .parquet, streamed, with errors that name the place."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from autoresearch.core.errors import DataError
from autoresearch.core.extras import install_hint

END_OF_TEXT = b"<|endoftext|>"
COLUMN = "text"
_CHUNK = 1 << 20


def read_whole(path: Path) -> Iterator[str]:
    """The file as one document."""
    yield _decoded(path.read_bytes(), path)


def read_txt(path: Path) -> Iterator[str]:
    """Documents separated by `<|endoftext|>`, or by blank lines where that doesn't occur in the file.

    Raises:
        DataError: not UTF-8; names file and line.
    """
    with path.open("rb") as stream:
        pieces = _marked(stream) if _holds_mark(stream) else _paragraphs(stream)
        for piece in pieces:
            if document := piece.strip(b"\r\n"):
                yield _decoded(document, path)


def read_jsonl(path: Path) -> Iterator[str]:
    """The values of "text" of one JSON object per line; blank lines are skipped.

    Raises:
        DataError: a line that isn't such an object; names file and line.
    """
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                if not isinstance(row, dict) or not isinstance(row.get(COLUMN), str):
                    raise ValueError(f'expected an object with a string "{COLUMN}"')
                row[COLUMN].encode()  # an escaped lone surrogate is valid JSON, but no text
            except ValueError as error:
                raise DataError(
                    f"{path}:{number}: {error}", "one JSON object a line: {" + f'"{COLUMN}": "..."' + "}"
                ) from error
            yield row[COLUMN]


def read_parquet(path: Path) -> Iterator[str]:
    """The values of the column "text", a row group at a time.

    Raises:
        DataError: no Parquet file, no such column, an empty value, or pyarrow isn't installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(f"{path}: reading .parquet needs pyarrow", install_hint("hub")) from error
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            if COLUMN not in schema.names:
                raise DataError(f"{path}: no column {COLUMN!r}, only {', '.join(schema.names)}", "rename the column")
            kind = schema.field(COLUMN).type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise DataError(f"{path}: the column {COLUMN!r} holds {kind}, expected string", "convert the column")
            number = 0
            for batch in file.iter_batches(batch_size=1024, columns=[COLUMN]):
                for text in batch.column(0).to_pylist():
                    if text is None:
                        raise DataError(f"{path}: row {number} of the column {COLUMN!r} is null", "drop such rows")
                    number += 1
                    yield text
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: no readable Parquet file: {error}", "write or fetch it anew") from error


READERS: dict[str, Callable[[Path], Iterator[str]]] = {
    ".txt": read_txt,
    ".jsonl": read_jsonl,
    ".parquet": read_parquet,
}
"""By suffix."""


def _holds_mark(stream: IO[bytes]) -> bool:
    try:
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return view.find(END_OF_TEXT) >= 0
    except ValueError:  # an empty file can't be mapped
        return False


def _marked(stream: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while chunk := stream.read(_CHUNK):
        *complete, rest = (rest + chunk).split(END_OF_TEXT)
        yield from complete
    yield rest


def _paragraphs(stream: IO[bytes]) -> Iterator[bytes]:
    lines: list[bytes] = []
    for line in stream:
        if line.strip():
            lines.append(line)
        elif lines:
            yield b"".join(lines)
            lines = []
    yield b"".join(lines)


def _decoded(data: bytes, path: Path) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{_first_bad_line(path)}: not UTF-8: {error.reason}", "convert the file to UTF-8") from error


def _first_bad_line(path: Path) -> str:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return f"{path}:{number}"
    return str(path)
