"""One text in three dialects: the train.py of each backend beside that of the reference backend, `cuda`."""

import ast
import re
import tomllib
from pathlib import Path

import dialects
import parity_harness as harness
import pytest

from autoresearch.core import registry, task
from autoresearch.core.candidate import lint
from autoresearch.core.constants import Choices, Range, constants, set_constants

SECTIONS = ["Hyper-parameters", "Model", "Optimizer", "Schedules", "Training"]
SHARED_SECTIONS = ["Hyper-parameters", "Schedules"]
"""Byte for byte the same in all."""
SHARED_FUNCTIONS = ["model_width", "attention_windows", "has_value_embedding", "micro_batches"]
"""Functions that need no framework: byte for byte the same in all."""
EXCEPTIONS = tomllib.loads((Path(__file__).parent / "exceptions.toml").read_text(encoding="utf-8"))

_BANNER = re.compile(r"^# -{60,}\n# (.+)\n# -{60,}$", re.MULTILINE)


@pytest.fixture(params=dialects.SUBJECTS)
def name(request):
    """A backend; its train.py is read, not run."""
    if request.param not in registry.names():
        pytest.fail(f"the backend {request.param!r} is not registered: pyproject.toml, project.entry-points")
    return request.param


def source_of(name):
    return dialects.SUBJECTS[name].source()


def sections(source):
    """title -> text of each section, the text before the first banner under "Imports"."""
    parts = _BANNER.split(source)
    return dict(zip(["Imports", *parts[1::2]], parts[::2], strict=True))


def definitions(source):
    """(section, name) of every function, class, method and field, and "NAME = value" of every other constant."""
    found = []
    for title, text in sections(source).items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.append((title, node.name))
            if isinstance(node, ast.ClassDef):
                found += [(title, f"{node.name}.{member}") for member in members(node)]
            if isinstance(node, ast.Assign | ast.AnnAssign) and title not in SHARED_SECTIONS:
                found.append((title, ast.unparse(node)))
    return found


def members(node):
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef):
            yield inner.name
        elif isinstance(inner, ast.AnnAssign):
            yield inner.target.id


def function(source, name):
    node = next(n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == name)
    return ast.get_source_segment(source, node)


def differences(source, exceptions):
    """What differs from the reference and is no exception, and exceptions that nothing needs; one line each."""
    reference = source_of("cuda")
    problems = []
    if [title for title in sections(source) if title != "Imports"] != SECTIONS:
        problems.append(f"the sections are {list(sections(source))}, not {SECTIONS}")
    for title in SHARED_SECTIONS:
        if sections(source).get(title) != sections(reference)[title]:
            problems.append(f"the section {title} is not that of the reference")
    for name in SHARED_FUNCTIONS:
        if function(source, name) != function(reference, name):
            problems.append(f"the function {name} is not that of the reference")
    here, there = definitions(source), definitions(reference)
    for what, only in (("extra", set(here) - set(there)), ("missing", set(there) - set(here))):
        excused = {(entry["section"], name) for entry in exceptions for name in entry.get(what, [])}
        problems += [f"{what} in {section}: {name}" for section, name in sorted(only - excused)]
        problems += [f"unused exception, {what} in {section}: {name}" for section, name in sorted(excused - only)]
    both = set(here) & set(there)
    if [item for item in here if item in both] != [item for item in there if item in both]:
        problems.append("the common definitions stand in another order")
    return problems


def test_it_is_the_same_text_in_another_dialect(name):
    assert differences(source_of(name), EXCEPTIONS.get(name, [])) == []


def test_every_exception_has_its_reason():
    assert EXCEPTIONS.keys() <= dialects.SUBJECTS.keys() - {"cuda"}
    for entry in (entry for entries in EXCEPTIONS.values() for entry in entries):
        assert entry.keys() <= {"section", "extra", "missing", "reason"}
        assert entry["section"] in ("Imports", *SECTIONS)
        assert len(entry["reason"]) > 20


@pytest.mark.parametrize(
    ("old", "new", "seen"),
    [
        ("# Schedules\n", "# Plans\n", "the sections are"),
        ("MATRIX_DECAY = 0.2", "MATRIX_DECAY = 0.1", "section Hyper-parameters"),
        ("search: 0.004..0.2 log", "search: 0.004..0.2", "section Hyper-parameters"),
        ("HEAD_DECAY = 0.0", "HEAD_DECAYS = 0.0", "section Hyper-parameters"),
        ("    return 1.0 - progress", "    return 1 - progress", "section Schedules"),
        ("(DEPTH - 1 - layer) % 2 == 0", "layer % 2 == 1", "function has_value_embedding"),
        ("def rotate(", "def rope(", "extra in Model: rope"),
        ("def rotate(", "def rope(", "missing in Model: rotate"),
        ("    decay: float\n", "", "missing in Optimizer: Group.decay"),
        ("ADAM_EPS = 1e-10", "ADAM_EPS = 1e-8", "extra in Optimizer: ADAM_EPS = 1e-08"),
        ("def zero_moments(", "def moments(", "missing in Optimizer: MuonAdamW.zero_moments"),
    ],
)
def test_a_difference_is_seen(old, new, seen):
    assert any(seen in problem for problem in differences(harness.plant(source_of("cuda"), old, new), []))


def test_a_swapped_order_is_seen():
    source = source_of("cuda")
    width = function(source, "model_width")
    moved = harness.plant(source, width, "").replace("def norm(", f"{width}\n\n\ndef norm(")
    assert any("another order" in problem for problem in differences(moved, []))


@pytest.mark.parametrize("what", ["extra", "missing"])
def test_an_unused_exception_is_seen(what):
    unused = [{"section": "Model", what: ["rope"], "reason": "a framework that has none"}]
    assert differences(source_of("cuda"), unused) == [f"unused exception, {what} in Model: rope"]


def test_it_passes_the_lint_and_stays_readable(name):
    source = source_of(name)
    lint(source, registry.facts(name).ALLOWED_IMPORTS)
    assert len(source.splitlines()) <= 450
    assert max(map(len, source.splitlines())) <= 120


def test_every_search_range_holds_the_value_of_the_file():
    searched = {name: c for name, c in constants(source_of("cuda")).items() if c.search is not None}
    assert len(searched) >= 20
    for name, constant in searched.items():
        match constant.search:
            case Range(low, high, log, integer):
                assert low <= constant.value <= high, name
                assert type(constant.value) is (int if integer else float), name
                assert not log or low > 0
            case Choices(values):
                assert constant.value in values, name


@pytest.mark.parametrize("preset", task.preset_names())
def test_every_preset_fits_the_file(preset):
    values = task.load_preset(preset).hyperparameters
    found = constants(set_constants(source_of("cuda"), values))
    assert {name: found[name].value for name in values} == dict(values)


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_framework_fails_in_ci_and_is_skipped_elsewhere(ci, outcome, monkeypatch):
    def device():
        raise ImportError("No module named 'mlx'")

    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(dialects.Mlx, "device", device)
    with pytest.raises(outcome, match="'mlx' does not load: No module named"):
        dialects.require("mlx")
