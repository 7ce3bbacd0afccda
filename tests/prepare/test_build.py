import json
import logging
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from autoresearch.core.dataset import SPLITS, open_dataset
from autoresearch.core.errors import AutoresearchError, DataError, UsageError
from autoresearch.core.task import Task, load_preset
from autoresearch.prepare import build
from autoresearch.prepare.build import cache_root, dataset_key, prepare
from autoresearch.prepare.sources import resolve_source
from autoresearch.prepare.tokenizer import Tokenizer

TASK = Task(data="stories", seq_len=32, vocab_size=400, val_tokens=640)
SOURCE = "stories:0.2"


def silent(stage: str, share: float) -> None:
    assert stage
    assert 0 <= share <= 1


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def dataset(cache):
    return prepare(TASK, SOURCE, cache, silent)


@pytest.fixture
def mixed(tmp_path):
    """Local text of many scripts, one document a line."""
    parts = ["naïve café", "Ελλάδα", "東京都に行く。", "👩\u200d👩\u200d👧 🎉", "e\u0301a\u0308", "<|bos|>", "plain"]
    rng = np.random.default_rng(0)
    lines = (json.dumps({"text": " ".join(rng.choice(parts, rng.integers(5, 60)))}) for _ in range(400))
    path = tmp_path / "mixed.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def split_texts(dataset, split):
    tokenizer = Tokenizer.from_json((dataset.path / "tokenizer.json").read_bytes(), "tokenizer.json")
    tokens, offsets = dataset.tokens(split)
    return [tokenizer.decode(part[1:]) for part in np.split(tokens, offsets[1:-1])]


def test_the_splits_hold_the_text_of_the_source(dataset, cache):
    source = list(resolve_source(TASK, SOURCE, cache).load(silent).documents())
    texts = {split: split_texts(dataset, split) for split in SPLITS}
    assert sorted(text for split in texts.values() for text in split) == sorted(source)
    assert sum(len(set(split)) for split in texts.values()) == len(set(source))


def test_bytes_of_the_tokens_are_the_bytes_of_the_text_in_any_script(mixed, tmp_path):
    dataset = prepare(replace(TASK, vocab_size=300, document_chars=100), str(mixed), tmp_path / "cache", silent)
    total = 0
    for split in SPLITS:
        tokens, _ = dataset.tokens(split)
        text_bytes = sum(len(text.encode()) for text in split_texts(dataset, split))
        assert dataset.token_bytes()[tokens].sum() == dataset.splits[split].bytes == text_bytes
        total += text_bytes
    assert total == sum(len(json.loads(line)["text"].encode()) for line in mixed.read_text("utf-8").splitlines())


def test_rows_are_full_and_begin_with_bos(dataset):
    for split in SPLITS:
        rows = dataset.rows(split)
        assert rows.shape == (dataset.splits[split].rows, 33)
        assert rows.dtype == np.uint16
        assert (rows[:, 0] == dataset.bos).all()
        assert rows.max() < dataset.vocab_size == 400
    assert len(dataset.rows("val")) == len(dataset.rows("test")) == 640 // 32
    assert len(dataset.rows("train")) > 200


def test_merges_are_learned_from_the_train_split_alone(dataset):
    texts = split_texts(dataset, "train")
    expected = Tokenizer.train(texts, 400, "gpt4-digits2")
    everything = Tokenizer.train(texts + split_texts(dataset, "val") * 50, 400, "gpt4-digits2")
    stored = (dataset.path / "tokenizer.json").read_text()
    assert stored == expected.to_json() != everything.to_json()


def test_again_is_a_reuse(dataset, cache, monkeypatch):
    monkeypatch.setattr(build, "_build", lambda *_: pytest.fail("prepared twice"))
    assert prepare(TASK, SOURCE, cache, silent) == dataset


def test_the_number_of_workers_changes_nothing(dataset, tmp_path):
    other = prepare(TASK, SOURCE, tmp_path, silent, workers=5)
    assert (other.path / "manifest.json").read_text() == (dataset.path / "manifest.json").read_text()


def test_train_tokens_bound_the_train_split(tmp_path):
    task = replace(TASK, train_tokens=9000)
    dataset = prepare(task, SOURCE, tmp_path, silent)
    assert 9000 <= dataset.splits["train"].tokens < 9400
    assert dataset.splits["val"].rows == 640 // 32


