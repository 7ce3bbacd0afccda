"""The searchable constants of a train.py: read from its text, and written back byte for byte but for the literal.

They are the UPPER_CASE assignments under the banner "Hyper-parameters"; a trailing comment says how to search one:

    EMBEDDING_LR = 0.6  # search: 0.1..2.0 log
    DEPTH = 8  # search: 2..12 int
    TOTAL_BATCH_SIZE = 2**14  # search: 8192 | 16384 | 32768
    WINDOW_PATTERN = "L"  # search: L | SL | SSSL
"""

from __future__ import annotations

import ast
import io
import json
import math
import operator
import re
import tokenize
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autoresearch.core.errors import UsageError, did_you_mean


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    log: bool = False
    integer: bool = False


@dataclass(frozen=True)
class Choices:
    """Values in a meaningful order: neighbours in the list are neighbours in effect."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Constant:
    """One knob."""

    name: str
    value: Any
    """bool, int, float, str, or a tuple of them."""
    line: int
    search: Range | Choices | None
    """None: not searched."""


_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_ANNOTATION = re.compile(r"\bsearch:(.*)$")
_RANGE = re.compile(r"(?P<low>[^\s.]+(?:\.\d*)?)\s*\.\.\s*(?P<high>\S+)(?P<words>(?:\s+\w+)*)")
_TITLE = re.compile(r"hyper-?parameters", re.IGNORECASE)
_RULE = re.compile(r"([-=#*~─━═])\1{3,}")
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def constants(source: str) -> dict[str, Constant]:
    """The constants of the hyper-parameter section in the order of the file; of the whole file where it has no banner.

    Where no constant is annotated, each gets a default range: positive floats a factor of 4 either way, integers a
    factor of 2 (powers of two stay such), ratios and fractions 0..1.

    Raises:
        UsageError: a `search:` comment that can't be read, or a text that isn't Python; names the line.
    """
    found = {name: constant for name, constant, _ in _assignments(source)}
    if any(constant.search is not None for constant in found.values()):
        return found
    return {name: replace(constant, search=_default_search(name, constant.value)) for name, constant in found.items()}


def set_constants(source: str, values: Mapping[str, Any]) -> str:
    """`source` with new literals for some of its constants, all else kept byte for byte.

    Args:
        values: by name; of the constant's type, where an int passes for a float and a list for a tuple.

    Raises:
        UsageError: no such constant, or a value of another type.
    """
    found = {name: (constant, node) for name, constant, node in _assignments(source)}
    edits: list[tuple[ast.expr, str]] = []
    for name, value in values.items():
        if name not in found:
            raise UsageError(f"train.py has no constant {name!r}", did_you_mean(name, found))
        constant, node = found[name]
        new = _like(constant.value, value, name)
        if new != constant.value:
            edits.append((node, _literal(new)))
    return _rewritten(source, edits)


def written_out(source: str) -> str:
    """`source` with every constant as the literal of its value: `2**14` becomes 16384.

    Two that are the same then are the same program.

    Raises:
        UsageError: see `constants`.
    """
    return _rewritten(source, [(node, _literal(constant.value)) for _, constant, node in _assignments(source)])


def moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The constants whose values differ, each with both values; None where a side lacks it.

    Tuples equal the lists that a journal makes of them.
    """
    names = [*after, *(name for name in before if name not in after)]
    return {
        name: (before.get(name), after.get(name))
        for name in names
        if json.dumps(before.get(name)) != json.dumps(after.get(name))
    }


def _rewritten(source: str, edits: list[tuple[ast.expr, str]]) -> str:
    """`source` with other text for some of its expressions."""
    lines = source.encode().splitlines(keepends=True)
    # From the end, so that earlier positions stay true.
    for node, text in sorted(edits, key=lambda edit: (edit[0].lineno, edit[0].col_offset), reverse=True):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
        lines[first : last + 1] = [head + text.encode() + tail]
    return b"".join(lines).decode()


def _like(old: Any, new: Any, name: str) -> Any:
    """`new` in the type of `old`."""
    kind = type(old)
    if kind is float and type(new) is int:
        new = float(new)
    if kind is tuple and isinstance(new, list):
        new = tuple(new)
    if type(new) is not kind or (kind is float and not math.isfinite(new)):
        raise UsageError(f"{name} must be {kind.__name__} like {old!r}, received {new!r}")
    return new


def _literal(value: Any) -> str:
    if isinstance(value, str) and value.isprintable() and not set(value) & {'"', "\\"}:
        return f'"{value}"'
    return repr(value)


