"""A change made to another train.py: values of constants by their rule, code by its patch, the rest with its reason."""

import pytest

from autoresearch.agent.carry import Change, carried_value, carry
from autoresearch.core.constants import Choices, Range, constants

BATCHES = Choices((2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288))


def train(batch="8192", rate="0.3", decay="0.0", depth="4", pattern='"L"', body="    return RATE\n", more="") -> str:
    return (
        "# ----------\n# Hyper-parameters\n# ----------\n\n"
        f"TOTAL_BATCH_SIZE = {batch}  # search: 2048 | 4096 | 8192 | 16384 | 32768\n"
        f"RATE = {rate}  # search: 0.03..3.0 log\n"
        f"DECAY = {decay}  # search: 0.0..0.5\n"
        f"DEPTH = {depth}  # layers, search: 2..12 int\n"
        f'PATTERN = {pattern}  # search: "L" | "SL" | "SSSL"\n'
        f"BETAS = (0.9, 0.95)\n{more}\n"
        "# ----------\n# Training\n# ----------\n\n\n"
        f"def train(experiment):\n{body}"
    )


def change(before: str, after: str, backend="cuda", sources=True, lines=2) -> Change:
    values = [{name: c.value for name, c in constants(text).items()} for text in (before, after)]
    return Change(*values, lines, backend, *((before, after) if sources else ()))


@pytest.mark.parametrize(
    ("old", "new", "now", "search", "value"),
    [
        (8192, 4096, 8192, BATCHES, 4096),
        (524288, 131072, 65536, BATCHES, 16384),
        (8192, 6144, 65536, BATCHES, 32768),  # between two choices: one step at least
        (8192, 4096, 65536, None, 32768),
        (0.3, 0.45, 0.3, Range(0.03, 3.0, log=True), 0.45),
        (0.3, 5.0, 0.3, Range(0.03, 3.0, log=True), 5.0),  # as it was measured there, out of the range too
        (0.3, 0.6, 0.04, Range(0.004, 0.2, log=True), 0.08),
        (0.3, 0.6, 0.15, Range(0.004, 0.2, log=True), 0.2),
        (0.3, 0.1, 0.123, Range(0.004, 0.2, log=True), 0.041),
        (0.0, 0.1, 0.2, Range(0.0, 0.5), 0.3),
        (0.1, 0.0, 0.2, Range(0.0, 0.5), 0.0),
        (-0.5, -0.25, -1.0, None, -0.75),
        (8, 9, 4, Range(2, 12, integer=True), 5),  # 4.5 would be none
        (8, 7, 4, Range(2, 12, integer=True), 3),
        (12, 4, 6, Range(2, 12, integer=True), 2),
        (128, 64, 1, None, "lowered"),  # no micro-batch of no rows
        (8, 9, 12, Range(2, 12, integer=True), "raised"),
        (8192, 16384, 524288, BATCHES, "raised"),
        ("SSSL", "SL", "L", Choices(("L", "SL", "SSSL")), "SL"),
        ("SSSL", "L", "L", Choices(("L", "SL", "SSSL")), "already"),
        (True, False, True, None, False),
        ([0.9, 0.95], [0.8, 0.95], (0.9, 0.95), None, [0.8, 0.95]),
        (1, 2, 1.5, None, 3.0),  # another type here
    ],
)
def test_a_value_is_itself_from_the_same_start_and_else_the_same_factor(old, new, now, search, value):
    if value in ("raised", "lowered", "already"):
        with pytest.raises(Exception, match=value):
            carried_value("X", old, new, now, search, 64)
    else:
        carried = carried_value("X", old, new, now, search, 64)
        assert carried == (pytest.approx(value) if isinstance(value, float) else value)
        assert type(carried) is type(value)


def test_a_batch_is_made_of_whole_rows():
    assert carried_value("TOTAL_BATCH_SIZE", 8192, 12288, 2000, Range(500, 9000, integer=True), 256) == 3072
    assert carried_value("OTHER", 8192, 12288, 2000, Range(500, 9000, integer=True), 256) == 3000


def test_constants_are_carried_by_name_also_to_another_backend():
    made = change(train(batch="2**19", rate="0.2"), train(batch="2**18", rate="0.3"), sources=False, lines=4)
    here = train(batch="2**14", rate="0.3")
    carried = carry(made, here, "mlx", 64)
    assert carried.source == train(batch="8192", rate="0.45")
    assert carried.moves == {"TOTAL_BATCH_SIZE": (16384, 8192), "RATE": (0.3, 0.45)}
    assert carried.left_out == ()


