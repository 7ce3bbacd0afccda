import hashlib
from itertools import islice

from autoresearch.prepare.stories import VERSION, stories


def test_equal_arguments_give_equal_stories_and_the_seed_changes_them():
    assert list(stories(0.05)) == list(stories(0.05))
    assert list(islice(stories(seed=1), 5)) != list(islice(stories(seed=2), 5))


def test_a_larger_volume_begins_with_the_smaller_one():
    small = list(stories(0.05))
    assert list(stories(0.1))[: len(small)] == small


def test_the_volume_is_reached_with_the_last_story():
    texts = list(stories(0.05))
    assert sum(map(len, texts[:-1])) < 50_000 <= sum(len(text.encode()) for text in texts)


def test_stories_are_all_filled_in_and_none_comes_twice():
    texts = list(stories(1))
    assert len(set(texts)) == len(texts) > 1000
    assert not any("{" in text or "}" in text for text in texts)
    assert all(200 < len(text) < 900 for text in texts)


def test_another_grammar_needs_another_version():
    # Regenerate only together with a new VERSION: the text is part of what a data set's key stands for.
    digest = hashlib.sha256("\n".join(stories(0.2)).encode()).hexdigest()[:16]
    assert (VERSION, digest) == (1, "7de13aa649e9590e")
