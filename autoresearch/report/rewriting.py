"""The page of a run, written again and again while its search goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic as _now

from autoresearch.core.runs import load
from autoresearch.core.view import Outcome, Relay, View
from autoresearch.report.document import missing

FIRST_SECONDS = 60.0
"""A search that ends sooner is over before anybody looked."""
PAUSE = 30.0
"""Times the seconds that a page took until the next one: it never takes more than 1/31 of a search."""


def rewriting(view: View, directory: Path) -> View:
    """`view`, and the page besides, where the packages that it needs are installed.

    Args:
        directory: of the search, see `runs.locate`; its run is the one written to last.
    """
    if missing():
        return view

    def write() -> Path:
        from autoresearch.report import page

        saved = load(directory)
        return page.write(saved, saved.folder)

    return Rewriting(view, write)


class Rewriting(Relay):
    """Writes the page after a verdict, before the next proposal: never while a measurement runs, whose clock would pay.

    What goes wrong with it is said once, and the search goes on.

    Args:
        view: told of everything.
        write: writes the page; where it lies.
    """

    def __init__(self, view: View, write: Callable[[], Path]) -> None:
        super().__init__(view)
        self._write = write
        self._next = _now() + FIRST_SECONDS
        self._stale = self._said = self._failed = False

    def decided(self, outcome: Outcome) -> None:
        super().decided(outcome)
        self._stale = True
        if _now() >= self._next:
            self._rewrite()

    def close(self) -> None:
        try:
            # The last experiments are on it too, where there is a page.
            if self._stale and (self._said or _now() >= self._next):
                self._rewrite()
        finally:
            super().close()

    def _rewrite(self) -> None:
        began = _now()
        try:
            path = self._write()
            self._stale = False
        except Exception as error:  # whatever it is, a search of a night doesn't end for a page
            if not self._failed:
                self._failed = True
                told = getattr(error, "message", "") or f"{type(error).__name__}: {error}"
                self.note(f"  the report page can't be written: {told}; the search goes on without it")
        else:
            if not self._said:
                self._said = True
                self.note(f"  the report page, rewritten as the search goes on: {path}")
        self._next = _now() + PAUSE * (_now() - began)