@pytest.mark.parametrize(
    "changes",
    [
        {"seq_len": 16},
        {"vocab_size": 401},
        {"document_chars": 100},
        {"train_tokens": 5000},
        {"val_tokens": 320},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_key_covers_what_shapes_the_content(changes, cache):
    corpus = resolve_source(TASK, SOURCE, cache)
    assert dataset_key(replace(TASK, **changes), corpus) != dataset_key(TASK, corpus)
    assert dataset_key(replace(TASK, train_seconds=1.0, eval_rows=2), corpus) == dataset_key(TASK, corpus)


@pytest.mark.parametrize("rule", ["splits.RULE", "packing.VERSION", "layout.FORMAT"])
def test_the_key_covers_source_pattern_and_rules(rule, cache, monkeypatch):
    corpus = resolve_source(TASK, SOURCE, cache)
    key = dataset_key(TASK, corpus)
    assert len(key) == 16
    assert dataset_key(TASK, resolve_source(TASK, "stories:0.3", cache)) != key
    monkeypatch.setattr(f"autoresearch.prepare.build.{rule}", 99)
    assert dataset_key(TASK, corpus) != key
    monkeypatch.undo()
    monkeypatch.setitem(build.split_pattern.__globals__["PATTERNS"], "gpt4-digits2", r"\S+|\s+")
    assert dataset_key(TASK, corpus) != key


@pytest.mark.parametrize("name", ["train.rows.npy", "tokenizer.json", "manifest.json"])
def test_a_damaged_cache_is_prepared_anew(dataset, tmp_path, caplog, name):
    good = prepare(TASK, SOURCE, tmp_path, silent)
    content = (good.path / name).read_bytes()
    (good.path / name).write_bytes(b"\x80\x04" + content[2:])
    with pytest.raises(DataError, match=name):
        open_dataset(good.path)
    with caplog.at_level(logging.WARNING):
        assert prepare(TASK, SOURCE, tmp_path, silent) == good
    assert name in caplog.text
    assert (good.path / name).read_bytes() == content


def test_a_poisoned_tokenizer_with_a_fitting_manifest_is_refused(tmp_path, caplog):
    good = prepare(TASK, SOURCE, tmp_path, silent)
    original = (good.path / "tokenizer.json").read_text()
    (good.path / "tokenizer.json").write_text(original.replace("gpt4-digits2", "(a+)+"))
    manifest = json.loads((good.path / "manifest.json").read_text())
    (good.path / "manifest.json").write_text(build.layout.manifest_json(good, manifest["provenance"]))
    open_dataset(good.path)
    with caplog.at_level(logging.WARNING):
        prepare(TASK, SOURCE, tmp_path, silent)
    assert "unknown split pattern" in caplog.text
    assert (good.path / "tokenizer.json").read_text() == original


def test_an_interruption_leaves_nothing_and_the_next_try_works(tmp_path):
    def interrupt(stage: str, share: float) -> None:
        if stage == "packing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(TASK, SOURCE, tmp_path, interrupt)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    key = dataset_key(TASK, resolve_source(TASK, SOURCE, tmp_path))
    # What `kill -9` leaves behind:
    (tmp_path / f"{key}.building").mkdir()
    (tmp_path / f"{key}.building" / "train.tokens.npy").write_bytes(b"half")
    assert prepare(TASK, SOURCE, tmp_path, silent).path == tmp_path / key
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", ".lock"]


def test_processes_that_prepare_at_once_share_one_result(tmp_path):
    script = (
        "import sys; from pathlib import Path\n"
        "from autoresearch.core.task import Task\n"
        "from autoresearch.prepare.build import prepare\n"
        "stages = set()\n"
        f"dataset = prepare({TASK!r}, {SOURCE!r}, Path(sys.argv[1]), lambda stage, share: stages.add(stage))\n"
        "print(dataset.key, 'packing' in stages)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    lines = [process.communicate(timeout=60)[0].split() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len({key for key, _ in lines}) == 1
    assert sorted(built for _, built in lines) == ["False", "False", "True"]
    open_dataset(tmp_path / lines[0][0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "0 distinct documents"),
        ("one\n\ntwo", r"2 distinct documents \(6 bytes\)"),
        ("one\n\ntwo\n\nthree", "vocabulary of 26. tokens"),
    ],
)
def test_too_little_text_is_an_error_at_once(tmp_path, text, message):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(DataError, match=message) as raised:
        prepare(TASK, str(tmp_path / "a.txt"), tmp_path / "cache", silent)
    assert "more text" in raised.value.hint
    assert not any((tmp_path / "cache").glob("*/"))


def test_a_split_without_a_row_says_how_much_there_was(tmp_path):
    with pytest.raises(DataError, match=r"the val split has too little text: \d+ documents, \d+ bytes.* 20001 tokens"):
        prepare(replace(TASK, seq_len=20_000, val_tokens=20_000), SOURCE, tmp_path, silent)


def test_documents_much_longer_than_rows_are_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        prepare(TASK, SOURCE, tmp_path, silent)
        assert "packing keeps only 1" in caplog.text
        assert "document_chars = 96" in caplog.text
        caplog.clear()
        prepare(replace(TASK, document_chars=96), SOURCE, tmp_path, silent)
        assert not caplog.text


def test_the_fallback_is_logged(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(build, "_build", lambda *_: (_ for _ in ()).throw(DataError("far enough")))
    with caplog.at_level(logging.WARNING), pytest.raises(DataError, match="far enough"):
        prepare(load_preset("tinystories/cpu").task, "", tmp_path, silent)
    assert "using the sample text" in caplog.text


def test_an_unknown_pattern_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="split_pattern"):
        prepare(replace(TASK, split_pattern="gpt5"), SOURCE, tmp_path, silent)


def test_a_cache_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(AutoresearchError, match="can't write"):
        prepare(TASK, SOURCE, tmp_path / "file" / "cache", silent)


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    for name in ("AUTORESEARCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "autoresearch"
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "autoresearch"
    monkeypatch.setenv("AUTORESEARCH_CACHE", "~/own")
    assert cache_root() == tmp_path / "own"
