import json

import numpy as np
import pytest

from autoresearch.core.errors import DataError
from autoresearch.prepare import other_text
from autoresearch.prepare.other_text import MIN_ROWS, rows_of_text
from autoresearch.prepare.tokenizer import Tokenizer

LINE = "The Senate of the Republic met again, and nobody spoke of the weather. "


@pytest.fixture
def tokens_of(dataset):
    file = dataset.path / "tokenizer.json"
    return Tokenizer.from_json(file.read_bytes(), str(file))


@pytest.fixture
def write(tmp_path):
    def build(suffix: str, documents: list[str]):
        path = tmp_path / f"text{suffix}"
        lines = "".join(json.dumps({"text": text}) + "\n" for text in documents)
        path.write_text("\n\n".join(documents) if suffix == ".txt" else lines)
        return path

    return build


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_rows_hold_the_text_in_the_tokens_of_the_data_set(suffix, dataset, write, tokens_of):
    documents = [f"{n}: {LINE}" for n in range(200)]
    rows = rows_of_text(write(suffix, documents), dataset, 10**6)
    assert rows.shape[1] == dataset.seq_len + 1
    assert rows.dtype == dataset.rows("val").dtype
    assert (rows[:, 0] == dataset.bos).all()
    pieces = {piece for row in rows for piece in tokens_of.decode(row).split("<|bos|>") if piece}
    assert all(any(document.startswith(piece) for document in documents) for piece in pieces)
    assert len(set(documents) & pieces) >= 100, "packing keeps every second document whole"


def test_a_long_document_fills_many_rows_and_a_limit_ends_them(dataset, write):
    path = write(".jsonl", [LINE * 2000])
    rows = rows_of_text(path, dataset, 10**6)
    assert len(rows) > 10 * MIN_ROWS
    assert np.array_equal(rows_of_text(path, dataset, 40), rows[:40])


def test_a_longer_text_is_not_read_to_its_end(dataset, write, monkeypatch):
    path = write(".txt", [f"{n} {LINE}" for n in range(5000)])
    seen = []
    encode = other_text.encode
    monkeypatch.setattr(other_text, "encode", lambda texts, tokenizer: seen.extend(texts) or encode(texts, tokenizer))
    assert len(rows_of_text(path, dataset, 20)) == 20
    assert len(seen) < 1000


@pytest.mark.parametrize("documents", [[], [" \n"], [LINE * 3]], ids=["nothing", "blanks", "a few words"])
def test_too_small_a_text_is_an_error_that_says_how_much_is_needed(documents, dataset, write):
    with pytest.raises(DataError, match="too little text") as raised:
        rows_of_text(write(".txt", documents), dataset, 100)
    assert f"{MIN_ROWS} rows" in raised.value.hint


def test_files_that_hold_no_text_are_errors(dataset, tmp_path):
    strange = tmp_path / "text.bin"
    strange.write_bytes(b"\x00")
    for path in (strange, tmp_path / "missing.txt", tmp_path):
        with pytest.raises(DataError, match=r"is no \.txt, \.jsonl, \.parquet file"):
            rows_of_text(path, dataset, 100)
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not UTF-8"):
        rows_of_text(broken, dataset, 100)
