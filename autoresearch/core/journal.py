"""The journal of a run: append-only JSON lines, the only truth about it. `results.tsv` is an export.

One event is one line: `{"event": "proposed", "time": "2025-11-30T18:00:00.000+00:00", ...}`. `core.history` says
which events there are and what they add up to. A line is on the disk before `append` returns, so whoever acts after
it (trains, moves a ref) finds after `kill -9` what it had begun.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autoresearch.core.errors import AutoresearchError, DataError
from autoresearch.core.files import io_error, sync_directory, write_atomic
from autoresearch.core.history import History
from autoresearch.core.records import Record

Event = dict[str, Any]


class Journal:
    """The events of one run, in order. One process appends (see `Workspace.lock`), any number read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Nothing is opened or created here.

        Args:
            path: `.autoresearch/<tag>/journal.jsonl`; its folder must exist by the first `append`.
        """
        self.path = Path(path)

    def append(self, event: str, **data: Any) -> Event:
        """Write one event durably; a line that a killed process left torn is repaired before.

        Returns:
            The event as `read` will return it, but for tuples, which JSON makes lists.

        Raises:
            AutoresearchError: a value that JSON can't hold (NaN, infinity, an object), or the disk refuses. The
                journal then holds what it held before.
        """
        entry: Event = {"event": event, "time": datetime.now(UTC).isoformat(timespec="milliseconds")}
        if clash := entry.keys() & data.keys():
            raise ValueError(f"an event can't carry a field of its own named {', '.join(clash)}")
        entry |= data
        # A lone surrogate, e.g. of an undecodable file name, becomes the JSON escape that stands for it.
        line = (_encode(entry) + "\n").encode("utf-8", "backslashreplace")
        created = not self.path.exists()
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                self._repair(fd)
                _write_whole(fd, line)
            finally:
                os.close(fd)
            if created:
                sync_directory(self.path.parent)
        except OSError as error:
            raise io_error("write", self.path, error) from error
        return entry

    def read(self) -> list[Event]:
        """All events; none where there is no journal yet. Changes nothing, so it may run beside a search.

        A torn last line is left out: what it was to say had not been acted on.

        Raises:
            DataError: another line is damaged, or the file can't be read.
        """
        reader = JournalReader(self.path)
        events = reader.new()
        if (last := _decode(reader.torn)) is not None:
            events.append(last)
        return events

    def _repair(self, fd: int) -> None:
        """End the last line: complete it where only its newline is missing, else move it to `journal.jsonl.torn`."""
        size = os.fstat(fd).st_size
        if size == 0 or os.pread(fd, 1, size - 1) == b"\n":
            return
        content = self.path.read_bytes()
        start = content.rfind(b"\n") + 1
        if _decode(content[start:]) is not None:
            _write_whole(fd, b"\n")
            return
        torn = self.path.with_name(self.path.name + ".torn")
        torn_fd = os.open(torn, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            _write_whole(torn_fd, content[start:] + b"\n")
        finally:
            os.close(torn_fd)
        os.ftruncate(fd, start)
        os.fsync(fd)


class JournalReader:
    """Reads a journal while another process appends to it: call after call, what came since the last one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = b""
        """After the last newline: a line that is being written, or was cut off."""
        self._position = 0
        """Behind the last newline."""
        self._lines = 0

    def new(self) -> list[Event]:
        """Events whose lines are whole, in order; none where there is no journal yet.

        Raises:
            DataError: a line is damaged, lines that were read are gone, or the file can't be read.
        """
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._position:
                    raise DataError(f"{self.path} became shorter while it was read", "something else changed it")
                file.seek(self._position)
                content = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DataError(f"can't read {self.path}: {error.strerror or error}") from error
        *lines, self.torn = content.split(b"\n")
        self._position += len(content) - len(self.torn)
        return [self._event(line) for line in lines]

    def _event(self, line: bytes) -> Event:
        self._lines += 1
        event = _decode(line)
        if event is None:
            raise DataError(
                f"{self.path}, line {self._lines} is not an event: {line[:60]!r}",
                "the journal was changed by something else; restore the line, or start a new run with --tag NAME",
            )
        return event


def _encode(entry: Event) -> str:
    def json_text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    try:
        return json_text(entry)
    except (TypeError, ValueError):
        for name, value in entry.items():
            try:
                json_text(value)
            except (TypeError, ValueError) as error:
                raise AutoresearchError(
                    f"the journal can't hold {name!r} of the event {entry['event']!r}: {error}",
                    "a failed measurement has the value null, not NaN or infinity",
                ) from error
        raise


def _decode(line: bytes) -> Event | None:
    """The event of a line, or None where it isn't one. No proper prefix of an event is an event."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def _write_whole(fd: int, data: bytes) -> None:
    """Append `data` durably in one write; what a full disk let through is taken back."""
    size = os.fstat(fd).st_size
    try:
        written = os.write(fd, data)
        # A short write doesn't say why; going on does, where the disk is full.
        while written < len(data):
            written += os.write(fd, data[written:])
        os.fsync(fd)
    except OSError:
        os.ftruncate(fd, size)
        raise


_HEADER = "commit\tval_bpb\tmemory_gb\tstatus\tdescription\n"


def export_results(history: History, path: str | os.PathLike[str]) -> None:
    """Write results.tsv in the format of the original autoresearch, the baseline first.

    One row for each decided experiment: `commit` (7 hex digits), `val_bpb` (6 decimals, 0.000000 after a failure),
    `memory_gb` (GiB at the peak, 1 decimal, 0.0 after a failure), `status` (keep, discard or crash) and `description`,
    which begins with the kind of the failure ("timeout: ...") where there was one.

    Raises:
        AutoresearchError: the file can't be written.
    """
    decided = (record for record in history.experiments.values() if record.verdict is not None)
    write_atomic(path, _HEADER + "".join(_row(record) for record in decided))


def _row(record: Record) -> str:
    status, description, memory_gb, val_bpb = "crash", f"{record.verdict}: {record.hypothesis}", 0.0, 0.0
    if not record.failed:
        status = "keep" if record.kept else "discard"
        description = record.hypothesis if record.withdrawn is None else f"withdrawn: {record.hypothesis}"
        memory_gb = max((result.peak_memory_bytes for result in record.results), default=0) / 2**30
        val_bpb = record.val_bpb or 0.0
    # A quote at the start of a field would make pandas read on to the next one, over the ends of lines.
    printable = "".join(c if c.isprintable() else " " for c in description).replace('"', "'")
    commit = (record.commit or record.blob)[:7]
    return f"{commit}\t{val_bpb:.6f}\t{memory_gb:.1f}\t{status}\t{' '.join(printable.split())}\n"
