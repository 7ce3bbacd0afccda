"""Data sets of the Hugging Face hub: which files, their pins, and fetching them.

The hub states size and SHA-256 of every file. They are looked up once, at one revision, and kept in the cache as pins
after the files were fetched and verified: later starts need no network and see the same data, whatever happens to the
repository. huggingface_hub reads HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE itself and keeps the files in its
own cache, shared with other tools. A broken transfer goes on where it stopped; finished files are never fetched again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoresearch.core.dataset import sha256_file
from autoresearch.core.errors import DataError
from autoresearch.core.extras import install_hint
from autoresearch.core.files import write_atomic

_PROBE_SECONDS = 5.0
_LISTING_SECONDS = 60.0
_CONNECTIONS = 4
_ATTEMPTS = 3

Progress = Callable[[str, float], None]


class HubUnavailable(DataError):
    """The hub can't be asked: no connection, offline mode, no access, or huggingface_hub isn't installed."""


@dataclass(frozen=True)
class HubData:
    """A data set as .parquet files with a column "text"."""

    repo: str
    train: tuple[str, ...]
    """File names in order; a task that needs less text takes the first ones."""
    held_out: tuple[str, ...] = ()
    """The pinned shard of val and test; empty where documents are dealt by content."""
    shard_tokens: int = 0
    """Tokens that a train file holds at least, for vocabularies of about 8,192; 0 takes all files."""

    def train_files(self, train_tokens: int) -> tuple[str, ...]:
        """The train files that hold that many tokens.

        Raises:
            DataError: the number of tokens isn't stated, or more than the data set has.
        """
        if not self.shard_tokens:
            return self.train
        needed = -(-train_tokens // self.shard_tokens)
        if not 0 < needed <= len(self.train):
            raise DataError(
                f"{self.repo} has {len(self.train)} train shards of {self.shard_tokens:,} tokens or more; "
                f"train_tokens = {train_tokens} asks for {needed}",
                "set [task] train_tokens",
            )
        return self.train[:needed]


HUB_DATA = {
    # One file of 641 MB: stories written by GPT-4 alone, cleaned.
    "tinystories": HubData("karpathy/tinystories-gpt4-clean", ("tinystories_gpt4_clean.parquet",)),
    # The original's data: about 60 M tokens a shard, documents shuffled, the last shard pinned for validation.
    "climbmix": HubData(
        "karpathy/climbmix-400b-shuffle",
        tuple(f"shard_{i:05d}.parquet" for i in range(6542)),
        held_out=("shard_06542.parquet",),
        shard_tokens=55_000_000,
    ),
}


@dataclass(frozen=True)
class Pin:
    """What a file must be."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Pins:
    """Files of a repository at one revision."""

    revision: str
    files: dict[str, Pin]


def _pins_path(cache: Path, repo: str) -> Path:
    return cache / "hub" / (repo.replace("/", "--") + ".json")


def load_pins(cache: Path, repo: str) -> Pins | None:
    """The pins kept in the cache; None where there are none.

    Raises:
        DataError: the file is damaged.
    """
    path = _pins_path(cache, repo)
    try:
        document = json.loads(path.read_bytes())
        files = {str(name): Pin(int(pin["size"]), str(pin["sha256"])) for name, pin in document["files"].items()}
        return Pins(str(document["revision"]), files)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is damaged: {error!r}", f"delete it: rm '{path}'") from error


def _save_pins(cache: Path, repo: str, pins: Pins) -> None:
    path = _pins_path(cache, repo)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(asdict(pins), indent=1) + "\n")


