"""What the words of a results table say of constants."""

import pytest

from autoresearch.report.described import Described, move


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("embedding LR 0.6 to 0.8", ("EMBEDDING_LR", 0.6, 0.8)),
        ("EMBEDDING_LR: 0.6 -> 0.8", ("EMBEDDING_LR", 0.6, 0.8)),
        ("increase depth=8 → 9 (deeper)", ("DEPTH", 8.0, 9.0)),
        ("halve batch 524K to 262K (more steps in 5 min)", ("TOTAL_BATCH_SIZE", 524e3, 262e3)),
        ("unembedding LR 4e-3 to 6e-3, again.", ("HEAD_LR", 0.004, 0.006)),
        ("x0_lambda beta1 0.96 to 0.90", ("X0_LAMBDA_BETA1", 0.96, 0.9)),
        ("MLP hidden 4x to 3.5x", ("MLP_HIDDEN", 4.0, 3.5)),
        ("RoPE base 200_000 to 100_000", ("ROTARY_BASE", 200_000.0, 100_000.0)),
    ],
)
def test_moves_that_are_read(text, found):
    assert move(text) == found


NO_MOVES = ["", "baseline", "random seed 42 to 137", "add WD 0.01 to lm_head", "init scale 0.8x", "swap GeLU to SiLU"]
NO_MOVES += ["0.1 to 0.2", "depth 9 aspect_ratio 57", "a" * 500 + " 1 to", "LR 0.1 to 0.2.3", "window SSSL to L 1"]


@pytest.mark.parametrize("text", NO_MOVES)
def test_words_that_name_no_move(text):
    assert move(text) is None


def test_a_row_that_contradicts_what_was_kept_moves_nothing():
    texts = ["baseline", "LR 0.1 to 0.2", "LR 0.1 to 0.4", "LR 0.2 to 0.3"]
    constants = Described(texts)
    kept = [True, True, True, False]
    assert [constants.step(text, was)["LR"] for text, was in zip(texts, kept, strict=True)] == [0.1, 0.2, 0.2, 0.3]
