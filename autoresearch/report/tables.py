"""Results tables of the original autoresearch and of its ports, and one reader for whatever a person calls a run.

The original writes five tab-separated columns: commit, val_bpb, memory_gb, status, description. Others add columns, and
name and order them in their own way. Columns are found by their names; a row that can't be read is named, the rest is
read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, cast

from autoresearch.core.contract import Result, Status
from autoresearch.core.errors import DataError, UsageError
from autoresearch.core.process import one_line
from autoresearch.core.runs import WHAT_A_RUN_IS, find
from autoresearch.report.described import Described
from autoresearch.report.trajectory import FAILURES, Row, Trajectory, of_run

RESULTS = "results.tsv"
MAX_SCORE = 100.0
"""Bits per byte: a uniform guess over a vocabulary of any size needs fewer."""
WHAT_A_TABLE_IS = (
    "its columns are separated by tabs and named in the first line: commit, val_bpb, memory_gb, status, description"
)

# Names of columns in the wild, in lower case with "_" for all that is no letter or digit; the first one found is taken.
_COLUMNS = {
    "score": "val_bpb bpb validation_bpb val_bits_per_byte bits_per_byte final_val_bpb",
    "status": "status verdict decision outcome keep kept result",
    "description": "description hypothesis change idea notes note summary config_summary experiment_name",
    "commit": "commit commit_hash git_commit git_hash hash sha",
    "memory": "memory_gb peak_memory_gb peak_mem_gb peak_vram_gb vram_gb mem_gb memory_mb peak_memory_mb peak_mem_mb "
    "peak_vram_mb vram_mb mem_mb peak_heap_mb",
    "time": "timestamp datetime date_time finished_at started_at time date",
    "backend": "backend framework",
    "device": "device device_name chip gpu gpu_name hardware accelerator machine",
    "steps": "num_steps steps n_steps train_steps total_steps",
    "tokens": "total_tokens_m tokens_m total_tokens num_tokens tokens",
    "tokens_per_second": "tokens_per_second tokens_per_sec tok_per_sec tok_per_s tokens_s tok_sec tok_s tps throughput",
    "train_seconds": "training_seconds train_seconds training_time train_time train_s",
    "total_seconds": "total_seconds wall_seconds seconds duration_seconds duration_s duration elapsed_seconds elapsed "
    "total_time wall_s",
    "num_params": "num_params_m params_m num_params n_params params parameters",
    "mfu": "mfu_percent mfu_pct mfu",
    "depth": "depth n_layer num_layers layers",
    "category": "category strategy arm",
    "proposer": "proposer agent agent_id",
    "cost": "cost_usd cost",
}
_WORDS = {"score", "status", "description", "commit", "time", "backend", "device", "category", "proposer"}
_NUMBERS = _COLUMNS.keys() - _WORDS
_UNITS = {"gb": 2.0**30, "mb": 2.0**20, "m": 1e6, "percent": 0.01, "pct": 0.01}
_ORIGINAL = ("commit", "val_bpb", "memory_gb", "status", "description")
_VERDICTS = {
    "keep": "keep kept accept accepted improved improvement baseline best yes true",
    "discard": "discard discarded reject rejected revert reverted worse no false",
    "crash": "crash crashed fail failed failure error",
    "timeout": "timeout timed_out",
    "diverged": "diverged nan",
    "out_of_memory": "out_of_memory oom",
    "invalid": "invalid",
    "": "ok done success completed",  # it ran; whether it was kept is told by its score
}
_VERDICT_OF = {word: verdict for verdict, words in _VERDICTS.items() for word in words.split()}
_RULE = re.compile(r"[-=_*#~|+:\s]*")
_TITLE = re.compile(r"\s*(-{3,}|={3,}|#)")
_NOTHING = frozenset({"", "-", "--", "---", "–", "—", "?", "n/a", "na", "nan", "none", "null", "inf", "-inf"})


class Unreadable(Exception):
    """Of a row: why."""


class Columns(NamedTuple):
    """Where a header puts what."""

    at: Mapping[str, int]
    """Index by the keys of _COLUMNS."""
    names: tuple[str, ...]


@dataclass
class _Entry:
    """One row as it was read."""

    line: int
    verdict: str
    score: float | None
    cells: Mapping[str, str]
    numbers: Mapping[str, float]
    """In bytes, seconds, counts and shares; 0.0 where there is none."""
    decided_at: datetime | None = None
    here: bool = True
    """Measured where the baseline was."""


@dataclass
class _Table:
    entries: list[_Entry] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    best: float = math.inf
    """Lowest score kept so far."""


def read(name: str, directory: Path) -> Trajectory:
    """The trajectory of a run of any kind.

    Args:
        name: whatever `core.runs.find` takes, a results table, or a folder that holds a results.tsv and no run.
        directory: of the workspace that a tag belongs to.

    Raises:
        UsageError: it is none of these.
        DataError: it can't be read, or a journal is damaged.
    """
    path = Path(name).expanduser()
    if path.is_file() and not _is_journal(path):
        return of_table(path)
    try:
        return of_run(find(name, directory))
    except UsageError as error:
        if (path / RESULTS).is_file():
            return of_table(path / RESULTS)
        if error.hint == WHAT_A_RUN_IS:
            raise UsageError(error.message, f"{WHAT_A_RUN_IS}; or a {RESULTS}, also of another tool") from error
        raise


def of_table(path: Path) -> Trajectory:
    """The trajectory that a results table tells of.

    The first row with a score is the baseline where it was kept or says "baseline"; else the first one that was kept
    is. A row's gain is the lowest score kept before minus its own. A score that is no finite number above 0 and below
    MAX_SCORE is none: a crash's 0.000000 is never a minimum. Constants are those that descriptions name, see
    `described`.

    Raises:
        UsageError: it is no such table.
        DataError: it can't be read.
    """
    table = _parse(path, _text(path))
    baseline = _baseline(table.entries)
    name = path.stem if path.name != RESULTS else path.resolve().parent.name
    return Trajectory(
        name=one_line(name) or "table",
        place=path.resolve(),
        backend=_machine(table, baseline, "backend"),
        device=_machine(table, baseline, "device"),
        # After the machines, which say what is comparable.
        rows=tuple(_rows(table.entries, baseline)),
        problems=tuple(table.problems),
    )


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"can't read {path}: {error.strerror or error}", "check the path and its permissions"
        ) from error


def _is_journal(path: Path) -> bool:
    return _content(path).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{"


def _text(path: Path) -> str:
    content = _content(path)
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", "replace")  # as PowerShell redirects
    if b"\0" in content:
        raise UsageError(f"{path} is no table of results: it is not a text", WHAT_A_TABLE_IS)
    return content.decode("utf-8-sig", "replace")


def _parse(path: Path, text: str) -> _Table:
    table, columns = _Table(), None
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        if _RULE.fullmatch(line):
            continue
        cells = line.split("\t")
        if header := _header(cells):
            if columns is None and "status" not in header.at:
                table.problems.append(f"line {number}: no column of verdicts; what beat all before it counts as kept")
            columns = header
            continue
        known = columns or _header(_ORIGINAL)
        assert known is not None, "the original's header is one"
        try:
            entry = _entry(number, cells, known, table)
        except Unreadable as reason:
            if not _TITLE.match(line):  # such lines only part the others
                table.problems.append(f"line {number}: {reason}")
            continue
        table.entries.append(entry)
        if entry.verdict == "keep" and entry.score is not None:
            table.best = min(table.best, entry.score)
    if columns is None and not table.entries:
        raise UsageError(f"{path} is no table of results", WHAT_A_TABLE_IS)
    return table


def _plain(text: str) -> str:
    """A name or a word, for look-ups."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def _header(cells: Sequence[str]) -> Columns | None:
    """The columns that a line names; None where it is no header."""
    names = [_plain(cell) for cell in cells]
    at = {key: names.index(name) for key, words in _COLUMNS.items() for name in [_first(words.split(), names)] if name}
    return Columns(at, tuple(names)) if "score" in at and len(at) > 1 else None


