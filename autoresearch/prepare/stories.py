"""A seeded generator of simple stories: any volume of text without a download, for tests and first tries.

A small grammar. Every story has a hero, a friend, a place, a wish, a problem and an end that refer to each other, so
that a bigram, a byte-pair encoding and a transformer each find something to learn.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TypeVar

T = TypeVar("T")

VERSION = 1
"""Of the grammar, part of a data set's key."""
SEED = 20260314
DEFAULT_MEGABYTES = 2.0

_HEROES = (
    ("Anna", "she", "her"), ("Ben", "he", "his"), ("Clara", "she", "her"), ("David", "he", "his"),
    ("Emma", "she", "her"), ("Felix", "he", "his"), ("Grace", "she", "her"), ("Hugo", "he", "his"),
    ("Iris", "she", "her"), ("Jonas", "he", "his"), ("Lena", "she", "her"), ("Max", "he", "his"),
    ("Nora", "she", "her"), ("Oscar", "he", "his"), ("Paula", "she", "her"), ("Samuel", "he", "his"),
)  # fmt: skip
_FRIENDS = (
    "a grey mouse", "an old owl", "a clever fox", "a shy rabbit", "a small dragon", "a slow turtle", "a loud crow",
    "a brown bear", "a tired donkey", "a friendly ghost", "a tiny frog", "a proud goose", "a white goat",
    "a lost puppy",
)  # fmt: skip
_PLACES = (
    "in a house by the sea", "near a dark forest", "on a green hill", "in a busy town", "beside a quiet river",
    "at the edge of a desert", "under a tall mountain", "on a farm with many apple trees", "in a village of fishermen",
    "on a little island", "next to an old mill", "above a bakery",
)  # fmt: skip
_THINGS = (
    "kite", "red ball", "wooden boat", "silver bell", "warm blanket", "paper crown", "garden lamp", "music box",
    "blue bicycle", "golden key", "picture book", "straw hat", "glass marble", "drum", "telescope", "magic seed",
)  # fmt: skip
_TIMES = (
    "One morning", "One rainy day", "On a Sunday", "Late in the evening", "In the middle of winter", "After lunch",
    "On the first day of spring", "Before the sun came up", "One windy afternoon",
)  # fmt: skip
_WISHES = (
    "wanted to find {thing}", "dreamed of {thing}", "went out to look for {thing}", "hoped to borrow {thing}",
    "made a plan to build {thing}", "promised to bring home {thing}",
)  # fmt: skip
_PROBLEMS = (
    "But the {thing} was stuck in a tree.", "But the {thing} fell into the water.", "But the {thing} broke in two.",
    "But a strong wind carried the {thing} away.", "But the door was locked and the {thing} was behind it.",
    "But it was too dark to see the {thing}.", "But somebody had hidden the {thing} under a heavy stone.",
)  # fmt: skip
# Syllables of invented names: what keeps the vocabulary from being used up after a thousand merges.
_SYLLABLES = (
    "ba", "bel", "cor", "da", "dor", "el", "fa", "fen", "ga", "gri", "ha", "hol", "is", "ka", "kel", "la", "lin", "lor",
    "ma", "mir", "na", "nor", "o", "pel", "ra", "rin", "sa", "sel", "ta", "tor", "ul", "va", "ven", "wa",
    "wyn", "ya", "zan", "zi",
)  # fmt: skip
_FEELINGS = ("sad", "angry", "worried", "afraid", "confused", "tired", "very quiet")
_TALK = (
    '"Don\'t give up," said {friend}.', '"I can help you," said {friend}.', '"Let us try it together," {friend} said.',
    '"What would your mother do?" asked {friend}.', '"We need a rope and {count} friends," said {friend}.',
    '"Wait until tomorrow," {friend} answered.', '"Once I lost {count} of them," laughed {friend}.',
)  # fmt: skip
_ACTS = (
    "They walked for {count} hours.", "They climbed up, step by step.", "{hero} counted to {count} and jumped.",
    "They asked everybody on the way.", "{hero} pulled as hard as {pronoun} could.", "They pushed and pushed.",
    "{hero} remembered an old song and sang it.", "They dug a hole that was {count} feet deep.",
    "{hero} tied {possessive} scarf to a long stick.", "They waited until the moon was high.",
)  # fmt: skip
_ENDS = (
    "At last they had the {thing}, and {hero} was happy.", "In the end {hero} gave the {thing} to {friend}.",
    "{hero} carried the {thing} home and slept well that night.", "The {thing} was as good as new.",
    "Nobody in the world had a better {thing}.", "So {hero} learned that friends are worth more than any {thing}.",
)  # fmt: skip
_MORALS = (
    "From that day on they met every week.", "And {friend} never felt alone again.",
    "All of {town} came to the feast.", "The end.", "In {town} they still sing of it.",
    "{hero} still tells this story.", "After all, it had been a good day.", "They lived happily ever after.",
)  # fmt: skip


def stories(megabytes: float = DEFAULT_MEGABYTES, seed: int = SEED) -> Iterator[str]:
    """Stories of 300 to 900 characters, the same for equal arguments.

    Args:
        megabytes: stops with the story that reaches this many million UTF-8 bytes.
    """
    # `random()` alone is promised to stay the same in later versions of Python; `choice` is not.
    random = Random(seed).random
    wanted = megabytes * 1e6
    size = 0

    def pick(options: tuple[T, ...]) -> T:
        return options[int(random() * len(options))]

    while size < wanted:
        hero, pronoun, possessive = pick(_HEROES)
        town = (pick(_SYLLABLES) + pick(_SYLLABLES) + pick(_SYLLABLES)).capitalize()
        friend = pick(_FRIENDS)
        thing = pick(_THINGS)
        known = "the " + friend.split(" ", 1)[1]
        sentences = [
            f"{hero} of {town} lived {pick(_PLACES)} with {possessive} friend, {friend}.",
            f"{pick(_TIMES)} {pronoun} " + pick(_WISHES).format(thing=f"a {thing}") + ".",
            pick(_PROBLEMS).format(thing=thing),
            f"{hero} was {pick(_FEELINGS)}.",
        ]
        for _ in range(1 + int(random() * 4)):
            for template in (pick(_TALK), pick(_ACTS)):
                sentences.append(
                    template.format(
                        hero=hero, pronoun=pronoun, possessive=possessive, friend=known, count=2 + int(random() * 98)
                    )
                )
        sentences.append(pick(_ENDS).format(thing=thing, hero=hero, friend=known))
        middle = 2 + int(random() * 3)
        story = " ".join(sentences[:middle]) + "\n\n" + " ".join(sentences[middle:])
        if random() < 0.5:
            story += " " + pick(_MORALS).format(hero=hero, friend=known, town=town)
        size += len(story.encode())
        yield story
