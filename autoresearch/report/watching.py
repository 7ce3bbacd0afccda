"""A search watched from another process: its journal and its progress are followed, nothing is touched."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import sleep
from typing import Any

from autoresearch.core import runs
from autoresearch.core.errors import AutoresearchError
from autoresearch.core.history import History
from autoresearch.core.journal import Event, JournalReader
from autoresearch.core.progress import Progress, read_progress
from autoresearch.core.records import Charge
from autoresearch.core.runs import JOURNAL, SavedRun
from autoresearch.core.standing import Standing, session_of, standing_of
from autoresearch.core.view import Outcome, View, note_of, outcome_of
from autoresearch.report import summary


class Follower:
    """A run as another process goes on with it.

    Args:
        directory: a workspace, or a folder with the one that the main job made.
        tag: "" is the run that is searched now, else the one written to last.

    Raises:
        UsageError: no workspace, no run, or none of that tag.
    """

    def __init__(self, directory: Path, tag: str = "") -> None:
        workspace, latest = runs.locate(directory, tag)
        searched = (t for t in workspace.tags() if (found := read_progress(workspace.run_dir(t))) and found.alive)
        self.tag = tag or next(searched, latest)
        self._workspace = workspace
        self._folder = workspace.run_dir(self.tag)
        self._reader = JournalReader(self._folder / JOURNAL)
        self._elsewhere: Iterable[Charge] = ()
        self.history = History(str(self._reader.path))
        self.progress: Progress | None = None
        """Of the search; None where none runs."""

    @property
    def saved(self) -> SavedRun:
        return SavedRun(self.tag, self._folder, self._workspace, self.history)

    @property
    def standing(self) -> Standing:
        return standing_of(self.history, *session_of(self.history), self._elsewhere)

    def look(self) -> Iterator[tuple[Event, float | None]]:
        """What happened since the last look: each event, once it is in the history, and the change of a verdict's score
        against the incumbent that it was judged by.

        Raises:
            DataError: the journal is damaged.
        """
        # In this order: whatever a search wrote before it was gone is read.
        found = read_progress(self._folder)
        self.progress = found if found is not None and found.alive else None
        for event in self._reader.new():
            incumbent = self.history.incumbent
            self.history.apply(event)
            if event["event"] in ("run", "resumed") and session_of(self.history)[1].day_usd:
                self._elsewhere = runs.charges_elsewhere(self._workspace, self.tag)
            score, value = event.get("val_bpb"), incumbent.value if incumbent else None
            yield event, score - value if event["event"] == "decided" and score is not None and value else None

    def check_ended(self) -> None:
        """Nothing where a search that is over said so.

        Raises:
            AutoresearchError: it ended without a word.
        """
        if not self.history.stop_reason:
            raise AutoresearchError(
                f"the search of run {self.tag!r} is gone: it was killed, or its machine went down",
                "what was measured is kept; go on with it: autoresearch --tag " + self.tag,
            )


def watch(follower: Follower, view: View, seconds: float) -> None:
    """Show a search until it ends, as the search itself would.

    Args:
        seconds: between two looks.

    Raises:
        AutoresearchError: the journal is damaged, or the search was killed.
    """
    for _ in follower.look():
        pass  # what happened before is told in one piece
    if follower.progress is not None:
        view.note(f"run {follower.tag} in {follower.saved.place}, searched by process {follower.progress.pid}")
        view.standing(follower.standing)
    count = 0
    message: dict[str, Any] = {}
    while (progress := follower.progress) is not None:
        if progress.title and progress.count != count:
            view.begin(progress.title)
            count, message = progress.count, {}
        if progress.title and progress.message != message:
            message = dict(progress.message)
            view.event(message)
        sleep(seconds)
        changed = False
        for event, change in follower.look():
            changed = True
            if event["event"] == "decided":
                view.decided(_outcome(follower.history, event["n"], change))
            elif told := note_of(event, follower.history):
                view.note(told)
        if changed:
            view.standing(follower.standing)
    follower.check_ended()
    view.note(summary.status_text(follower.saved))


def _outcome(history: History, number: int, change: float | None) -> Outcome:
    return outcome_of(history.experiments[number], change, history.cost_of(number))


def watch_documents(follower: Follower, print_line: Callable[[str], None], seconds: float) -> None:
    """A line of JSON for each state in which a search is found: that of `status --json`, and `progress`.

    Args:
        print_line: takes the lines.
        seconds: between two looks.

    Raises:
        AutoresearchError: the journal is damaged, or the search was killed.
    """
    last = ""
    status: dict[str, Any] = {}
    while True:
        if [*follower.look()] or not status:
            status = summary.status(follower.saved)
        progress = follower.progress
        line = json.dumps({**status, "progress": None if progress is None else _told(progress)}, allow_nan=False)
        if line != last:
            print_line(line)
        if progress is None:
            break
        last = line
        sleep(seconds)
    follower.check_ended()


def _told(progress: Progress) -> dict[str, Any]:
    """Without the times of writing, so that what didn't change is equal."""
    return {"pid": progress.pid, "title": progress.title, "measurement": progress.count, **progress.message}
