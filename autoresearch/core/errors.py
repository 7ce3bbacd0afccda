"""All errors a user can meet, in one tree.

AutoresearchError          1   a failure
├── UsageError             2   wrong option, preset, table or file
├── CostCapReached         3   a cap on what proposals may cost
├── BackendUnavailable     4   the backend can't run on this machine
├── DataError              5   data missing or damaged
└── WorkspaceBusy          6   another search runs in the workspace

CandidateFailure is not one of them: a candidate that fails is a result, not an error of the search.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Literal


class AutoresearchError(Exception):
    """A failure said in one line: what was wrong, what was received; `hint` says what to do next."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(AutoresearchError):
    """An option, a configuration key or a file that can't be used as given."""

    exit_code = 2


class CostCapReached(AutoresearchError):
    """The next proposal could cost more than a cap allows."""

    exit_code = 3

    def __init__(self, message: str, hint: str = "raise the cap to go on; the run resumes where it is") -> None:
        super().__init__(message, hint)


class BackendUnavailable(AutoresearchError):
    """The framework or the device of a backend is not here; the hint says what to install or type."""

    exit_code = 4


class DataError(AutoresearchError):
    """Data missing, damaged, or not what its manifest says."""

    exit_code = 5


class WorkspaceBusy(AutoresearchError):
    """Another process searches in this workspace."""

    exit_code = 6


Failure = Literal["crash", "timeout", "diverged", "out_of_memory", "invalid"]


class CandidateFailure(Exception):
    """Raised in the child to end a measurement with a typed status and its reason."""

    def __init__(self, status: Failure, reason: str) -> None:
        super().__init__(reason)
        self.status: Failure = status
        self.reason = reason


def did_you_mean(received: str, valid: Iterable[str]) -> str:
    """A hint that names the nearest valid word, or all of them where none is near."""
    words = sorted(valid)
    near = difflib.get_close_matches(received, words, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else "valid: " + ", ".join(words)