def _first(words: Sequence[str], names: Sequence[str]) -> str:
    return next((word for word in words if word in names), "")


def _entry(line: int, cells: Sequence[str], columns: Columns, table: _Table) -> _Entry:
    """The row of a line.

    Raises:
        Unreadable: why it is none.
    """
    cells = _aligned(cells, columns)
    found = {key: one_line(_unquoted(cells[at])) for key, at in columns.at.items() if at < len(cells)}
    missing = [columns.names[columns.at[key]] for key in ("score", "status") if key in columns.at and key not in found]
    if missing:
        raise Unreadable(f"{len(cells)} of {len(columns.names)} columns, without {' and '.join(missing)}")
    score, reason = _score(found["score"])
    verdict = _verdict(found["status"]) if "status" in found else ""
    if verdict is None:
        raise Unreadable(f"unknown status {found['status']!r}; known: keep, discard, crash")
    if verdict == "":
        verdict = "crash" if score is None else "keep" if score < table.best else "discard"
    if reason and verdict == "keep":
        raise Unreadable(f"kept, but its score is {reason}")
    if reason and verdict == "discard":
        table.problems.append(f"line {line}: its score is {reason}; read without one")
    numbers = {key: _number(found[key], columns.names[columns.at[key]]) for key in _NUMBERS if key in found}
    moment = _moment(found.get("time", ""))
    return _Entry(line, verdict, None if verdict in FAILURES else score, found, numbers, moment)


def _aligned(cells: Sequence[str], columns: Columns) -> list[str]:
    """A row's cells, one for each column: tabs in the description are part of it, a commit may be left out."""
    cells, width = list(cells), len(columns.names)
    while len(cells) > width and not cells[-1].strip():
        cells.pop()
    text, status, score = (columns.at.get(key) for key in ("description", "status", "score"))
    if (more := len(cells) - width) > 0:
        text = width - 1 if text is None else text
        cells[text : text + more + 1] = [" ".join(cells[text : text + more + 1])]
    elif more == -1 and columns.at.get("commit") == 0 and status and score:
        left_out = _verdict(cells[status - 1]) is not None and "." in cells[score - 1]
        cells[:0] = [""] * left_out
    return cells