def _reason(error: Exception) -> str:
    """One line of an error of huggingface_hub, whose messages go over several."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def resolve_pins(cache: Path, repo: str, names: Sequence[str]) -> Pins:
    """Size and SHA-256 of files, from the cache where they are kept there, else from the hub.

    Gives up on a silent hub after seconds.

    Raises:
        HubUnavailable: the hub is needed and can't be asked.
        DataError: the repository lacks one of the files; names it.
    """
    kept = load_pins(cache, repo)
    if kept is not None and all(name in kept.files for name in names):
        return Pins(kept.revision, {name: kept.files[name] for name in names})
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise HubUnavailable("huggingface_hub isn't installed", install_hint("hub")) from error
    try:
        # The first call is small and tells whether the hub is there; the listing of thousands of files takes longer.
        revision = kept.revision if kept is not None else HfApi().dataset_info(repo, timeout=_PROBE_SECONDS).sha
        listing = HfApi().dataset_info(repo, revision=revision, files_metadata=True, timeout=_LISTING_SECONDS)
    except Exception as error:  # which library speaks HTTP, and so what it raises, depends on huggingface_hub's version
        raise HubUnavailable(f"can't ask the hub for {repo}: {_reason(error)}", _ACCESS_HINT) from error
    stated = {file.rfilename: file for file in listing.siblings or ()}
    files = {}
    for name in names:
        file = stated.get(name)
        if file is None:
            raise DataError(f"the data set {repo} has no file {name} at revision {revision}", "check HF_ENDPOINT")
        if file.lfs is None:
            raise DataError(f"the hub states no SHA-256 for {name} of {repo}", "check HF_ENDPOINT")
        files[name] = Pin(file.lfs.size, file.lfs.sha256)
    return Pins(str(revision), files)


_ACCESS_HINT = "check the connection, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE, or give local files: --source PATH"


def fetch(cache: Path, repo: str, pins: Pins, progress: Progress) -> dict[str, Path]:
    """Fetch files and verify them.

    Returns:
        Paths by file name. Files that huggingface_hub has already are only verified.

    Raises:
        DataError: a file can't be fetched or isn't what its pin says; names it. Finished files are kept.
    """
    paths: dict[str, Path] = {}
    total = sum(pin.size for pin in pins.files.values())
    done = 0
    label = f"fetching {len(pins.files)} files of {repo} ({total / 1e6:,.0f} MB)"
    progress(label, 0.0)
    pool = ThreadPoolExecutor(_CONNECTIONS)
    try:
        jobs = {pool.submit(_fetch_file, repo, pins.revision, name, pin): name for name, pin in pins.files.items()}
        for job in as_completed(jobs):
            paths[jobs[job]] = job.result()
            done += pins.files[jobs[job]].size
            progress(label, done / total)
    finally:
        pool.shutdown(cancel_futures=True)
    kept = load_pins(cache, repo)
    files = {**kept.files, **pins.files} if kept is not None and kept.revision == pins.revision else pins.files
    _save_pins(cache, repo, Pins(pins.revision, files))
    return paths


def _fetch_file(repo: str, revision: str, name: str, pin: Pin) -> Path:
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError
        from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]
    except ImportError as error:
        raise HubUnavailable("huggingface_hub isn't installed", install_hint("hub")) from error
    disable_progress_bars()
    for attempt in range(_ATTEMPTS):
        try:
            path = Path(hf_hub_download(repo, name, repo_type="dataset", revision=revision))
            break
        except Exception as error:  # see resolve_pins
            # Without a connection it is a LocalEntryNotFoundError, which is a FileNotFoundError too.
            absent = isinstance(error, EntryNotFoundError) and not isinstance(error, FileNotFoundError)
            if absent or attempt == _ATTEMPTS - 1:
                raise DataError(
                    f"can't fetch {name} of {repo}: {_reason(error)}",
                    "run `autoresearch prepare` again: finished files are kept",
                ) from error
    problem = _mismatch(path, pin)
    if problem:
        # The name in the hub's cache is a link to the content: both go, so that the next try fetches anew.
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise DataError(f"{name} of {repo} is damaged: {problem}", "run `autoresearch prepare` again to fetch it anew")
    return path


def _mismatch(path: Path, pin: Pin) -> str:
    size = path.stat().st_size
    if size != pin.size:
        return f"it has {size} bytes, the hub states {pin.size}"
    digest = sha256_file(path)
    return "" if digest == pin.sha256 else f"its SHA-256 is {digest}, the hub states {pin.sha256}"


def identity(data: HubData, pins: Pins, names: Sequence[str]) -> dict[str, Any]:
    """What makes two fetched data sets the same: the content of the files, in order."""
    return {
        "hub": data.repo,
        "train": [pins.files[name].sha256 for name in names],
        "held_out": [pins.files[name].sha256 for name in data.held_out],
    }
