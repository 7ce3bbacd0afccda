from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearch.core.errors import DataError
from autoresearch.prepare.splits import Splits, split_by_content, split_by_shard


def dealt(splits: Splits, full=frozenset()) -> dict[str, list[str]]:
    texts = defaultdict(list)
    for split, text in splits.documents(full):
        texts[split].append(text)
    return texts


def by_content(texts: list[str], held_out: int = 200, limit: int | None = None) -> Splits:
    return split_by_content(lambda: iter(texts), held_out, limit)


MANY = [f"document {i} " + "x" * (i * 37 % 60) for i in range(500)]


def test_splits_are_disjoint_complete_and_of_the_asked_size():
    texts = dealt(by_content(MANY, held_out=1500))
    assert sorted(texts["train"] + texts["val"] + texts["test"]) == sorted(MANY)
    assert not set(texts["train"]) & set(texts["val"]) | set(texts["train"]) & set(texts["test"])
    assert not set(texts["val"]) & set(texts["test"])
    for split in ("val", "test"):
        assert 1400 <= sum(map(len, texts[split])) <= 1500


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("abc", min_size=1, max_size=5), max_size=60), st.integers(0, 300))
def test_exact_duplicates_go_to_one_split(texts, held_out):
    if len(set(texts)) < 3:
        with pytest.raises(DataError, match=f"has {len(set(texts))} distinct documents"):
            by_content(texts, held_out)
        return
    found = dealt(by_content(texts, held_out))
    assert sum(map(len, found.values())) == len(texts)
    assert sum(len(set(split)) for split in found.values()) == len(set(texts))
    assert all(found[split] for split in ("train", "val", "test"))


def test_a_document_repeated_later_joins_the_split_of_the_first():
    twice = MANY + MANY[::-1]
    found = dealt(by_content(twice, held_out=1500))
    assert all(count == 2 for split in found.values() for count in map(split.count, set(split)))


def test_order_and_place_of_documents_do_not_matter():
    one, other = dealt(by_content(MANY)), dealt(by_content(MANY[::-1]))
    assert {split: set(texts) for split, texts in one.items()} == {s: set(texts) for s, texts in other.items()}


def test_held_out_splits_take_at_most_a_tenth_each():
    texts = dealt(by_content(MANY, held_out=10**9))
    total = sum(map(len, MANY))
    assert 0.09 * total < sum(map(len, texts["val"])) <= 0.1 * total
    assert 0.09 * total < sum(map(len, texts["test"])) <= 0.1 * total


def test_only_usable_bytes_count():
    # Of long documents little is usable, so more of them are held out.
    splits = split_by_content(lambda: iter(MANY), 200, usable=lambda size: min(size, 20))
    assert len(dealt(splits)["val"]) == len(dealt(splits)["test"]) == 10


def test_train_bytes_counts_utf8():
    texts = [f"é{i}" for i in range(40)]
    splits = by_content(texts, held_out=6)
    assert splits.train_bytes == sum(len(text.encode()) for text in dealt(splits)["train"])


def test_a_bounded_source_is_read_as_far_as_asked():
    reached = []

    def documents():
        for i, text in enumerate(MANY):
            reached.append(i)
            yield text

    splits = split_by_content(documents, 200, limit_bytes=3000)
    count = sum(map(len, dealt(splits).values()))
    sizes = [len(text) for text in MANY]
    assert sum(sizes[: count - 1]) < 3000 <= sum(sizes[:count])
    assert max(reached) <= count


def test_full_splits_are_skipped():
    splits = by_content(MANY, held_out=1500)
    assert set(dealt(splits, {"train"})) == {"val", "test"}


def test_a_pinned_shard_is_cut_by_document_and_its_duplicates_leave_train():
    held_out = [f"held {i}" for i in range(9)] + ["held 0"]
    train = ["one", "held 3", "two", "held 8", "one"]
    splits = split_by_shard(lambda: iter(train), lambda: iter(held_out))
    texts = dealt(splits)
    assert texts["train"] == ["one", "two", "one"]
    # The repeated "held 0" stands in the last third, but belongs to val, where it came first.
    assert texts["val"] == [*(f"held {i}" for i in range(7)), "held 0"]
    assert texts["test"] == ["held 7", "held 8"]


def test_a_pinned_shard_of_one_document_is_refused():
    with pytest.raises(DataError, match="1 distinct documents"):
        split_by_shard(lambda: iter(["a"]), lambda: iter(["b", "b"]))


def test_copies_count_where_the_held_out_splits_are_filled():
    texts = [f"document {i} of a hundred, of some length" for i in range(100)] * 6
    splits = split_by_content(lambda: iter(texts), 10**9)
    dealt = [split for split, _ in splits.documents(frozenset())]
    assert dealt.count("train") > 0.7 * len(texts)


def test_empty_documents_are_left_out():
    texts = ["", "one document", "  \n", "another document", "a third document"]
    dealt = {text: split for split, text in split_by_content(lambda: iter(texts), 10).documents(frozenset())}
    assert sorted(dealt.values()) == ["test", "train", "val"]
    assert "" not in dealt
