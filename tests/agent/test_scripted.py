"""Candidates from a folder: order, hypotheses, and patches that apply exactly or say why not."""

import difflib
import random
import subprocess

import pytest

from autoresearch.agent.proposer import Context, Trial
from autoresearch.agent.scripted import PatchError, Scripted, apply_patch
from autoresearch.core.errors import UsageError

SOURCE = "".join(f"line {n}\n" for n in range(1, 31))
BASELINE = Trial(0, "keep", "", 2.0, "baseline", "other", 0, {}, "c0")


def context_for(source=SOURCE, origins=()):
    return Context("", BASELINE, source, {"seq_len": 64}, {}, 0.01, (BASELINE,), frozenset(origins), 1)


def diff(before, after, context=3, name="train.py"):
    return "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}", n=context
        )
    )


def all_proposals(directory, source=SOURCE):
    proposals = []
    while (proposal := Scripted(directory).propose(context_for(source, [p.origin for p in proposals]))) is not None:
        proposals.append(proposal)
    return proposals


def test_files_and_patches_come_in_name_order_until_they_are_used_up(tmp_path):
    (tmp_path / "20-whole.py").write_text("# hypothesis: start again\nx = 1\n")
    (tmp_path / "10-edit.patch").write_text(
        "# hypothesis: a better fifth line  \n\n" + diff(SOURCE, SOURCE.replace("line 5\n", "line five\n"))
    )
    (tmp_path / "30-plain.py").write_text('"""No comment."""\n# hypothesis: too late\n')
    (tmp_path / "notes.txt").write_text("not a candidate")
    proposals = all_proposals(tmp_path)
    assert [(p.origin, p.hypothesis, p.problem) for p in proposals] == [
        ("10-edit.patch", "a better fifth line", ""),
        ("20-whole.py", "start again", ""),
        ("30-plain.py", "30-plain", ""),
    ]
    assert proposals[0].source == SOURCE.replace("line 5\n", "line five\n")
    assert proposals[1].source == "# hypothesis: start again\nx = 1\n"


def test_a_patch_is_read_against_the_incumbent(tmp_path):
    (tmp_path / "a.patch").write_text(diff(SOURCE, SOURCE.replace("line 20\n", "line twenty\n")))
    moved = "a new first line\n" + SOURCE
    assert all_proposals(tmp_path, moved)[0].source == moved.replace("line 20\n", "line twenty\n")


def test_a_patch_that_no_longer_fits_is_a_proposal_with_a_problem(tmp_path):
    changed = SOURCE.replace("line 3\n", "line three\n").replace("line 20\n", "line twenty\n")
    (tmp_path / "a.patch").write_text(diff(SOURCE, changed))
    (proposal,) = all_proposals(tmp_path, SOURCE.replace("line 20\n", "line XX\n"))
    assert proposal.source == ""
    assert proposal.origin == "a.patch"
    assert "a.patch" in proposal.problem
    assert "hunk 2" in proposal.problem
    assert "not in train.py" in proposal.problem


def test_files_that_can_not_be_read_are_problems_and_the_next_one_follows(tmp_path):
    (tmp_path / "a.py").write_bytes(b"# caf\xe9\n")
    (tmp_path / "b.py").mkdir()
    (tmp_path / "c.patch").write_bytes(b"\xff")
    (tmp_path / "d.py").write_text("x = 1\n")
    proposals = all_proposals(tmp_path)
    assert [bool(p.problem) for p in proposals] == [True, True, True, False]
    assert "a.py is not UTF-8 text: byte 5" in proposals[0].problem
    assert "b.py can't be read" in proposals[1].problem


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_text("x")])
def test_a_missing_or_empty_folder_is_a_usage_error(tmp_path, make):
    make(tmp_path / "ideas")
    with pytest.raises(UsageError, match="ideas"):
        Scripted(tmp_path / "ideas")


def test_an_ambiguous_offset_is_refused_and_a_unique_one_taken():
    before = "start\n" + "a\nb\nc\n"
    patch = diff(before, before.replace("b\n", "B\n"), context=1)
    assert apply_patch("new\nstart\na\nb\nc\n", patch) == "new\nstart\na\nB\nc\n"
    with pytest.raises(PatchError, match=r"hunk 1 .*2 places fit"):
        apply_patch("new\nstart\na\nb\nc\na\nb\nc\n", patch)


def test_context_lines_must_match_exactly():
    patch = diff(SOURCE, SOURCE.replace("line 5\n", "line five\n"))
    with pytest.raises(PatchError, match="hunk 1"):
        apply_patch(SOURCE.replace("line 3\n", "line 3 \n"), patch)


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ("", "no hunk"),
        ("just words\n", "no hunk"),
        (diff("a\n", "b\n", name="prepare.py"), "train.py alone"),
        (diff("a\n", "b\n") + diff("a\n", "b\n", name="prepare.py"), "train.py alone"),
        ("@@ -1,2 +1,2 @@\n line 1\n", "hunk 1 is cut short"),
        ("@@ -1,2 +1,2 @@\n line 1\nrubbish\n", "hunk 1 is cut short"),
        ("@@ -1,1 +1,1 @@\n-line 1\n+line one\n+line one and a half\n", "hunk 1 holds other than"),
        ("@@ -1,2 +1,1 @@\n-line 1\n line 2\n line 3\n", "hunk 1 holds other than"),
        ("@@ -90,1 +90,1 @@\n-line 90\n+line ninety\n", "hunk 1 \\(line 90\\)"),
    ],
)
def test_a_damaged_patch_says_what_is_wrong(patch, reason):
    with pytest.raises(PatchError, match=reason):
        apply_patch(SOURCE, patch)


def test_forms_that_tools_and_editors_produce():
    changed = SOURCE.replace("line 5\n", "").replace("line 9\n", "line 9\n\nline 9.5\n")
    assert apply_patch(SOURCE, diff(SOURCE, changed, context=0)) == changed, "no context"
    assert apply_patch(SOURCE, diff(SOURCE, changed) + "-- \n2.39.5\n\n") == changed, "git format-patch"
    blank = SOURCE.replace("line 4\n", "\n")
    stripped = diff(blank, blank.replace("line 5\n", "5\n")).replace("\n \n", "\n\n")
    assert apply_patch(blank, stripped) == blank.replace("line 5\n", "5\n"), "empty context lines stripped"
    assert apply_patch("a\nb", "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n") == "a\nc"
    assert apply_patch("a\r\nb\r\n", "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n") == "a\r\nc\r\n"


def test_agrees_with_git_apply_on_random_edits(tmp_path):
    rng = random.Random(5)
    for _ in range(8):
        lines = [f"{rng.randrange(4)}\n" for _ in range(40)]
        edited = [line for line in lines if rng.random() > 0.1]
        for _ in range(3):
            edited.insert(rng.randrange(len(edited) + 1), f"new {rng.random()}\n")
        before, after = "".join(lines), "".join(edited)
        (tmp_path / "train.py").write_text(before)
        (tmp_path / "x.patch").write_text(diff(before, after))
        subprocess.run(["git", "apply", "x.patch"], cwd=tmp_path, check=True)
        assert apply_patch(before, diff(before, after)) == (tmp_path / "train.py").read_text() == after
