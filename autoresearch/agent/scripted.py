"""Candidates from a folder: whole files and patches, in name order. No model, no network.

A file may say what it tries in its first comment line: `# hypothesis: …`; in a patch it stands before the diff.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path, PurePosixPath

from autoresearch.agent.proposer import Context, Proposal
from autoresearch.core.errors import UsageError
from autoresearch.core.line_ends import as_in, with_newlines

_HYPOTHESIS = re.compile(r"^#\s*hypothesis:[ \t]*(\S.*?)\s*$", re.MULTILINE)
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")


class PatchError(ValueError):
    """A patch that can't be read, or that doesn't fit the text."""


class Scripted:
    """Proposes `DIR/*.py` (whole files) and `DIR/*.patch` (unified diffs of the incumbent's train.py)."""

    name = "script"

    def __init__(self, directory: Path) -> None:
        """
        Raises:
            UsageError: no such folder, or no candidate in it.
        """
        self._directory = directory
        if not self._files():
            raise UsageError(f"--agent script:{directory}: no .py or .patch file in it", "put one candidate a file")

    def propose(self, context: Context) -> Proposal | None:
        for path in self._files():
            if path.name not in context.origins:
                return self._read(path, context.incumbent_source)
        return None

    def _files(self) -> list[Path]:
        if not self._directory.is_dir():
            raise UsageError(f"--agent script:{self._directory}: no such folder", "give one with .py or .patch files")
        return sorted(path for path in self._directory.iterdir() if path.suffix in {".py", ".patch"})

    def _read(self, path: Path, incumbent: str) -> Proposal:
        source, hypothesis, problem = "", path.stem, ""
        try:
            text = path.read_bytes().decode()
            found = _HYPOTHESIS.search(_leading_comments(text))
            hypothesis = found[1] if found else path.stem
            source = text if path.suffix == ".py" else apply_patch(incumbent, text)
        except OSError as error:
            problem = f"{path.name} can't be read: {error.strerror}"
        except UnicodeDecodeError as error:
            problem = f"{path.name} is not UTF-8 text: byte {error.start}"
        except PatchError as error:
            problem = f"{path.name} does not apply: {error}"
        return Proposal(source, hypothesis, origin=path.name, problem=problem, listed=True)


def _leading_comments(text: str) -> str:
    """The comment and blank lines at the top; of a patch, all before the diff."""
    lines = text.splitlines()
    end = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    return "\n".join(lines[:end])


def apply_patch(source: str, patch: str) -> str:
    """Apply a unified diff of one file exactly: every context line must match.

    A hunk that isn't found at its line is looked for elsewhere, and taken where its lines occur once. A missing
    newline at the end of the file stays as it is, and so do line ends, whatever those of the patch are.

    Raises:
        PatchError: says which hunk doesn't fit, and why.
    """
    return as_in(source, _applied(with_newlines(source), as_in(with_newlines(source), patch)))


def _applied(source: str, patch: str) -> str:
    lines = patch.split("\n")
    targets = [
        line[4:].split("\t")[0]
        for before, line in pairwise(lines)
        if before.startswith("--- ") and line.startswith("+++ ")
    ]
    if len(targets) > 1 or any(PurePosixPath(target).name != "train.py" for target in targets):
        raise PatchError(f"it must change train.py alone, and it changes {', '.join(targets)}")
    result = source.split("\n")
    shift, applied, at = 0, 0, 0
    while at < len(lines):
        header = _HUNK.match(lines[at])
        at += 1
        if header is None:
            continue
        applied += 1
        old, new, at = _hunk_body(lines, at, header, applied)
        expected = int(header[1]) - (header[2] != "0") + shift
        place = _locate(result, old, expected, applied)
        result[place : place + len(old)] = new
        shift = place - expected + shift + len(new) - len(old)
    if not applied:
        raise PatchError("no hunk (`@@ -1,3 +1,4 @@`) in it")
    return "\n".join(result)


def _hunk_body(lines: list[str], at: int, header: re.Match[str], number: int) -> tuple[list[str], list[str], int]:
    """(lines before, lines after, index of the line that follows the hunk)."""
    old_size, new_size = int(header[2] or 1), int(header[3] or 1)
    old: list[str] = []
    new: list[str] = []
    while len(old) < old_size or len(new) < new_size:
        line = lines[at] if at < len(lines) else "end of the patch"
        at += 1
        mark, text = line[:1], line[1:]
        if mark == "\\":  # "\ No newline at end of file"
            continue
        # Editors strip the blank that stands for an empty context line.
        if mark not in ("", " ", "-", "+") or (mark == "" and at >= len(lines)):
            raise PatchError(f"hunk {number} is cut short: {old_size} lines before and {new_size} after announced")
        if mark != "+":
            old.append(text)
        if mark != "-":
            new.append(text)
    rest = lines[at] if at < len(lines) else ""
    beyond = rest[:1] in (" ", "-", "+") and not rest.startswith(("--- ", "-- "))  # the next file, the end of a mail
    if beyond or (len(old), len(new)) != (old_size, new_size):
        raise PatchError(f"hunk {number} holds other than the {old_size} lines before and {new_size} after announced")
    return old, new, at


def _locate(lines: list[str], old: list[str], expected: int, number: int) -> int:
    """Index of the first line of `old` in `lines`."""
    if lines[expected : expected + len(old)] == old and 0 <= expected <= len(lines):
        return expected
    places = [i for i in range(len(lines) - len(old) + 1) if lines[i : i + len(old)] == old] if old else []
    if len(places) != 1:
        where = f"{len(places)} places fit" if places else "its lines are not in train.py"
        raise PatchError(f"hunk {number} (line {expected + 1}): {where}")
    return places[0]
