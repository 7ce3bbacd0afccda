"""A diff is a patch: applied to the one text it gives the other."""

from difflib import unified_diff

import hypothesis.strategies as st
import pytest
from hypothesis import given

from autoresearch.agent.scripted import PatchError, apply_patch
from autoresearch.core.registry import facts
from autoresearch.report.diffs import unified

SOURCE = facts("null").BASELINE.read_text()
LINES = st.lists(st.sampled_from(["a", "b", "", " c", "-d", "+e", "@@ -1 +1 @@"]), max_size=40)


def patched(before: str, diff: str) -> str:
    return apply_patch(before, f"--- a/train.py\n+++ b/train.py\n{diff}\n")


@given(st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(["", "x = 1", None])), min_size=1, max_size=5))
def test_edits_of_a_train_py(edits):
    lines = SOURCE.split("\n")
    for place, text in edits:
        at = place % len(lines)
        if text is None:
            lines[at] += "  # more"
        elif text:
            lines.insert(at, text)
        elif len(lines) > 1:
            del lines[at]
    after = "\n".join(lines)
    diff = unified(SOURCE, after)
    assert (diff == "") == (after == SOURCE)
    if diff:
        assert patched(SOURCE, diff) == after
        with pytest.raises(PatchError):
            patched(SOURCE.replace("\n", " \n"), diff)


@given(LINES, LINES)
def test_any_two_texts(first, second):
    before, after = "\n".join(first), "\n".join(second)
    diff = unified(before, after)
    assert patched(before, diff) == after if diff else before == after


def test_numbers_of_lines():
    before = [f"line {n}" for n in range(1, 41)]
    after = [*before[:9], "new", *before[9:29], *before[30:]]
    expected = list(unified_diff(before, after, lineterm=""))[2:]
    assert unified("\n".join(before), "\n".join(after)) == "\n".join(expected)
    assert expected[0] == "@@ -7,6 +7,7 @@"


def test_only_the_last_newline():
    assert unified("a\n", "a") == "@@ -1,2 +1 @@\n a\n-"
