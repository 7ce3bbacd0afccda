"""Objects and refs of a git repository, by plumbing commands: no index, no work tree, no HEAD is touched."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol


class Git(Protocol):
    """How git is run in one folder; `core.gitcommand` has the one implementation."""

    folder: Path

    def run(self, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> tuple[int, bytes, str]:
        """Exit status, stdout and stderr of one command."""

    def __call__(self, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> str:
        """Stdout of a command that must succeed, without its last newline. Raises AutoresearchError."""


class Ref(NamedTuple):
    """A ref that leads to a commit."""

    commit: str
    tree: str
    parents: tuple[str, ...]
    worktree: str
    """Where the branch is checked out, or ""."""


class Entry(NamedTuple):
    """What a tree says about one of its files or folders."""

    mode: bytes
    kind: bytes
    name: bytes
    """Object name."""

    @property
    def is_regular_file(self) -> bool:
        return self.mode in (b"100644", b"100755")


def complaint(stderr: str) -> str:
    """The line of git's stderr that says why it failed."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "no reason")


class Repository:
    """Reads and writes objects and refs. Object names are full hexadecimal ones.

    All methods raise AutoresearchError where git fails.
    """

    def __init__(self, git: Git) -> None:
        self._git = git

    def write(self, content: bytes) -> str:
        """Store a blob; its object name."""
        return self._git("hash-object", "-w", "--stdin", stdin=content)

    def blobs(self, names: Sequence[str]) -> list[bytes | None]:
        """The content of each named object (`<blob>` or `<commit>:<path>`), None where it is no blob."""
        if not names:
            return []
        request = "".join(f"{name}\n" for name in names)
        _, output, _ = self._git.run("cat-file", "--batch", stdin=os.fsencode(request))
        found: list[bytes | None] = []
        place = 0
        while place < len(output):
            end = output.index(b"\n", place)
            *_, kind, last = output[place:end].split(b" ")
            place = end + 1
            if not last.isdigit():  # missing, ambiguous, submodule
                found.append(None)
                continue
            size = int(last)
            found.append(output[place : place + size] if kind == b"blob" else None)
            place += size + 1
        return found

    def refs(self, *patterns: str) -> dict[str, Ref]:
        """Refs by full name; a pattern is one, or a folder of them."""
        fields = ("refname", "objectname", "tree", "parent", "worktreepath")
        form = "--format=" + "%00".join(f"%({field})" for field in fields)
        rows = (line.split("\0") for line in self._git("for-each-ref", form, *patterns).split("\n") if line)
        return {name: Ref(commit, tree, tuple(parents.split()), path) for name, commit, tree, parents, path in rows}

    def set_ref(self, ref: str, commit: str, former: str | None, reason: str) -> None:
        """Point a ref to a commit, where it still points to `former` (None: doesn't exist)."""
        self._git("update-ref", "-m", reason, ref, commit, former or "")

    def commit(self, ref: str, tree: str, parent: str | None, message: str) -> str:
        """Point `ref` to a commit of `tree` on top of `parent`: a new one where it doesn't point to such a one yet."""
        parents = () if parent is None else (parent,)
        current = self.refs(ref).get(ref)
        if current is not None and (current.tree, current.parents) == (tree, parents):
            return current.commit
        commit = self.commit_tree(tree, parent, message)
        self.set_ref(ref, commit, current.commit if current else None, "autoresearch: candidate")
        return commit

    def commit_tree(self, tree: str, parent: str | None, message: str, moment: datetime | None = None) -> str:
        """A new commit, which no ref leads to yet.

        Args:
            moment: its date; None is now.
        """
        text = message.replace("\0", " ").encode("utf-8", "replace")
        options = () if parent is None else ("-p", parent)
        date = None if moment is None else f"@{int(moment.timestamp())} +0000"
        dates = {} if date is None else {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        return self._git("commit-tree", tree, *options, "-F", "-", stdin=text, env={**self.identity, **dates})

    def on_top(self, base: Ref, commit: str, ref: str) -> str:
        """A commit on top of `base`, under `ref`, with the tree of `commit`; that of `base` where it has that tree."""
        tree = self._git("rev-parse", f"{commit}^{{tree}}")
        message = f"autoresearch: back to the files of {commit[:10]}"
        return base.commit if base.tree == tree else self.commit(ref, tree, base.commit, message)

    def entries(self, base: str | None, folder: str) -> dict[str, Entry]:
        """What a folder ("" or with a slash at the end) of a commit holds, by file name; {} where it isn't there."""
        if base is None:
            return {}
        output = self._git("ls-tree", "-z", "--full-tree", base, *(("--", folder) if folder else ()))
        rows = (row.split("\t", 1) for row in output.split("\0")[:-1])
        return {path.removeprefix(folder): Entry(*os.fsencode(facts).split(b" ")) for facts, path in rows}

    def tree(self, base: str | None, folder: str, name: str, blob: str, executable: bool) -> str:
        """The tree of the commit `base` with one file of one folder replaced, or added.

        Args:
            executable: mode of an added file; a replaced one keeps its own.
        """
        entry = Entry(b"100755" if executable else b"100644", b"blob", blob.encode())
        former = self.entries(base, folder).get(name)
        if former is not None and former.is_regular_file:
            entry = entry._replace(mode=former.mode)
        parts = folder.split("/")[:-1]
        while True:
            entries = self.entries(base, "".join(f"{part}/" for part in parts)) | {name: entry}
            lines = (b"%b %b %b\t%b\0" % (*entry, os.fsencode(name)) for name, entry in entries.items())
            tree = self._git("mktree", "-z", "--missing", stdin=b"".join(lines))
            if not parts:
                return tree
            entry, name = Entry(b"040000", b"tree", tree.encode()), parts.pop()

    @cached_property
    def identity(self) -> dict[str, str]:
        """Variables that stand in for what the user has not configured, where git would guess or refuse."""
        _, stdout, _ = self._git.run("config", "--get-regexp", r"^(user|author|committer)\.(name|email)$")
        pairs = (line.partition(" ") for line in os.fsdecode(stdout).splitlines())
        known = {key for key, _, value in pairs if value.strip()}
        variables = {}
        for role in ("author", "committer"):
            for part, value in (("name", "autoresearch"), ("email", "autoresearch@localhost")):
                variable = f"GIT_{role}_{part}".upper()
                given = os.environ.get(variable) or (part == "email" and os.environ.get("EMAIL"))
                if not given and known.isdisjoint({f"user.{part}", f"{role}.{part}"}):
                    variables[variable] = value
        return variables
