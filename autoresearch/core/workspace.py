"""The user's folder in a git repository.

Every candidate is a commit under `refs/autoresearch/<tag>/<n>`, made by plumbing: the user's index, HEAD and work tree
are not touched, no hook runs, nothing is signed, reset, checked out or pushed. The branch `autoresearch/<tag>` follows
the kept ones. A git process costs about 5 ms: an experiment takes six, a keep four more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import date
from pathlib import Path

from autoresearch.core.errors import UsageError
from autoresearch.core.files import io_error, write_atomic
from autoresearch.core.gitcommand import Git, locate
from autoresearch.core.lock import exclusive
from autoresearch.core.plumbing import Repository, complaint
from autoresearch.core.traces import RESULTS, STATE, exclude, link_results, results_are_the_users

TRAIN = "train.py"

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


class Workspace:
    """A folder with a train.py in a git work tree, at its top or below.

    All methods raise AutoresearchError where git or the file system fails. `tag` names a run.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Open a workspace; nothing is changed.

        Raises:
            UsageError: no such folder, no git repository, no work tree, no train.py, no usable git.
        """
        self.directory = Path(directory).resolve()
        """Absolute, without symbolic links."""
        if not self.directory.is_dir():
            raise UsageError(f"{self.directory} is not a folder", "autoresearch init DIR makes a workspace")
        place = locate(self.directory)
        if place is None:
            hint = "git init there, or make a workspace: autoresearch init DIR"
            raise UsageError(f"{self.directory} is not in a git repository", hint)
        self.train_path = self.directory / TRAIN
        if not self.train_path.is_file():
            raise UsageError(f"{self.directory} has no {TRAIN}", "autoresearch init DIR makes a workspace with one")
        self._prefix = place.prefix
        self._git = Git(self.directory)
        self._repository = Repository(self._git)

    @classmethod
    def create(
        cls, directory: str | os.PathLike[str], files: Mapping[str, str], own_repository: bool = False
    ) -> Workspace:
        """Make a workspace of `files` (name → text) in a new or empty folder, or in one of a git work tree.

        Where the folder is in no repository it becomes one, on the branch main, with a first commit of these files.

        Args:
            own_repository: make a repository also inside the work tree of another one, which is told to ignore it.

        Raises:
            UsageError: one of the files is there already, or the folder holds something and is in no work tree.
        """
        folder = Path(directory).resolve()
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is not a folder", "choose another one")
        for name in files:
            if os.path.lexists(folder / name):
                raise UsageError(f"{folder / name} exists already and is not overwritten", "choose another folder")
        nearest = next(path for path in (folder, *folder.parents) if path.is_dir())
        outer = locate(nearest)
        own = outer is None or (own_repository and outer.top != folder)
        if own and folder.is_dir() and any(folder.iterdir()):
            raise UsageError(f"{folder} is neither empty nor in a git repository", "choose an empty or a new folder")
        try:
            for name in files:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise io_error("make", folder, error) from error
        git = Git(folder)
        if own:
            if outer is not None:
                exclude(Git(nearest), folder.relative_to(outer.top).as_posix() + "/")
            git("init", "--quiet", "--initial-branch=main")
        for name, text in files.items():
            write_atomic(folder / name, text)
        workspace = cls(folder)
        if own:
            git("add", "--force", "--", *files)
            tree = git("write-tree")
            commit = git("commit-tree", tree, "-m", "autoresearch: new workspace", env=workspace._repository.identity)
            git("update-ref", "-m", "commit (initial)", "HEAD", commit, "")
        return workspace

    # --- candidates -----------------------------------------------------------------------------------------------

    def write_blob(self, source: str) -> str:
        """Store the text of a train.py, byte for byte; its object name."""
        try:
            content = source.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"{TRAIN} can't be written as UTF-8: {error}", "remove the character") from error
        return self._repository.write(content)

    def read(self, name: str) -> str:
        """The text of train.py, byte for byte, in a commit, or of a blob.

        Raises:
            UsageError: no such object, no train.py in it, or not UTF-8.
        """
        content = next(self._train_files([name]))
        if content is None:
            raise UsageError(f"no {self._prefix}{TRAIN} in {name!r}", "git log --all shows the commits that there are")
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"{TRAIN} of {name} is not UTF-8 text: {error}", "save it as UTF-8") from error

    def read_many(self, names: Iterable[str]) -> dict[str, str]:
        """The texts of train.py in many commits, or of blobs, by one process of git.

        Names that lead to none are left out; what is not UTF-8 becomes U+FFFD.
        """
        wanted = list(dict.fromkeys(names))
        found = zip(wanted, self._train_files(wanted), strict=True)
        return {name: content.decode(errors="replace") for name, content in found if content is not None}

    def _train_files(self, names: list[str]) -> Iterator[bytes | None]:
        # A commit holds the file at its path, a blob is the file. To git, an empty name before the colon is the index.
        places = [place for name in names if name for place in (f"{name}:{self._prefix}{TRAIN}", name)]
        blobs = iter(self._repository.blobs(places))
        for name in names:
            in_commit, itself = (next(blobs), next(blobs)) if name else (None, None)
            yield in_commit if in_commit is not None else itself

    def commit_candidate(self, tag: str, n: int, blob: str, parent: str | None, message: str) -> str:
        """Commit a train.py as candidate `n`: the parent's tree with this one file replaced.

        Repeated with the same content it returns the commit that there is; other content replaces it.

        Args:
            blob: from `write_blob`.
            parent: full name of the incumbent's commit; None makes a commit without parents.

        Returns:
            Full name of the commit, which stays resolvable under `refs/autoresearch/<tag>/<n>`.
        """
        return self._commit(_candidate(tag, n), blob, parent, message)

    def _commit(self, ref: str, blob: str, parent: str | None, message: str) -> str:
        executable = os.access(self.train_path, os.X_OK)
        tree = self._repository.tree(parent, self._prefix, TRAIN, blob, executable)
        return self._repository.commit(ref, tree, parent, message)

    def baseline(self, tag: str) -> str:
        """Experiment 0: the train.py that the user sees, uncommitted edits included, and nothing else of a dirty tree.

        That is HEAD where train.py is unmodified, else a commit on top of it. Makes the branch `autoresearch/<tag>`.

        Returns:
            Full name of the commit, which is also under `refs/autoresearch/<tag>/0`.

        Raises:
            UsageError: the branch exists and is not the baseline of this run.
        """
        candidate, branch = _candidate(tag, 0), _branch(tag)
        refs = self._repository.refs(candidate, branch)
        former = refs[candidate].commit if candidate in refs else None
        if branch in refs and refs[branch].commit != former:
            raise _taken(tag)
        # As `git add` would store it: core.autocrlf and the like apply, so an unmodified file gives HEAD's blob.
        blob = self._git("hash-object", "-w", "--", TRAIN)
        status, stdout, _ = self._git.run("rev-parse", "--quiet", "--verify", "HEAD^{commit}")
        head = None if status else stdout.decode().strip()
        entry = self._repository.entries(head, self._prefix).get(TRAIN)
        if head is not None and entry is not None and entry.is_regular_file and entry.name == blob.encode():
            commit = head
            self._repository.set_ref(candidate, commit, former, "autoresearch: baseline")
        else:
            commit = self._commit(candidate, blob, head, f"autoresearch {tag}: baseline, as it was in the work tree")
        if branch not in refs or not refs[branch].worktree:
            self._repository.set_ref(branch, commit, former if branch in refs else None, "autoresearch: baseline")
        return commit

    def advance(self, tag: str, commit: str) -> str | None:
        """Move the branch `autoresearch/<tag>` to a kept commit, or back to the one before where a keep is withdrawn.

        Where it is checked out, in whichever worktree, it moves by a fast-forward merge there or not: a commit that is
        not ahead of it comes as a new one on top of it, with the same files.

        Returns:
            None, or what to tell the user when the branch stays: the commit is safe under its own ref; call again.
        """
        ref = _branch(tag)
        branch = self._repository.refs(ref).get(ref)
        if branch is None:
            self._repository.set_ref(ref, commit, None, "autoresearch: keep")
            return None
        if branch.commit == commit:
            return None
        forward = self._git.run("merge-base", "--is-ancestor", branch.commit, commit)[0] == 0
        refs = f"refs/autoresearch/{tag}/"
        if not forward and all(r.commit != branch.commit for r in self._repository.refs(refs).values()):
            obstacle = "it holds commits that are not of this run"
        elif not (branch.worktree and Path(branch.worktree).is_dir()):
            self._repository.set_ref(ref, commit, branch.commit, "autoresearch: keep")
            return None
        else:
            if not forward:
                commit = self._repository.on_top(branch, commit, f"{refs}on-{branch.commit[:10]}")
                if commit == branch.commit:
                    return None
            options = ("--ff-only", "--no-verify-signatures", "--no-autostash", "--no-stat")
            status, _, stderr = Git(Path(branch.worktree)).run("merge", *options, commit)
            if status == 0:
                return None
            obstacle = (
                f"it is checked out in {branch.worktree}, where git refuses to move it ({complaint(stderr)}); "
                f"commit or stash your changes there, then: git merge --ff-only {commit[:10]}"
            )
        return (
            f"branch autoresearch/{tag} stays at {branch.commit[:10]}, while the best commit is {commit[:10]}, safe "
            f"under {refs}: {obstacle}"
        )

    # --- runs -----------------------------------------------------------------------------------------------------

    def tags(self) -> list[str]:
        """Tags of the runs that have a journal here, the one written to last at the end."""
        journals = self.directory.glob(f"{STATE}/*/journal.jsonl")
        return [path.parent.name for path in sorted(journals, key=lambda path: (path.stat().st_mtime_ns, path))]

    def new_tag(self, today: date | None = None) -> str:
        """A tag for a new run, not used in this repository: `nov30`, then `nov30-2` …"""
        day = today or date.today()
        used = {*self.tags(), *self._run_refs()}
        first, count = f"{_MONTHS[day.month - 1]}{day.day}", 1
        while (tag := first if count == 1 else f"{first}-{count}") in used:
            count += 1
        return tag

    def _run_refs(self) -> set[str]:
        """Tags of all runs that left a branch or commits in the repository, in whichever of its folders."""
        refs = self._repository.refs("refs/heads/autoresearch", "refs/autoresearch")
        if "refs/heads/autoresearch" in refs:
            raise UsageError(
                "a branch named autoresearch is in the way of the runs' branches autoresearch/<tag>",
                "rename it: git branch -m autoresearch some-other-name",
            )
        return {name.removeprefix("refs/").removeprefix("heads/").split("/")[1] for name in refs}

    def check_tag(self, tag: str) -> None:
        """Whether a run may have this tag, be it new or one of `tags()`.

        Raises:
            UsageError: no name for a branch and a folder, or a branch that no journal of this workspace knows.
        """
        valid = re.fullmatch(r"[^/\\.\s-][^/\\\s]*", tag) and tag not in ("lock", "lock.json")
        if not valid or self._git.run("check-ref-format", _branch(tag))[0] != 0:
            raise UsageError(f"{tag!r} can't be the tag of a run", "letters, digits, - and _ are fine: --tag nov30")
        if tag not in self.tags() and tag in self._run_refs():
            raise _taken(tag)

    def run_dir(self, tag: str) -> Path:
        """The folder of a run, `.autoresearch/<tag>`; it and its `logs` are made where they are missing."""
        folder = self.directory / STATE / tag
        try:
            (folder / "logs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise io_error("make", folder, error) from error
        return folder

    # --- the user's files ------------------------------------------------------------------------------------------

    def exclude(self) -> None:
        """Have `git status` ignore what a run writes, but no results.tsv of the user's, by `.git/info/exclude`."""
        ours = [STATE + "/"] + ([] if results_are_the_users(self._git) else [RESULTS])
        exclude(self._git, *(self._prefix + path for path in ours))

    def link_results(self, tag: str) -> str | None:
        """Make `results.tsv` a link to the one of this run.

        Returns:
            None, or what to tell the user when a file of that name is theirs, which stays as it is.
        """
        return link_results(self._git, tag)

    def lock(self) -> AbstractContextManager[None]:
        """Keep other searches out of the workspace. The system frees the lock with its process in any case.

        Raises:
            WorkspaceBusy: another process holds it.
        """
        return exclusive(self.directory / STATE)


def _branch(tag: str) -> str:
    return f"refs/heads/autoresearch/{tag}"


def _candidate(tag: str, n: int) -> str:
    return f"refs/autoresearch/{tag}/{n}"


def _taken(tag: str) -> UsageError:
    return UsageError(
        f"the branch autoresearch/{tag} or its commits exist, and no run of this workspace made them",
        "choose another name: --tag NAME",
    )
