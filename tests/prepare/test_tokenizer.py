import base64
import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearch.core.errors import DataError, UsageError
from autoresearch.prepare.stories import stories
from autoresearch.prepare.tokenizer import BOS, SPECIAL_TOKENS, Tokenizer

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
HARD_TEXT = st.text(st.sampled_from("aé\u0301日🎉👩\u200d'sdt1 7\n\r\t.!<|bos>﷽\U0001f1e9"), max_size=80)


@settings(max_examples=300, deadline=None)
@given(ANY_TEXT | HARD_TEXT)
def test_raw_bytes_of_the_tokens_are_the_bytes_of_the_text(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.token_bytes[ids].sum() == len(text.encode())
    assert tokenizer.decode(ids) == text


def test_bytes_by_a_decode_round_trip_would_be_wrong(tokenizer):
    # The trap: a token that is part of a character decodes to U+FFFD, which has three bytes.
    ids = tokenizer.encode("\U00010348")
    assert len(ids) > 1
    assert sum(len(tokenizer.decode([i]).encode()) for i in ids) != 4
    assert tokenizer.token_bytes[ids].sum() == 4


def test_special_tokens_come_last_with_bos_first_and_have_no_bytes(tokenizer):
    assert tokenizer.vocab_size == 512
    assert tokenizer.bos == 508
    assert tokenizer.decode([508]) == BOS
    assert tokenizer.token_bytes.dtype == np.int32
    assert tokenizer.token_bytes[508:].tolist() == [0, 0, 0, 0]
    assert tokenizer.token_bytes[:508].min() == 1


@pytest.mark.parametrize("special", [*SPECIAL_TOKENS, "<|endoftext|>"])
def test_text_that_looks_like_a_special_token_is_text(tokenizer, special):
    text = f"before {special} after"
    assert max(tokenizer.encode(text)) < tokenizer.bos
    ids = tokenizer.encode_documents(["one", text])
    assert (ids >= tokenizer.bos).sum() == 2
    assert tokenizer.token_bytes[ids].sum() == len("one" + text)


@settings(max_examples=200, deadline=None)
@given(st.lists(HARD_TEXT, min_size=1, max_size=8))
def test_documents_encoded_together_are_those_encoded_alone(tokenizer, texts):
    alone = np.concatenate([piece for text in texts for piece in ([tokenizer.bos], tokenizer.encode(text))])
    assert np.array_equal(tokenizer.encode_documents(texts), alone)


def test_numbers_are_cut_after_two_digits(tokenizer):
    trained = Tokenizer.train(["12345 " * 500], 261, "gpt4-digits2")
    assert b"12" in trained.tokens or b"34" in trained.tokens
    assert not any(token.isdigit() and len(token) > 2 for token in trained.tokens)


def test_training_twice_gives_equal_merges():
    texts = list(stories(0.3))
    assert Tokenizer.train(texts, 700, "gpt4-digits2").tokens == Tokenizer.train(texts, 700, "gpt4-digits2").tokens


def test_too_little_text_for_the_vocabulary_says_how_far_it_goes():
    with pytest.raises(DataError, match=r"vocabulary of 26\d tokens, the task asks for 2048") as raised:
        Tokenizer.train(["abcab " * 10], 2048, "gpt4-digits2")
    assert "vocab_size" in raised.value.hint


def test_an_unknown_pattern_names_the_nearest():
    with pytest.raises(UsageError, match="gpt4-digit2") as raised:
        Tokenizer.train(["a"], 264, "gpt4-digit2")
    assert "gpt4-digits2" in raised.value.hint


def test_the_stored_tokenizer_is_the_same(tokenizer):
    read = Tokenizer.from_json(tokenizer.to_json(), "tokenizer.json")
    assert (read.tokens, read.pattern) == (tokenizer.tokens, tokenizer.pattern)
    text = "Grace of Linyalin, 96 feet, 東京"
    assert np.array_equal(read.encode(text), tokenizer.encode(text))


def _poisoned(tokenizer, **changes):
    return json.dumps({**json.loads(tokenizer.to_json()), **changes}).encode()


def _swapped(tokenizer, i, j):
    tokens = [base64.b64encode(token).decode() for token in tokenizer.tokens]
    tokens[i], tokens[j] = tokens[j], tokens[i]
    return _poisoned(tokenizer, tokens=tokens)


@pytest.mark.parametrize(
    "poison",
    [
        lambda t: b"",
        lambda t: t.to_json().encode()[:-100],
        lambda t: pickle.dumps({"tokens": []}),
        lambda t: b"[]",
        lambda t: _poisoned(t, format=2),
        lambda t: _poisoned(t, pattern="(a+)+$"),
        lambda t: _poisoned(t, pattern=["gpt4-digits2"]),
        lambda t: _poisoned(t, special_tokens=["<|bos|>"]),
        lambda t: _poisoned(t, tokens="abc"),
        lambda t: _poisoned(t, tokens=[]),
        lambda t: _poisoned(t, tokens=["!"] * 508),
        lambda t: _poisoned(t, tokens=[*json.loads(t.to_json())["tokens"], "YQ=="]),
        lambda t: _swapped(t, 3, 4),
        lambda t: _swapped(t, 256, 507),
    ],
    ids=[
        "empty", "cut off", "pickle", "list", "format", "pattern", "pattern type", "specials", "tokens type",
        "no tokens", "not base64", "duplicate", "byte ranks", "merge ranks",
    ],
)  # fmt: skip
def test_a_damaged_or_poisoned_tokenizer_is_refused(tokenizer, poison):
    with pytest.raises(DataError, match=r"cache/tokenizer\.json is damaged") as raised:
        Tokenizer.from_json(poison(tokenizer), "cache/tokenizer.json")
    assert "autoresearch prepare" in raised.value.hint
