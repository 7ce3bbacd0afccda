import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearch.core.errors import DataError
from autoresearch.core.rows import RowStream

ROWS = np.arange(13 * 4, dtype=np.uint16).reshape(13, 4)


def test_every_epoch_visits_each_row_once_in_its_own_order():
    stream = RowStream(ROWS, seed=3)
    epochs = [stream.take(13)[:, 0].tolist() for _ in range(4)]
    assert all(sorted(epoch) == ROWS[:, 0].tolist() for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=12))
def test_the_stream_does_not_depend_on_the_sizes_of_the_takes(sizes):
    stream = RowStream(ROWS, seed=7)
    taken = np.concatenate([np.zeros((0, 4), np.int32), *(stream.take(n) for n in sizes)])
    assert np.array_equal(taken, RowStream(ROWS, seed=7).take(sum(sizes)))


def test_seeds_give_other_streams_and_the_same_seed_the_same():
    first = [RowStream(ROWS, seed).take(30).tolist() for seed in (0, 1, 2**63)]
    assert first[0] != first[1] != first[2] != first[0]
    assert RowStream(ROWS, 2**63).take(30).tolist() == first[2]


def test_the_order_stays_what_it_is():
    # Scores of one task are compared over versions of the program: another order would be another task.
    expected = [0, 12, 7, 10, 9, 3, 6, 5, 2, 4, 11, 1, 8, 7, 4, 10, 8, 0, 2, 3]
    assert (RowStream(ROWS, seed=42).take(20)[:, 0] // 4).tolist() == expected


def test_rows_are_fresh_int32_whole_rows(tmp_path):
    np.save(tmp_path / "rows.npy", ROWS)
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
    taken = RowStream(rows, seed=0).take(5)
    assert taken.dtype == np.int32 and type(taken) is np.ndarray and taken.flags.owndata
    assert all(row.tolist() in ROWS.tolist() for row in taken)


def test_wide_tokens_keep_their_value():
    rows = np.full((2, 3), 2**20 - 1, dtype=np.uint32)
    assert (RowStream(rows, 0).take(2) == 2**20 - 1).all()


def test_no_rows_is_an_error_at_once():
    with pytest.raises(DataError, match="no rows") as raised:
        RowStream(ROWS[:0], seed=0)
    assert raised.value.hint
