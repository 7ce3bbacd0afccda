import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autoresearch.core.errors import DataError
from autoresearch.prepare import readers
from autoresearch.prepare.readers import read_jsonl, read_parquet, read_txt, read_whole


def test_blank_lines_separate_documents(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n\none\ntwo\n\n \t\nthree \r\n\r\nfour")
    assert list(read_txt(path)) == ["one\ntwo", "three ", "four"]


def test_only_the_mark_separates_where_it_occurs(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\n\ntwo\n<|endoftext|>\nthree\n<|endoftext|><|endoftext|>\n", encoding="utf-8")
    assert list(read_txt(path)) == ["one\n\ntwo", "three"]


@pytest.mark.parametrize("chunk", [1, 5, 14, 1000])
def test_the_mark_is_found_across_chunks(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(readers, "_CHUNK", chunk)
    path = tmp_path / "a.txt"
    path.write_text("<|endoftext|>".join(["é1", "two <|endof", "three|>", "four"]), encoding="utf-8")
    assert list(read_txt(path)) == ["é1", "two <|endof", "three|>", "four"]


def test_an_empty_file_has_no_documents(tmp_path):
    for name, read in (("a.txt", read_txt), ("a.jsonl", read_jsonl)):
        (tmp_path / name).touch()
        assert list(read(tmp_path / name)) == []


@pytest.mark.parametrize("read", [read_txt, read_whole])
def test_text_that_is_not_utf8_names_file_and_line(tmp_path, read):
    path = tmp_path / "latin.txt"
    path.write_bytes("first\n\nsecond\ncaf\xe9\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin\.txt:4: not UTF-8"):
        list(read(path))


def test_jsonl_takes_the_text_of_each_line(tmp_path):
    path = tmp_path / "a.jsonl"
    texts = ["one\n\ntwo", "<|endoftext|> is text here", "日本"]
    path.write_text("\n".join(json.dumps({"id": 1, "text": text}) for text in texts) + "\n\n", encoding="utf-8")
    assert list(read_jsonl(path)) == texts


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"txt": "a"}', '{"text": 3}', r'{"text": "\ud800"}', b'{"text": "caf\xe9"}'], ids=repr
)
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "good"}\n' + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    with pytest.raises(DataError, match=r"a\.jsonl:2: "):
        list(read_jsonl(path))


def test_parquet_takes_the_column_text_over_row_groups(tmp_path):
    path = tmp_path / "a.parquet"
    texts = [f"text {i} é" for i in range(2500)]
    pq.write_table(pa.table({"n": range(2500), "text": texts}), path, row_group_size=700)
    assert list(read_parquet(path)) == texts


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"body": ["a"]}, "no column 'text', only body"),
        ({"text": [1]}, "holds int64, expected string"),
        ({"text": ["a", None]}, "row 1 of the column 'text' is null"),
    ],
)
def test_parquet_without_usable_text_is_refused(tmp_path, columns, message):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(DataError, match=message):
        list(read_parquet(path))


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a" * 1000]}), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"a\.parquet: no readable Parquet file"):
        list(read_parquet(path))
