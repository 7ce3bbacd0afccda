"""The hyper-parameter section of a train.py: read, and written back byte for byte but for the literals."""

import pytest

from autoresearch.core import registry
from autoresearch.core.constants import Choices, Range, constants, set_constants
from autoresearch.core.errors import UsageError

SECTION = '''"""Hyper-parameters are below."""

LIMIT = 3

# ------------------------------------------------------------
# Hyperparameters (edit these)
# ------------------------------------------------------------

# Model
DEPTH = 8  # layers, search: 2..12 int
HEAD_DIM: int = 128  # search: 64 | 128
PATTERN = "SSSL"  # search: L | "SL" | SSSL
BASE = 10_000  # search: 1000..1_000_000 int log

# Optimizer
BATCH = 2**19  # tokens a step; search: 2**18 | 2**19
LR = 0.04  # search: 0.004..0.4 log
SCALAR_LR = 0.5 * 0.01
SHIFT = -1.5  # search: -2..2
FRAC = 0.0  # search: 0.0..0.2
BETAS = (0.8, 0.95)
COMPILE = True
WIDTH = DEPTH * 64
lower = 1

# === Model =================================================
OTHER = 4  # search: not read here
'''


@pytest.mark.parametrize("backend", registry.names())
def test_every_baseline_names_constants_and_keeps_within_their_ranges(backend):
    found = constants(registry.facts(backend).BASELINE.read_text(encoding="utf-8"))
    assert sum(constant.search is not None for constant in found.values()) >= 4
    for constant in found.values():
        if isinstance(constant.search, Range):
            assert constant.search.low <= constant.value <= constant.search.high, constant
        elif isinstance(constant.search, Choices):
            assert constant.value in constant.search.values, constant


def test_constants_are_those_of_the_section():
    found = constants(SECTION)
    assert {name: constant.value for name, constant in found.items()} == {
        "DEPTH": 8,
        "HEAD_DIM": 128,
        "PATTERN": "SSSL",
        "BASE": 10_000,
        "BATCH": 524_288,
        "LR": 0.04,
        "SCALAR_LR": 0.005,
        "SHIFT": -1.5,
        "FRAC": 0.0,
        "BETAS": (0.8, 0.95),
        "COMPILE": True,
    }
    assert {name: constant.search for name, constant in found.items() if constant.search} == {
        "DEPTH": Range(2, 12, integer=True),
        "HEAD_DIM": Choices((64, 128)),
        "PATTERN": Choices(("L", "SL", "SSSL")),
        "BASE": Range(1000, 1_000_000, log=True, integer=True),
        "BATCH": Choices((2**18, 2**19)),
        "LR": Range(0.004, 0.4, log=True),
        "SHIFT": Range(-2, 2),
        "FRAC": Range(0.0, 0.2),
    }
    assert found["DEPTH"].line == 10


def test_without_annotations_the_ranges_are_default_ones_and_without_a_banner_the_whole_file_counts():
    source = (
        "LR = 0.4\nDEPTH = 6\nBATCH = 1024\nWARMDOWN_RATIO = 0.5\nFINAL_FRAC = 0.0\nDECAY = 0.0\nON = True\nN = 1\n"
    )
    assert {name: constant.search for name, constant in constants(source).items()} == {
        "LR": Range(0.1, 1.6, log=True),
        "DEPTH": Range(3, 12, integer=True),
        "BATCH": Choices((512, 1024, 2048)),
        "WARMDOWN_RATIO": Range(0.0, 1.0),
        "FINAL_FRAC": Range(0.0, 1.0),
        "DECAY": None,
        "ON": None,
        "N": None,
    }
    assert constants(source + "A = 2.0  # search: 1..3\n")["LR"].search is None


@pytest.mark.parametrize(
    "line",
    [
        "A = 1  # search:",
        "A = 1  # search: 1",
        "A = 1  # search: 1..",
        "A = 1  # search: 3..2 int",
        "A = 1  # search: 1..2.5",
        "A = 1  # search: 1..a",
        "A = 1  # search: 1..2 linear",
        "A = 1.0  # search: 1..2 int",
        "A = 1.0  # search: 0..2 log",
        "A = 1.0  # search: 1..1e999",
        "A = 1  # search: 1 |",
        "A = 1  # search: 1 | 1",
        "A = 1  # search: 1 | 2.0",
        "A = 'x'  # search: 1 | 2",
        "A = 'x'  # search: 1..2",
        "A = True  # search: 0..1 int",
        "A = 1  # search: f() | 2",
        "A = (1, 2)  # search: 1..2",
    ],
)
def test_a_malformed_annotation_names_its_line(line):
    with pytest.raises(UsageError, match="line 2"):
        constants("B = 1\n" + line + "\n")


@pytest.mark.parametrize("expression", ["9**9**9", "1 / 0", "2.0**1e3", "'a' * 9", "f(2)", "[1, 2]", "-True", "None"])
def test_expressions_that_are_no_constants(expression):
    assert constants(f"A = {expression}\n") == {}


def test_setting_constants_changes_their_literals_alone():
    changed = set_constants(
        SECTION,
        {"DEPTH": 4, "HEAD_DIM": 64, "BATCH": 2**18, "PATTERN": "L", "LR": 1, "BETAS": [0.9, 0.99], "COMPILE": False},
    )
    assert changed == (
        SECTION.replace("DEPTH = 8", "DEPTH = 4")
        .replace("int = 128", "int = 64")
        .replace("2**19  # tokens", "262144  # tokens")
        .replace('"SSSL"  #', '"L"  #')
        .replace("LR = 0.04", "LR = 1.0")
        .replace("(0.8, 0.95)", "(0.9, 0.99)")
        .replace("True", "False")
    )
    assert set_constants(SECTION, {"BATCH": 2**19}) == SECTION, "an equal value keeps its spelling"


def test_setting_constants_keeps_line_ends_and_counts_bytes_not_characters():
    source = 't = "é"; A = 0.5; B = 1  # ü\r\nC = (\r\n    1,\r\n    2,\r\n)\r\nD = (0.25)\r\n'
    changed = set_constants(source, {"A": 0.75, "B": 20, "C": (3,), "D": 1e-9})
    assert changed == 't = "é"; A = 0.75; B = 20  # ü\r\nC = (3,)\r\nD = (1e-09)\r\n'


@pytest.mark.parametrize("text", ["plain", 'a "quote"', "back\\slash", "line\nbreak", "é"])
def test_every_string_reads_back(text):
    assert constants(set_constants("A = 'x'\n", {"A": text}))["A"].value == text


@pytest.mark.parametrize(
    ("values", "message", "hint"),
    [
        ({"DEPHT": 4}, "DEPHT", "DEPTH"),
        ({"LIMIT": 4}, "LIMIT", "valid"),
        ({"DEPTH": 4.0}, "DEPTH must be int", ""),
        ({"DEPTH": True}, "DEPTH must be int", ""),
        ({"DEPTH": "4"}, "DEPTH must be int", ""),
        ({"LR": "0.1"}, "LR must be float", ""),
        ({"LR": float("nan")}, "LR must be float", ""),
        ({"COMPILE": 1}, "COMPILE must be bool", ""),
        ({"PATTERN": 1}, "PATTERN must be str", ""),
    ],
)
def test_unknown_names_and_other_types_are_refused(values, message, hint):
    with pytest.raises(UsageError, match=message) as raised:
        set_constants(SECTION, values)
    assert hint in raised.value.hint


def test_constants_of_a_broken_file_are_a_usage_error():
    with pytest.raises(UsageError, match="line 2"):
        constants("A = 1\ndef (\n")