def _assignments(source: str) -> Iterator[tuple[str, Constant, ast.expr]]:
    """(name, constant, node of its value) of the section; of a name assigned twice both, the later one counts."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(source).body
        comments = {
            token.start[0]: token
            for token in tokenize.generate_tokens(io.StringIO(source, newline="").readline)
            if token.type == tokenize.COMMENT
        }
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        line, message = getattr(error, "lineno", None) or 1, getattr(error, "msg", error)
        raise UsageError(f"train.py, line {line}: {message}", "constants can only be read from valid Python") from error
    first, last = _section(comments)
    for statement in body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, node = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, node = statement.target, statement.value
        else:
            continue
        if not isinstance(target, ast.Name) or not _NAME.fullmatch(target.id) or not first < statement.lineno < last:
            continue
        try:
            value = _evaluate(node)
        except (ValueError, ArithmeticError, RecursionError):
            continue
        comment = comments.get(statement.end_lineno or statement.lineno)
        annotation = _ANNOTATION.search(comment.string) if comment else None
        search = _parse_search(annotation[1].strip(), value, statement.lineno) if annotation else None
        yield target.id, Constant(target.id, value, statement.lineno, search), node


def _section(comments: Mapping[int, tokenize.TokenInfo]) -> tuple[int, float]:
    """The lines between which the section lies: adjacent comment lines with a ruled line among them are a banner."""
    banners: list[tuple[int, int, str]] = []
    alone = [line for line, token in sorted(comments.items()) if token.start[1] == 0]
    while alone:
        block = [alone.pop(0)]
        while alone and alone[0] == block[-1] + 1:
            block.append(alone.pop(0))
        text = "\n".join(comments[line].string for line in block)
        if _RULE.search(text):
            banners.append((block[0], block[-1], text))
    for index, (_, end, text) in enumerate(banners):
        if _TITLE.search(text):
            return end, banners[index + 1][0] if index + 1 < len(banners) else math.inf
    return 0, math.inf


def _evaluate(node: ast.expr) -> Any:
    """The value of a literal, of arithmetic on numbers, or of a tuple of these.

    Raises:
        ValueError: anything else.
        ArithmeticError: e.g. a division by zero.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str):
        return node.value
    if isinstance(node, ast.Tuple):
        return tuple(_evaluate(element) for element in node.elts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        operand = _number(node.operand)
        return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _number(node.left), _number(node.right)
        if isinstance(node.op, ast.Pow) and (abs(right) > 64 or abs(left) > 1e6):
            raise ValueError("a power too large for a hyper-parameter")
        value = _OPERATORS[type(node.op)](left, right)
        if isinstance(value, int | float):
            return value
    raise ValueError("not a literal")


def _number(node: ast.expr) -> int | float:
    value = _evaluate(node)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number")
    return value


def _parse_search(text: str, value: Any, line: int) -> Range | Choices:
    """The search space of an annotation, e.g. "0.1..2 log", "2..12 int", "L | SSSL"."""

    def malformed(reason: str) -> UsageError:
        return UsageError(
            f"train.py, line {line}: `search: {text}`: {reason}",
            "write e.g. `search: 0.1..2.0 log`, `search: 2..12 int` or `search: 2048 | 4096`",
        )

    if "|" in text:
        try:
            values = tuple(_choice(item.strip(), value) for item in text.split("|"))
        except (SyntaxError, ValueError, ArithmeticError) as error:
            raise malformed("a choice can't be read") from error
        if len(set(values)) != len(values) or any(type(item) is not type(value) for item in values):
            raise malformed(f"choices must differ and be {type(value).__name__} like {value!r}")
        return Choices(values)
    match = _RANGE.fullmatch(text)
    if match is None:
        raise malformed("neither a range nor a list of choices")
    words = match["words"].split()
    try:
        low, high = (_number(ast.parse(match[end], mode="eval").body) for end in ("low", "high"))
    except (SyntaxError, ValueError, ArithmeticError) as error:
        raise malformed("a bound is not a number") from error
    if set(words) - {"log", "int"} or len(set(words)) != len(words):
        raise malformed("after the range only `log` and `int` may follow")
    log, integer = "log" in words, isinstance(value, int)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise malformed(f"a range needs a number, and the value is {value!r}")
    if integer and not (isinstance(low, int) and isinstance(high, int)):
        raise malformed(f"{value!r} is an int, and a bound is not; write {float(value)!r} to search floats")
    if "int" in words and not integer:
        raise malformed(f"int for the float {value!r}")
    if not (math.isfinite(low) and math.isfinite(high) and low < high) or (log and low <= 0):
        raise malformed("the bounds must be finite, the lower one first" + (", and positive for log" if log else ""))
    return Range(low, high, log, integer)


def _choice(text: str, value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"[^\W\d]\w*", text):
        return text
    item = _evaluate(ast.parse(text, mode="eval").body)
    return float(item) if isinstance(value, float) and type(item) is int else item


def _default_search(name: str, value: Any) -> Range | Choices | None:
    if isinstance(value, float) and 0 <= value <= 1 and re.search(r"(RATIO|FRAC)$", name):
        return Range(0.0, 1.0)
    if isinstance(value, float) and 0 < value < math.inf:
        return Range(value / 4, value * 4, log=True)
    if type(value) is int and value >= 16 and value & (value - 1) == 0:
        return Choices((value // 2, value, value * 2))
    if type(value) is int and value > 1:
        return Range(value // 2, value * 2, integer=True)
    return None
