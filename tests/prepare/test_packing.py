from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearch.prepare.packing import gather, pack


def scan(documents: list[list[int]], row_len: int, buffer_size: int) -> list[list[int]]:
    """The rule stated plainly: longest that fits, oldest among equals; else crop the shortest."""
    upcoming, buffer, rows, row = list(documents), [], [], []
    while True:
        while upcoming and len(buffer) < buffer_size:
            buffer.append(upcoming.pop(0))
        if not buffer:
            return rows
        room = row_len - len(row)
        fitting = [d for d in buffer if len(d) <= room]
        chosen = max(fitting, key=len) if fitting else min(buffer, key=len)
        buffer.remove(chosen)
        row = row + chosen[:room]
        if len(row) == row_len:
            rows.append(row)
            row = []


def packed_rows(documents: list[list[int]], row_len: int, buffer: int, max_rows: int | None = None) -> np.ndarray:
    tokens = np.array([t for d in documents for t in d], dtype=np.uint16)
    offsets = np.cumsum([0, *map(len, documents)])
    packing = pack(np.diff(offsets), row_len, buffer, max_rows)
    return np.concatenate([np.zeros((0, row_len), np.uint16), *gather(packing, tokens, offsets, row_len)])


def distinct_documents(lengths: list[int]) -> list[list[int]]:
    """Every document has its own token, its position counted from there; so rows tell who is in them."""
    return [[i * 40 + j for j in range(n)] for i, n in enumerate(lengths)]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=120), st.integers(1, 30), st.integers(1, 20))
def test_rows_equal_those_of_the_plain_rule(lengths, row_len, buffer):
    documents = distinct_documents(lengths)
    expected = scan(documents, row_len, buffer)
    assert packed_rows(documents, row_len, buffer).tolist() == expected


def test_the_comparison_notices_another_rule():
    documents = distinct_documents([3, 5, 4, 5, 2, 6])
    first_fit = [[*documents[0], *documents[1]]]
    assert scan(documents, 8, 3)[0] != first_fit[0]
    assert scan(documents, 8, 3) == packed_rows(documents, 8, 3).tolist()


def test_longest_that_fits_then_oldest_among_equals():
    rows = packed_rows(distinct_documents([2, 4, 4, 2]), 8, 10)
    assert rows.tolist() == [[40, 41, 42, 43, 80, 81, 82, 83]]


def test_crops_the_shortest_only_when_none_fits_and_drops_its_remainder():
    rows = packed_rows(distinct_documents([6, 5, 3]), 8, 10)
    # 6 fits; of 5 and 3 none fits the remaining 2, so the shortest is cropped. The 5 can't fill a row: dropped.
    assert rows.tolist() == [[0, 1, 2, 3, 4, 5, 80, 81]]


def test_documents_longer_than_a_row_are_cropped_shortest_first():
    rows = packed_rows(distinct_documents([30, 20, 25]), 8, 10)
    assert rows[:, 0].tolist() == [40, 80, 0]


def test_the_buffer_limits_the_choice():
    lengths = [5, 1, 3]
    assert packed_rows(distinct_documents(lengths), 8, 2).tolist() == [[0, 1, 2, 3, 4, 80, 81, 82]]
    assert packed_rows(distinct_documents(lengths), 8, 1).tolist() == [[0, 1, 2, 3, 4, 40, 80, 81]]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=120), st.integers(1, 30))
def test_every_row_begins_a_document_and_no_document_comes_twice(lengths, row_len):
    packing = pack(np.array(lengths, dtype=np.int64), row_len)
    assert packing.lengths.sum() == packing.rows * row_len
    assert max(Counter(packing.documents.tolist()).values(), default=1) == 1
    ends = np.cumsum(packing.lengths)
    assert set(range(row_len, packing.rows * row_len + 1, row_len)) <= set(ends.tolist())


def test_max_rows_are_the_first_rows():
    documents = distinct_documents([3, 7, 2, 9, 4, 4, 1, 6] * 5)
    assert packed_rows(documents, 8, 5, max_rows=3).tolist() == packed_rows(documents, 8, 5)[:3].tolist()


@pytest.mark.parametrize("row_len", [5, 64])
def test_gathering_in_blocks_gives_the_same_rows(row_len, monkeypatch):
    documents = distinct_documents(np.random.default_rng(0).integers(1, 40, 200).tolist())
    whole = packed_rows(documents, row_len, 50)
    monkeypatch.setattr("autoresearch.prepare.packing._GATHER_TOKENS", 3 * row_len)
    assert len(whole) > 12
    assert np.array_equal(packed_rows(documents, row_len, 50), whole)
