"""Moves of searches: what is the same move, what it gained, whether two searches agree."""

from pathlib import Path

import pytest

from autoresearch.core.noise import Spread
from autoresearch.report.moves import agreement, direction, moves
from autoresearch.report.trajectory import Row, Trajectory

START = {"LR": 0.1, "DEPTH": 8, "WINDOW": "SSSL", "TIED": False, "BETAS": [0.8, 0.95]}


def row(
    number: int, gain: float | None, diff_lines: int = 2, change: str = "", verdict: str = "discard", **values
) -> Row:
    """A row made from the baseline, whose value is 2.0."""
    value = None if gain is None else 2.0 - gain
    return Row(
        number=number,
        verdict=verdict,
        description=f"idea {number}",
        val_bpb=value,
        is_baseline=number == 0,
        value=value,
        gain=gain if number else None,
        parent=0 if number else None,
        constants={**START, **values},
        diff_lines=diff_lines if number else 0,
        change_hash=change,
    )


def search(*rows: Row, spread: float | None = None) -> Trajectory:
    known = None if spread is None else Spread(spread, 4, 0)
    return Trajectory("a", Path(), (row(0, 0.0, verdict="keep"), *rows), spread=known)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (0.1, 0.2, "up"),
        (8, 6, "down"),
        (False, True, "on"),
        (True, False, "off"),
        ("SSSL", "L", "to L"),
        ([0.8, 0.95], [0.9, 0.95], "to [0.9, 0.95]"),
        (None, 3, "added"),
        (3, None, "removed"),
    ],
)
def test_directions(before, after, told):
    assert direction(before, after) == told


def test_what_is_the_same_move():
    found = moves(
        search(
            row(1, 0.1, LR=0.2),
            row(2, -0.1, LR=0.15),
            row(3, 0.1, LR=0.05),
            row(4, 0.1, diff_lines=4, DEPTH=6, LR=0.2),
            row(5, 0.1, WINDOW="L"),
            row(6, 0.1, diff_lines=1, change="abc"),
            row(7, 0.1, diff_lines=9, change="abc", LR=0.2),
            row(8, 0.1, diff_lines=9),
        )
    )
    assert {name: [row.number for row in tried.rows] for name, tried in found.items()} == {
        "LR up": [1, 2],
        "LR down": [3],
        "DEPTH down, LR up": [4],
        "WINDOW to L": [5],
        "code abc": [6, 7],
    }, "more lines than the constants take are code; what has no hash isn't known"
    assert found["code abc"].label == "code abc: idea 6"


def test_effects_are_relative_to_the_incumbent_and_averaged():
    found = moves(
        search(
            row(1, 0.1, verdict="keep", LR=0.2),
            row(2, -0.02, LR=0.15),
            row(3, None, verdict="crash", LR=0.4),
            row(4, None, verdict="crash", LR=0.05),
            spread=0.01,
        )
    )
    up = found["LR up"]
    assert up.effect == pytest.approx((0.05 - 0.01) / 2)
    assert up.error == pytest.approx(0.01 / 2.0 * 2**0.5 / 2**0.5), "s·√2 of one, over √2 for two"
    assert (up.kept, up.failed, up.clear) == (1, 1, True)
    down = found["LR down"]
    assert (down.effect, down.error, down.clear, down.failed) == (None, None, None, 1)
    assert moves(search(row(1, 0.1, LR=0.2)))["LR up"].clear is None, "no spread, no noise"
    assert moves(search(row(1, 0.02, LR=0.2), spread=0.01))["LR up"].clear is False


def test_agreement_of_two_searches():
    there = moves(search(row(1, 0.10, LR=0.2), row(2, 0.02, DEPTH=9), row(3, -0.1, WINDOW="L"), row(4, 0.3, TIED=True)))
    here = moves(search(row(1, -0.2, LR=0.3), row(2, 0.01, DEPTH=12), row(3, -0.5, WINDOW="L"), row(4, 0.1, LR=0.05)))
    found = agreement(there, here)
    assert [pair.first.name for pair in found.shared] == ["LR up", "WINDOW to L", "DEPTH up"], "by the smaller effect"
    assert [pair.opposed for pair in found.shared] == [True, False, False]
    assert (found.signs.same, found.signs.n) == (2, 3)
    assert found.ranks is not None and found.ranks.n == 3
    assert found.ranks.rho == pytest.approx(0.5), "ranks 3 2 1 against 2 3 1: 1 - 6·2/24"
    assert agreement(there, {}).shared == ()


def test_a_move_that_only_failed_is_not_shared():
    there, here = search(row(1, 0.1, LR=0.2)), search(row(1, None, verdict="crash", LR=0.2))
    assert agreement(moves(there), moves(here)).shared == ()
