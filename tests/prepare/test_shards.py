import hashlib
from itertools import cycle, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearch.core.errors import DataError
from autoresearch.prepare import shards
from autoresearch.prepare.shards import ArrayWriter, encode, write_shards
from autoresearch.prepare.stories import stories

TEXTS = [*stories(0.15), "Ελλάδα 東京 🎉", "<|bos|> is text here", "x"]
DOCUMENTS = list(zip(cycle(["train", "train", "val", "train", "test"]), TEXTS))


def read(folder, split):
    return [np.load(folder / f"{split}.{kind}.npy", allow_pickle=False) for kind in ("tokens", "offsets")]


def written(folder, tokenizer, **options):
    folder.mkdir()
    return write_shards(lambda full: iter(DOCUMENTS), tokenizer, folder, **options)


def test_documents_come_back_from_the_shards(tokenizer, tmp_path):
    facts = written(tmp_path / "a", tokenizer)
    for split in ("train", "val", "test"):
        tokens, offsets = read(tmp_path / "a", split)
        assert (tokens.dtype, offsets.dtype) == (np.uint16, np.int64)
        texts = [text for name, text in DOCUMENTS if name == split]
        pieces = [tokens[a:b] for a, b in pairwise(offsets)]
        assert [piece[0] for piece in pieces] == [tokenizer.bos] * len(texts)
        assert [tokenizer.decode(piece[1:]) for piece in pieces] == texts
        assert facts[split] == (len(texts), len(tokens), sum(len(text.encode()) for text in texts))
        assert tokenizer.token_bytes[tokens].sum() == facts[split].bytes


def test_bytes_are_equal_whatever_the_number_of_workers(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "_BATCH_CHARS", 2000)
    digests = set()
    for workers in (1, 2, 7):
        folder = tmp_path / str(workers)
        written(folder, tokenizer, workers=workers, document_chars=300)
        files = sorted(folder.iterdir())
        assert len(files) == 6
        digests.add(hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize("batch_chars", [1, 3000, 1 << 20])
def test_a_limit_ends_the_split_with_the_document_that_reaches_it(tokenizer, tmp_path, monkeypatch, batch_chars):
    monkeypatch.setattr(shards, "_BATCH_CHARS", batch_chars)
    facts = written(tmp_path / "a", tokenizer, limits={"train": 5000}, workers=2)
    tokens, offsets = read(tmp_path / "a", "train")
    assert len(tokens) == offsets[-1] == facts["train"].tokens
    assert offsets[-2] < 5000 <= offsets[-1]
    assert facts["val"].documents == sum(split == "val" for split, _ in DOCUMENTS)


def test_long_documents_become_passages_of_the_same_split(tokenizer, tmp_path):
    facts = written(tmp_path / "a", tokenizer, document_chars=100)
    tokens, offsets = read(tmp_path / "a", "val")
    whole = "".join(text for split, text in DOCUMENTS if split == "val")
    assert facts["val"].documents > 3 * sum(split == "val" for split, _ in DOCUMENTS)
    assert tokenizer.decode(tokens[tokens != tokenizer.bos]) == whole
    assert max(len(tokenizer.decode(tokens[a + 1 : b])) for a, b in pairwise(offsets)) <= 100


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60), min_size=1, max_size=5))
def test_sizes_are_the_utf8_bytes_of_each_document(tokenizer, texts):
    batch = encode(texts, tokenizer)
    assert batch.sizes.tolist() == [len(text.encode()) for text in texts]
    assert batch.lengths.sum() == len(batch.tokens)


def test_a_tokenizer_that_loses_a_byte_is_caught(tokenizer):
    broken = tokenizer.clone()
    broken.token_bytes = tokenizer.token_bytes.copy()
    broken.token_bytes[tokenizer.encode("é")[0]] += 1
    encode(["plain text"], broken)
    with pytest.raises(DataError, match=r"2 bytes of text became tokens of 3 bytes; the text begins 'é'"):
        encode(["plain text", "é"], broken)


def test_an_error_while_reading_stops_the_work(tokenizer, tmp_path):
    def documents(full):
        yield from DOCUMENTS[:50]
        raise DataError("a.txt:3: bad")

    with pytest.raises(DataError, match=r"a\.txt:3"):
        write_shards(documents, tokenizer, tmp_path)


@pytest.mark.parametrize("row", [(), (5,)])
def test_a_growing_array_is_an_ordinary_npy_file(tmp_path, row):
    blocks = [np.arange(7 * n * int(np.prod(row))).reshape(7 * n, *row) for n in (1, 0, 300)]
    with ArrayWriter(tmp_path / "a.npy", np.dtype(np.uint16), row) as writer:
        for block in blocks:
            writer.append(block)
    expected = np.concatenate(blocks).astype(np.uint16)
    np.save(tmp_path / "b.npy", expected)
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    assert np.array_equal(np.load(tmp_path / "a.npy", mmap_mode="r", allow_pickle=False), expected)
