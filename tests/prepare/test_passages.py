import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearch.prepare.passages import passages

TEXT = st.text(st.sampled_from("ab. !?\n\t。é🎉\u0301"), max_size=400)


@settings(max_examples=300, deadline=None)
@given(TEXT, st.integers(1, 60))
def test_nothing_is_lost_and_no_passage_is_too_long(document, limit):
    parts = list(passages(document, limit))
    assert "".join(parts) == document
    assert all(0 < len(part) <= limit for part in parts)
    assert all(len(part) >= limit // 2 for part in parts[:-1])


def test_zero_leaves_documents_whole():
    assert list(passages("a b " * 100, 0)) == ["a b " * 100]


@pytest.mark.parametrize(
    ("document", "limit", "first"),
    [
        ("One is here. Two.\n\nThree is. Four", 28, "One is here. Two.\n\n"),
        ("One is here now. Two is there now", 28, "One is here now. "),
        ("One is here and two is there now", 28, "One is here and two is "),
        ("Oneishereandtwoistherenow", 10, "Oneisherea"),
        # A paragraph that ends in the first half of the limit would make passages too short.
        ("One.\n\nTwo is here. Three is there", 28, "One.\n\nTwo is here. "),
    ],
    ids=["paragraph", "sentence", "word", "anywhere", "early paragraph"],
)
def test_cuts_at_the_best_boundary(document, limit, first):
    assert next(passages(document, limit)) == first
