import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from autoresearch.core.dataset import CONTENT, MANIFEST, Dataset, SplitFacts, manifest_json, open_dataset
from autoresearch.core.errors import DataError

V, T = 300, 4
FACTS = {"train": SplitFacts(2, 10, 30, 3), "val": SplitFacts(1, 5, 12, 1), "test": SplitFacts(1, 5, 12, 1)}


@pytest.fixture
def folder(tmp_path) -> Path:
    path = tmp_path / "0123456789abcdef"
    path.mkdir()
    (path / "tokenizer.json").write_text("{}", encoding="utf-8")
    np.save(path / "token_bytes.npy", np.arange(V, dtype=np.int32))
    for split, facts in FACTS.items():
        np.save(path / f"{split}.tokens.npy", np.arange(facts.tokens, dtype=np.uint16))
        np.save(path / f"{split}.offsets.npy", np.linspace(0, facts.tokens, facts.documents + 1).astype(np.int64))
        rows = np.arange(facts.rows * (T + 1), dtype=np.uint16).reshape(facts.rows, T + 1)
        np.save(path / f"{split}.rows.npy", rows)
    seal(path)
    return path


def seal(path: Path, **changes) -> None:
    """Write the manifest that fits the files."""
    facts = {"path": path, "key": path.name, "source": "sample", "vocab_size": V, "seq_len": T, "bos": 296}
    dataset = Dataset(**{**facts, "splits": FACTS, **changes})
    (path / MANIFEST).write_text(manifest_json(dataset, {"why": "test"}), encoding="utf-8")


def test_what_was_written_is_read(folder):
    dataset = open_dataset(folder)
    assert (dataset.key, dataset.source, dataset.vocab_size, dataset.seq_len) == (folder.name, "sample", V, T)
    assert dataset.splits == FACTS
    assert dataset.rows("train").tolist() == np.arange(15).reshape(3, 5).tolist()
    assert dataset.tokens("train")[1].tolist() == [0, 5, 10]
    assert dataset.token_bytes().tolist() == list(range(V))


def test_rows_are_mapped_not_read(folder):
    rows = open_dataset(folder).rows("val")
    assert isinstance(rows, np.memmap)
    assert not rows.flags.writeable


@pytest.mark.parametrize("name", CONTENT)
@pytest.mark.parametrize("verify", [True, False])
def test_a_missing_file_is_named_with_the_remedy(folder, name, verify):
    (folder / name).unlink()
    with pytest.raises(DataError, match=f"{name} is missing") as raised:
        open_dataset(folder, verify)
    assert "autoresearch prepare" in raised.value.hint


@pytest.mark.parametrize("name", CONTENT)
def test_a_file_of_another_size_is_named_even_without_verifying(folder, name):
    with (folder / name).open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(DataError, match=rf"{name} has \d+ bytes, expected \d+"):
        open_dataset(folder, verify=False)


@pytest.mark.parametrize("name", CONTENT)
def test_a_changed_byte_is_found_by_verifying(folder, name):
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(data)
    open_dataset(folder, verify=False)
    with pytest.raises(DataError, match=f"{name} is damaged"):
        open_dataset(folder)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff", b'{"format": 1}', pickle.dumps({"format": 1})],
    ids=["empty", "cut off", "list", "null", "binary", "no facts", "pickle"],
)
def test_a_damaged_manifest_is_refused(folder, data):
    (folder / MANIFEST).write_bytes(data)
    with pytest.raises(DataError, match=r"manifest\.json"):
        open_dataset(folder)


def test_a_manifest_of_another_format_is_refused(folder):
    document = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**document, "format": 99}))
    with pytest.raises(DataError, match="format 99, expected 1"):
        open_dataset(folder)


def test_no_data_at_all_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"no prepared data at .*nothing") as raised:
        open_dataset(tmp_path / "nothing")
    assert "autoresearch prepare" in raised.value.hint


def test_a_pickled_array_is_never_loaded(folder):
    np.save(folder / "val.rows.npy", np.array([[print, 2]], dtype=object), allow_pickle=True)
    seal(folder)
    with pytest.raises(DataError, match=r"val\.rows\.npy can't be read"):
        open_dataset(folder)


@pytest.mark.parametrize(
    "rows",
    [np.zeros((1, T + 2), np.uint16), np.zeros((2, T + 1), np.uint16), np.zeros((1, T + 1), np.int64)],
    ids=["width", "count", "dtype"],
)
def test_an_array_that_is_not_what_the_manifest_says_is_refused(folder, rows):
    np.save(folder / "val.rows.npy", rows)
    seal(folder)
    with pytest.raises(DataError, match=r"val\.rows\.npy holds .*expected uint16 \(1, 5\)"):
        open_dataset(folder, verify=False)


def test_large_vocabularies_are_four_bytes_wide(folder):
    for split, facts in FACTS.items():
        np.save(folder / f"{split}.tokens.npy", np.zeros(facts.tokens, np.uint32))
        np.save(folder / f"{split}.rows.npy", np.full((facts.rows, T + 1), 69_999, np.uint32))
    np.save(folder / "token_bytes.npy", np.zeros(70_000, np.int32))
    seal(folder, vocab_size=70_000)
    assert open_dataset(folder).rows("val").max() == 69_999