def _unquoted(cell: str) -> str:
    cell = cell.strip()
    return cell[1:-1].replace('""', '"') if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell


def _verdict(text: str) -> str | None:
    """A verdict; "" where only the score tells; None where the word isn't known."""
    word = _plain(text)
    return _VERDICT_OF.get(word, _VERDICT_OF.get(word.split("_")[0]))


def _score(text: str) -> tuple[float | None, str]:
    """Bits per byte, or what is wrong with it."""
    if text.strip().lower() in _NOTHING:
        return None, f"missing ({text!r})"
    try:
        value = float(text)
    except ValueError:
        return None, f"no number ({text!r})"
    if not 0 < value < MAX_SCORE:
        return None, f"out of range ({text!r})"
    return value, ""


def _number(text: str, column: str) -> float:
    """The number that a cell begins with, e.g. "44.0 GB" or "1,234", in the unit that the column's name ends with.

    0.0 where there is none, or none above 0.
    """
    match = re.match(r"\d[\d,]*(\.\d*)?([eE][-+]?\d+)?", text)
    value = float(match[0].replace(",", "")) * _UNITS.get(column.rsplit("_", 1)[-1], 1.0) if match else 0.0
    return value if math.isfinite(value) else 0.0


def _moment(text: str) -> datetime | None:
    """A time stamp: ISO 8601, UTC where it names no zone, or seconds since 1970."""
    with suppress(ValueError, OverflowError, OSError):
        if re.fullmatch(r"\d{9,11}(\.\d+)?", text):
            return datetime.fromtimestamp(float(text), UTC)
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None


def _baseline(entries: Sequence[_Entry]) -> _Entry | None:
    scored = [entry for entry in entries if entry.score is not None]
    if scored and "baseline" in f"{scored[0].cells.get('commit')} {scored[0].cells.get('description')}".lower():
        return scored[0]
    return next((entry for entry in scored if entry.verdict == "keep"), None)


def _machine(table: _Table, baseline: _Entry | None, column: str) -> str:
    """The backend or device of a search; rows of another one are marked."""
    cells = [(entry, entry.cells.get(column, "")) for entry in table.entries]
    named = baseline.cells.get(column, "") if baseline else next((cell for _, cell in cells if cell), "")
    others: dict[str, int] = {}
    for entry, cell in cells:
        if named and cell and cell.lower() != named.lower():
            entry.here = False
            others[cell] = others.get(cell, 0) + 1
    for other, count in others.items():
        told = f"{count} row{'s' * (count > 1)} of {column} {other}, the baseline's is {named}"
        table.problems.append(f"{told}: their scores are compared with nothing")
    return named


def _rows(entries: Sequence[_Entry], baseline: _Entry | None) -> Iterator[Row]:
    described = Described(entry.cells.get("description", "") for entry in entries)
    best, incumbent = math.inf, None
    for number, entry in enumerate(entries):
        text = entry.cells.get("description", "")
        value = entry.score if entry.here else None
        kept = value is not None and (entry.verdict == "keep" or entry is baseline)
        yield Row(
            number=number,
            verdict=entry.verdict,
            description=text,
            val_bpb=entry.score,
            is_baseline=entry is baseline,
            value=value,
            gain=best - value if value is not None and math.isfinite(best) else None,
            category=entry.cells.get("category", ""),
            proposer=entry.cells.get("proposer", ""),
            commit=_name(entry.cells.get("commit", "")),
            parent=incumbent,
            constants=described.step(text, kept),
            seconds=entry.numbers.get("total_seconds") or entry.numbers.get("train_seconds", 0.0),
            cost_usd=entry.numbers.get("cost", 0.0),
            memory_bytes=int(entry.numbers.get("memory", 0)),
            results=_results(entry),
            decided_at=entry.decided_at,
        )
        if kept and value is not None:
            best, incumbent = min(best, value), number


def _name(commit: str) -> str:
    return "" if commit.lower() in _NOTHING else commit


def _results(entry: _Entry) -> tuple[Result, ...]:
    """The measurement, where the table tells more of it than its score."""
    numbers = entry.numbers
    if not any(numbers.get(key) for key in _NUMBERS if key not in ("memory", "cost")):
        return ()
    return (
        Result(
            status=cast(Status, entry.verdict if entry.verdict in FAILURES else "ok"),
            val_bpb=entry.score,
            train_seconds=numbers.get("train_seconds", 0.0),
            total_seconds=numbers.get("total_seconds", 0.0),
            steps=int(numbers.get("steps", 0)),
            tokens=int(numbers.get("tokens", 0)),
            tokens_per_second=numbers.get("tokens_per_second", 0.0),
            num_params=int(numbers.get("num_params", 0)),
            peak_memory_bytes=int(numbers.get("memory", 0)),
            mfu=numbers.get("mfu") or None,
            facts={"depth": int(numbers["depth"])} if numbers.get("depth") else {},
        ),
    )