def test_what_cannot_be_carried_is_left_out_with_the_reason():
    before = train(more="GATE = 32\n", depth="8")
    made = change(before, train(more="GATE = 16\n", depth="9", rate="0.6"))
    carried = carry(made, train(depth="12"), "mlx", 64)
    assert carried.source == train(depth="12", rate="0.6")
    assert carried.left_out == ("DEPTH can't be raised from 12 here", "there is no constant GATE here")
    alone = carry(change(train(depth="8"), train(depth="9")), train(depth="12"), "mlx", 64)
    assert alone.source == ""
    assert alone.left_out == ("DEPTH can't be raised from 12 here",)


def test_a_value_of_another_type_is_left_out():
    here = train(decay='"none"').replace("# search: 0.0..0.5", "")
    carried = carry(change(train(decay="0.0"), train(decay="0.1")), here, "cuda", 64)
    assert carried.source == ""
    assert "DECAY must be str" in carried.left_out[0]


BODY = "    width = 64\n    steps = 10\n    momentum = 0.9\n    return RATE * width * steps * momentum\n"
EDITED = BODY.replace("momentum = 0.9", "momentum = 0.8")


def test_code_is_carried_within_a_backend_and_the_constants_of_here_stay():
    made = change(train(body=BODY), train(body=EDITED))
    here = train(batch="2**12", rate="1.5", body=BODY.replace("width = 64", "width = 32"))
    carried = carry(made, here, "cuda", 64)
    assert carried.source == "", "its context has another width here"
    assert "its code: hunk 1" in carried.left_out[0]
    here = "# a comment more\n" + train(batch="2**12", rate="1.5", body=BODY)
    carried = carry(made, here, "cuda", 64)
    assert carried.source == here.replace("momentum = 0.9", "momentum = 0.8")
    assert carried.left_out == ()


def test_code_between_constants_is_carried_where_their_values_differ():
    made = change(train(rate="0.3"), train(rate="0.3").replace("DECAY =", "WARMUP = 0.1\nDECAY ="))
    here = train(rate="1.5", decay="0.25")
    assert carry(made, here, "cuda", 64).source == here.replace("DECAY =", "WARMUP = 0.1\nDECAY =")


def test_constants_and_code_of_one_change_are_carried_together():
    made = change(train(batch="8192", body=BODY), train(batch="4096", body=EDITED))
    carried = carry(made, train(batch="16384", body=BODY), "cuda", 64)
    assert carried.source == train(batch="8192", body=EDITED)
    assert carried.moves == {"TOTAL_BATCH_SIZE": (16384, 8192)}


@pytest.mark.parametrize(
    ("backend", "sources", "reason"),
    [
        ("mlx", True, "its code: it was written for another backend, cuda"),
        ("cuda", False, "its code: the train.py of that run isn't at hand"),
    ],
)
def test_without_its_code_the_constants_of_a_change_are_carried(backend, sources, reason):
    made = change(train(batch="8192", body=BODY), train(batch="4096", body=EDITED), sources=sources, lines=4)
    assert made.has_code
    carried = carry(made, train(body=BODY), backend, 64)
    assert carried.source == train(batch="4096", body=BODY)
    assert carried.left_out == (reason,)
    alone = carry(change(train(body=BODY), train(body=EDITED), sources=sources), train(body=BODY), backend, 64)
    assert alone == ("", {}, (reason,))


def test_what_counts_as_code():
    assert not change(train(batch="8192"), train(batch="2**12")).has_code, "a literal written in another way"
    assert not change(train(), train(rate="0.4") + "\n# a comment\n").has_code
    assert not change(train(), train(rate="0.4"), sources=False).has_code
    assert change(train(more="X = 1\n"), train(more="X = 1.5\n")).has_code, "another type"
    assert change(train(), train(more="NEW = 1\n")).has_code
    assert change(train(), train(rate="0.4"), sources=False, lines=5).has_code


def test_line_ends_stay_as_they_are():
    there = [train(body=body).replace("\n", "\r\n") for body in (BODY, EDITED)]
    here = train(rate="0.7", body=BODY).replace("\n", "\r\n").removesuffix("\r\n")
    carried = carry(change(*there), here, "cuda", 64)
    assert carried.source == "", "a missing end of the last line differs in the patch's context"
    here += "\r\n"
    assert carry(change(*there), here, "cuda", 64).source == here.replace("momentum = 0.9", "momentum = 0.8")
    moved = carry(change(train(), train(rate="0.6")), here, "cuda", 64)
    assert moved.source == here.replace("RATE = 0.7", "RATE = 1.4")


def test_nothing_to_carry_is_said():
    assert carry(change(train(), train()), train(), "cuda", 64).left_out == ("it changes neither a constant nor code",)


def test_the_same_change_to_the_same_file_gives_the_same_program():
    after = train(batch="4096", rate="1/3", depth="5", body=EDITED)
    carried = carry(change(train(body=BODY), after), train(body=BODY), "cuda", 64)
    assert carried.source == after
