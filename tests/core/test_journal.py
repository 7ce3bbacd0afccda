"""The journal keeps what it acknowledged, whatever happens to its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from autoresearch.core.errors import AutoresearchError, DataError
from autoresearch.core.files import write_atomic
from autoresearch.core.journal import Journal, JournalReader


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


def names(journal: Journal) -> list[str]:
    return [event["event"] for event in journal.read()]


def child(code: str, *args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)], stdout=subprocess.PIPE, text=True
    )


# Appending and reading


def test_events_come_back_in_order_as_one_line_each(journal: Journal) -> None:
    text = 'tabs\t, lines\n\u2028, "quotes", naïve 中文 🙂 and an undecodable name \udc80'
    first = journal.append("run", text=text, values=[1, 2.5, None, True], nested={"a": {"b": []}})
    journal.append("stopped", reason="")
    assert journal.read()[0] == first
    assert names(journal) == ["run", "stopped"]
    lines = journal.path.read_bytes().split(b"\n")
    assert len(lines) == 3 and lines[-1] == b""
    assert json.loads(lines[0])["text"] == text
    assert "naïve 中文 🙂".encode() in lines[0]
    assert first["time"].endswith("+00:00")


def test_there_is_no_file_before_the_first_event(journal: Journal) -> None:
    assert journal.read() == []
    assert not journal.path.exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"loss": [1.0, float("-inf")]}, object(), {1, 2}])
def test_a_value_that_json_cannot_hold_is_refused_and_named(journal: Journal, value: Any) -> None:
    journal.append("run")
    before = journal.path.read_bytes()
    with pytest.raises(AutoresearchError, match=r"'result' of the event 'measured'"):
        journal.append("measured", n=1, result=value)
    assert journal.path.read_bytes() == before


def test_a_field_cannot_take_the_place_of_the_time(journal: Journal) -> None:
    with pytest.raises(ValueError, match="time"):
        journal.append("run", time="yesterday")


# Damage


def test_every_way_to_tear_the_last_line_is_recovered(journal: Journal) -> None:
    journal.append("run", settings={"a": 1})
    kept = journal.path.read_bytes()
    journal.append("proposed", n=0, hypothesis="naïve }{ \\ 🙂")
    whole = journal.path.read_bytes()
    torn_file = journal.path.with_name("journal.jsonl.torn")
    for cut in range(len(kept) + 1, len(whole)):
        torn_file.unlink(missing_ok=True)
        journal.path.write_bytes(whole[:cut])
        # All but the newline is there at the last cut: that event is one, for readers and writers alike.
        expected = ["run", "proposed"] if cut == len(whole) - 1 else ["run"]
        assert names(journal) == expected
        assert journal.path.read_bytes() == whole[:cut], "a reader changed the journal"
        journal.append("resumed")
        assert names(journal) == [*expected, "resumed"]
        if cut == len(whole) - 1:
            assert journal.path.read_bytes().startswith(whole)
            assert not torn_file.exists()
        else:
            assert journal.path.read_bytes().startswith(kept + b'{"event":"resumed"')
            assert torn_file.read_bytes() == whole[len(kept) : cut] + b"\n"


def test_torn_lines_are_collected(journal: Journal) -> None:
    for text in (b'{"event": "measu', b"\0\0\0\0"):
        journal.append("run")
        with journal.path.open("ab") as stream:
            stream.write(text)
    journal.append("resumed")
    assert names(journal) == ["run", "run", "resumed"]
    assert journal.path.with_name("journal.jsonl.torn").read_bytes() == b'{"event": "measu\n\0\0\0\0\n'


@pytest.mark.parametrize(
    "damage", [b'{"event": "pro\n', b"\n", b"[1]\n", b'{"n": 1}\n', b"\xff\xfe\n", b'{"event": 3}\n']
)
@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_damaged_whole_line_is_an_error_that_names_it(journal: Journal, damage: bytes, at_the_end: bool) -> None:
    journal.append("run")
    journal.append("resumed")
    rest = b"" if at_the_end else b'{"event": "stopped", "reason": ""}\n'
    content = journal.path.read_bytes() + damage + rest
    journal.path.write_bytes(content)
    with pytest.raises(DataError, match=r"journal\.jsonl, line 3"):
        journal.read()
    assert journal.path.read_bytes() == content


def test_kill_9_while_appending_loses_nothing_that_was_acknowledged(journal: Journal) -> None:
    """Each line is many pages, so that a kill may fall into the middle of a write."""
    code = """
        import sys
        from autoresearch.core.journal import Journal
        journal = Journal(sys.argv[1])
        n = int(sys.argv[2])
        while True:
            journal.append("measured", n=n, filling="x" * 300_000)
            n += 1
            print(n, flush=True)
    """
    events = 0
    for acknowledged_before_the_kill in (1, 4, 2, 7):
        process = child(code, journal.path, events)
        assert process.stdout is not None
        acknowledged = [process.stdout.readline() for _ in range(acknowledged_before_the_kill)][-1]
        process.kill()
        acknowledged = (process.stdout.read().splitlines() or [acknowledged])[-1]
        process.wait()
        process.stdout.close()
        numbers = [event["n"] for event in journal.read()]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= int(acknowledged)
        events = len(numbers)
    journal.append("resumed")
    assert len(journal.read()) == events + 1


def test_a_full_disk_is_an_error_and_leaves_whole_lines(journal: Journal) -> None:
    """A limit on file sizes lets a part of the write through, as a full disk does."""
    code = """
        import resource, signal, sys
        from autoresearch.core.errors import AutoresearchError
        from autoresearch.core.journal import Journal
        journal = Journal(sys.argv[1])
        journal.append("run")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            journal.append("proposed", filling="x" * 5000)
        except AutoresearchError as error:
            print(error.message)
        journal.append("stopped")
    """
    process = child(code, journal.path)
    message = process.communicate()[0]
    assert process.returncode == 0
    assert str(journal.path) in message and "too large" in message.lower()
    assert names(journal) == ["run", "stopped"]
    assert journal.path.read_bytes().endswith(b"\n")


def test_a_disk_that_fails_to_sync_is_an_error(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.append("run")

    def broken(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(AutoresearchError, match="No space left") as caught:
        journal.append("stopped", reason="")
    assert "free some disk space" in caught.value.hint
    assert names(journal) == ["run"]


# Atomic files


def test_write_atomic_replaces_and_keeps_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "naïve name.txt"
    write_atomic(path, "a\r\nß")
    assert path.read_bytes() == "a\r\nß".encode()
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode
    path.chmod(0o750)
    write_atomic(path, b"\0\1")
    assert path.read_bytes() == b"\0\1"
    assert path.stat().st_mode & 0o777 == 0o750


def test_write_atomic_leaves_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(AutoresearchError, match="Input/output error"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(AutoresearchError, match="No such file"):
        write_atomic(tmp_path / "missing" / "file", "new")


def test_a_reader_takes_what_came_since_it_last_looked(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    reader, journal = JournalReader(path), Journal(path)
    assert reader.new() == []
    for n in range(3):
        journal.append("proposed", n=n)
    assert [event["n"] for event in reader.new()] == [0, 1, 2]
    assert reader.new() == []
    with path.open("ab") as file:
        file.write(b'{"event":"propo')
    assert reader.new() == [], "a line that is being written is no event yet"
    journal.append("proposed", n=3)
    assert [event["n"] for event in reader.new()] == [3], "the torn line was taken away by who writes"
    with path.open("ab") as file:
        file.write(b"damaged\n")
    with pytest.raises(DataError, match="line 5 is not an event"):
        reader.new()
    path.write_bytes(b"")
    with pytest.raises(DataError, match="became shorter"):
        reader.new()
