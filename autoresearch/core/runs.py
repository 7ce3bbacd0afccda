"""Runs as they lie on the disk: found by folder, tag or file, and read, also while they search."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoresearch.core.errors import AutoresearchError, UsageError
from autoresearch.core.history import History
from autoresearch.core.journal import Journal
from autoresearch.core.records import Charge, Record
from autoresearch.core.task import SETTINGS, workspace_folder
from autoresearch.core.traces import STATE
from autoresearch.core.workspace import Workspace

JOURNAL = "journal.jsonl"
WHAT_A_RUN_IS = "a run is a workspace, a tag of this one, a folder .autoresearch/TAG or a journal.jsonl"


@dataclass(frozen=True)
class SavedRun:
    """One run as its journal tells it."""

    tag: str
    folder: Path
    """With its journals."""
    workspace: Workspace | None
    """None for a journal that was carried elsewhere without its repository: no sources then."""
    history: History
    audit: tuple[dict[str, Any], ...] = ()
    """Scores of the test split, by experiment and k."""

    @property
    def identity(self) -> str:
        """Tells it from every other run, also of the same tag, wherever its journal lies; 8 hex digits."""
        return hashlib.sha256(json.dumps(self.history.run, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def place(self) -> Path:
        """The folder that names it to a person."""
        return self.workspace.directory if self.workspace else self.folder

    @property
    def test_scores(self) -> dict[tuple[int, int], float]:
        """Of the held-out part of test that is scored along with val, in bits per byte, by experiment and k."""
        # The line written last counts: a measurement that was cut off may have left one behind.
        return {(entry["n"], entry["k"]): float(entry["test_bpb"]) for entry in self.audit if "test_bpb" in entry}

    def val_and_test(self, record: Record) -> list[tuple[float, float]]:
        """Both scores of those measurements of an experiment that are comparable by now, in bits per byte; suspect ones
        only where there is no other."""
        here = {id(result) for result in self.history.comparable(record)}
        made = [(k, result) for k, result in enumerate(record.results) if id(result) in here]
        clean = [(k, result) for k, result in made if not result.suspect]
        test = self.test_scores
        return [
            (result.val_bpb, test[record.number, k])
            for k, result in clean or made
            if result.val_bpb is not None and (record.number, k) in test
        ]

    def source(self, record: Record) -> str | None:
        """The train.py of an experiment; None where its repository isn't at hand."""
        if self.workspace is None:
            return None
        try:
            return self.workspace.read(record.commit or record.blob)
        except AutoresearchError:
            return None

    def sources(self) -> dict[int, str]:
        """The train.py of every experiment that is at hand, by number; one process of git for all."""
        if self.workspace is None:
            return {}
        names = {record.number: record.commit or record.blob for record in self.history.experiments.values()}
        texts = self.workspace.read_many(names.values())
        return {number: texts[name] for number, name in names.items() if name in texts}


def history_of(workspace: Workspace, tag: str) -> History:
    """What the journal of a run adds up to; empty where there is no such run.

    Raises:
        DataError: the journal is damaged.
    """
    journal = Journal(workspace.directory / STATE / tag / JOURNAL)
    return History.from_events(journal.read(), str(journal.path))


def charges_elsewhere(workspace: Workspace, tag: str) -> list[Charge]:
    """What the calls of a workspace's other runs cost: they count against the cap of a day.

    Raises:
        DataError: a journal is damaged.
    """
    others = (history_of(workspace, other) for other in workspace.tags() if other != tag)
    return [charge for history in others for charge in (*history.charges, *history.open_calls.values())]


def locate(directory: Path, tag: str = "") -> tuple[Workspace, str]:
    """A run of a workspace, unread.

    Args:
        directory: a workspace, or a folder with the one that the main job made.
        tag: "" is the run written to last.

    Raises:
        UsageError: no workspace, no run, or none of that tag.
    """
    place = workspace_folder(directory)
    if not place.is_dir():
        raise UsageError(f"no workspace in {directory.resolve()}", "start a search there: autoresearch")
    workspace = Workspace(place)
    tags = workspace.tags()
    if not tags:
        raise UsageError(f"{workspace.directory} has no run yet", "start one: autoresearch")
    if tag and tag not in tags:
        raise UsageError(f"no run {tag!r} in {workspace.directory}", "runs: " + ", ".join(tags))
    return workspace, tag or tags[-1]


def load(directory: Path, tag: str = "") -> SavedRun:
    """Read a run of a workspace; see `locate`.

    Raises:
        UsageError: no workspace, no run, or none of that tag.
        DataError: the journal is damaged.
    """
    workspace, chosen = locate(directory, tag)
    return _read(workspace.directory / STATE / chosen, workspace)


def find(name: str, directory: Path) -> SavedRun:
    """Read the run that a person names.

    Args:
        name: a workspace, or a folder with the one that the main job made; a tag of the workspace in `directory`; a
            run's own folder; or a journal, wherever it lies. A path from the current directory or from the workspace.
        directory: of the workspace that a tag belongs to.

    Raises:
        UsageError: it is none of these.
        DataError: the journal is damaged.
    """
    path = Path(name).expanduser()
    here = workspace_folder(directory)
    if path.is_file():
        return _read(path.resolve().parent, None, path.resolve())
    if (path / JOURNAL).is_file():
        return _read(path.resolve(), None)
    if (here / STATE / name / JOURNAL).is_file():
        return load(directory, name)
    if path.is_dir():
        return load(path)
    if not path.is_absolute() and (beside := here.resolve() / path).exists():
        return find(str(beside), directory)
    raise UsageError(f"no run {name!r} in {directory.resolve()}", WHAT_A_RUN_IS)


def _read(folder: Path, workspace: Workspace | None, path: Path | None = None) -> SavedRun:
    """The run of a folder; its workspace is looked for where none is named."""
    owner = folder.parent.parent
    if workspace is None and folder.parent.name == STATE and (owner / SETTINGS).is_file():
        workspace = Workspace(owner)
    journal = Journal(path or folder / JOURNAL)
    events = journal.read()
    if not events:
        raise UsageError(f"{journal.path} holds no run", WHAT_A_RUN_IS)
    audit = tuple(Journal(folder / "audit.jsonl").read())
    history = History.from_events(events, str(journal.path))
    return SavedRun(str(history.run.get("tag", folder.name)), folder, workspace, history, audit)
