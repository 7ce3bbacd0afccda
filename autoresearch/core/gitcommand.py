"""How git is run: by GitPython, in one folder, undisturbed by hooks and by the caller's environment."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from autoresearch.core.errors import AutoresearchError, UsageError
from autoresearch.core.plumbing import complaint

_OLDEST_GIT = (2, 30)
# Set where autoresearch is started from a hook or an alias, they would lead git to another repository or index.
_STRAY_VARIABLES = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX"),
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_QUARANTINE_PATH", "GIT_SHALLOW_FILE"),
    *("GIT_GLOB_PATHSPECS", "GIT_NOGLOB_PATHSPECS", "GIT_ICASE_PATHSPECS", "GIT_DEFAULT_HASH"),
)
_ENVIRONMENT = {"GIT_LITERAL_PATHSPECS": "1", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
# The reference-transaction hook runs even for update-ref; gc would go on in the background.
_OPTIONS = (
    *("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.safecrlf=false"),
    *("gc.auto=0", "maintenance.auto=false", "i18n.commitEncoding=UTF-8"),
)


@cache
def _executable() -> str:
    """The git that GitPython found.

    Raises:
        UsageError: there is none, or it is too old.
    """
    hint = f"install git {_OLDEST_GIT[0]}.{_OLDEST_GIT[1]} or newer: https://git-scm.com/downloads"
    try:
        import git
    except ImportError as error:  # GitPython looks for the executable when it is imported.
        raise UsageError(f"git can't be used: {str(error).splitlines()[0]}", hint) from error
    version = git.Git().version_info
    if version[:2] < _OLDEST_GIT:
        raise UsageError(f"git {'.'.join(map(str, version))} is too old", hint)
    return git.Git.GIT_PYTHON_GIT_EXECUTABLE or "git"


class Git:
    """git in one folder, undisturbed by hooks and by the caller's environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> tuple[int, bytes, str]:
        """Exit status, stdout and stderr of one command."""
        options = (word for option in _OPTIONS for word in ("-c", option))
        command = [_executable(), "-C", str(self.folder), *options, *args]
        # GitPython's `env` can only add to the environment.
        if stray := [name for name in _STRAY_VARIABLES if name in os.environ]:
            command = ["env", *(word for name in stray for word in ("-u", name)), *command]
        import git

        with tempfile.TemporaryFile() as stream:
            stream.write(stdin)
            stream.seek(0)
            return git.Git().execute(
                command,
                istream=stream,
                env={**_ENVIRONMENT, **(env or {})},
                with_extended_output=True,
                with_exceptions=False,
                stdout_as_string=False,
                strip_newline_in_stdout=False,
            )

    def __call__(self, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> str:
        """Stdout of a command that must succeed, without its last newline."""
        status, stdout, stderr = self.run(*args, stdin=stdin, env=env)
        if status:
            raise AutoresearchError(
                f"git {args[0]} failed in {self.folder}: {complaint(stderr)}", "try `git status` and `git fsck` there"
            )
        return os.fsdecode(stdout).removesuffix("\n")


class Place(NamedTuple):
    """Where a folder stands in a work tree."""

    top: Path
    prefix: str
    """"" at the top, else with a slash at the end."""


def locate(folder: Path) -> Place | None:
    """The place of an existing folder, or None where it is in no git repository.

    Raises:
        UsageError: git refuses the repository, or it has no work tree there.
    """
    status, stdout, stderr = Git(folder).run("rev-parse", "--show-prefix", "--show-toplevel")
    if status == 0:
        prefix, top = os.fsdecode(stdout).removesuffix("\n").split("\n")
        return Place(Path(top), prefix)
    if "dubious ownership" in stderr or "unsafe repository" in stderr:
        raise UsageError(
            f"git refuses {folder}, because another user owns it",
            f"if you trust it: git config --global --add safe.directory '{folder}'",
        )
    if "must be run in a work tree" in stderr:
        raise UsageError(f"{folder} has no work tree: a bare repository, or git's own folder", "use a normal clone")
    if "not a git repository" in stderr:
        return None
    raise UsageError(f"git can't use {folder}: {complaint(stderr)}", "try `git status` there")
