"""train.py with other line ends and other letters: an edit changes what it was asked to, and nothing else moves."""

import difflib
import sys

import pytest

from autoresearch.agent import claude_tools, scripted
from autoresearch.agent.claude_prompt import prompt_of
from autoresearch.agent.claude_tools import Desk
from autoresearch.agent.command import Command
from autoresearch.agent.proposer import Context, RoundFailed, Trial
from autoresearch.agent.scripted import Scripted, apply_patch
from autoresearch.core import agent_settings
from autoresearch.core.constants import set_constants
from autoresearch.core.line_ends import as_in, with_newlines

TEXT = """\
# Größe und Maß: 学習率, 🙂
RATE = 0.5  # (1e-3..2.0) naïve
NAME = "é"

def train(experiment):
    größe = RATE  # ☃
    return größe, NAME
"""
SOURCES = {
    "newlines": TEXT,
    "crlf": TEXT.replace("\n", "\r\n"),
    "no end": TEXT.replace("\n", "\r\n").removesuffix("\r\n"),
    "mixed": TEXT.replace("\n", "\r\n", 3),
}
BASELINE = Trial(0, "keep", "", 2.0, "baseline", "baseline", 0, {"RATE": 0.5}, "c0")


@pytest.fixture(params=SOURCES)
def source(request) -> str:
    return SOURCES[request.param]


@pytest.fixture
def wanted(source) -> str:
    """The source with another rate and another comment, its line ends as they were."""
    return source.replace("RATE = 0.5", "RATE = 0.7").replace("größe = RATE  # ☃", "größe = 2 * RATE  # ☃☃")


def context_of(source: str) -> Context:
    return Context("Find.", BASELINE, source, {"seq_len": 64}, {}, 0.01, (BASELINE,), frozenset(), 1)


# By a model


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_model_edits_what_it_was_shown(source, wanted, ends):
    """Over two lines, with whichever line end it writes; a text with both is edited within a line."""
    desk = Desk(source, context_of(source), None)
    mixed = source == SOURCES["mixed"]
    first = ("RATE = 0.5", "RATE = 0.7")
    second = ("    größe = RATE  # ☃", "    größe = 2 * RATE  # ☃☃")
    if not mixed:
        second = tuple(f"def train(experiment):{ends}{line}" for line in second)
    for old, new in (first, second):
        assert not desk.use("str_replace", {"old_str": old, "new_str": new}).error
    assert desk.edited
    assert desk.result == wanted
    assert mixed or "\r" not in desk.use("view", {}).text
    for old, new in ((first[1], first[0]), (second[1], second[0])):
        desk.use("str_replace", {"old_str": old, "new_str": new})
    assert not desk.edited, "taken back, it is byte for byte what it was"


def test_a_model_is_shown_the_file_with_plain_newlines():
    prompt = prompt_of(context_of(SOURCES["crlf"]), "claude")
    shown = "".join(block["text"] for message in prompt["messages"] for block in message["content"])
    assert TEXT in shown
    assert "\r" not in shown


def test_without_it_an_edit_of_two_lines_is_not_found(monkeypatch):
    monkeypatch.setattr(claude_tools, "with_newlines", lambda text: text)
    monkeypatch.setattr(claude_tools, "as_in", lambda original, text: text)
    desk = Desk(SOURCES["crlf"], context_of(SOURCES["crlf"]), None)
    reply = desk.use("str_replace", {"old_str": 'NAME = "é"\n\ndef', "new_str": "def"})
    assert "does not occur" in reply.text


# By a command


EDITS = {
    # Python's text mode, as many editors, makes plain newlines of all line ends.
    "text": "text = train.read_text('utf-8'); train.write_text(edit(text), 'utf-8', newline='\\n')",
    "crlf": "text = train.read_text('utf-8'); train.write_text(edit(text), 'utf-8', newline='\\r\\n')",
    "bytes": "train.write_bytes(edit(train.read_bytes().decode()).encode())",
}
AGENT = """
from pathlib import Path
train = Path("train.py")
def edit(text):
    return text.replace("RATE = 0.5", "RATE = 0.7").replace("größe = RATE  # ☃", "größe = 2 * RATE  # ☃☃")
"""


@pytest.fixture
def command(tmp_path, purse, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def make(body: str) -> Command:
        script = tmp_path / "agent.py"
        script.write_text(AGENT + body, encoding="utf-8")
        return Command(f"{sys.executable} {script}", agent_settings.Command(), purse().ledger, tmp_path / "lab")

    return make


@pytest.mark.parametrize("how", EDITS)
def test_a_command_may_edit_it_in_any_way(source, wanted, how, command):
    if source == SOURCES["mixed"] and how != "bytes":
        pytest.skip("which line had which end can't be known afterwards")
    proposal = command(EDITS[how]).propose(context_of(source))
    assert (proposal.problem, proposal.source) == ("", wanted)


def test_other_line_ends_alone_are_no_edit(command):
    made = command("train.write_text(train.read_text('utf-8'), 'utf-8', newline='\\n')")
    with pytest.raises(RoundFailed, match=r"left train\.py as it was"):
        made.propose(context_of(SOURCES["crlf"]))


# By patches, whole files and the optimizer


def patch_of(before: str, after: str) -> str:
    lines = (text.splitlines(keepends=True) for text in (before, after))
    made = [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in difflib.unified_diff(
        *lines, "a/train.py", "b/train.py"
    )]  # fmt: skip
    return "".join(made)


def test_a_patch_of_the_same_file_fits(source, wanted):
    assert apply_patch(source, patch_of(source, wanted)) == wanted


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_patch_fits_whatever_its_line_ends(ends):
    patch = patch_of(TEXT, TEXT.replace("0.5", "0.7")).replace("\n", ends)
    for name in ("newlines", "crlf"):
        assert apply_patch(SOURCES[name], patch) == SOURCES[name].replace("0.5", "0.7")


def test_without_it_a_patch_does_not_fit(monkeypatch):
    monkeypatch.setattr(scripted, "with_newlines", lambda text: text)
    monkeypatch.setattr(scripted, "as_in", lambda original, text: text)
    with pytest.raises(scripted.PatchError, match=r"its lines are not in train\.py"):
        apply_patch(SOURCES["crlf"], patch_of(TEXT, TEXT.replace("0.5", "0.7")))


def test_a_whole_file_is_taken_as_it_is(source, tmp_path):
    (tmp_path / "a.py").write_bytes(source.encode())
    (tmp_path / "b.patch").write_bytes(patch_of(source, source.replace("0.5", "0.7")).encode())
    proposal = Scripted(tmp_path).propose(context_of(source))
    assert proposal is not None
    assert proposal.source == source


def test_constants_are_set_in_place(source):
    assert set_constants(source, {"RATE": 0.7, "NAME": "ü"}) == source.replace("0.5", "0.7").replace('"é"', '"ü"')


# The two functions


@pytest.mark.parametrize("text", ["", "a", "a\n", "a\r\n", "a\r\nb", "a\rb\n", "é\r\n\r\n", "a\r\nb\n", "a\nb\r\n"])
def test_there_and_back(text):
    assert as_in(text, with_newlines(text)) == text
    assert as_in(text, text) == text
