"""The tools by which a model edits train.py and looks into the run's history, and what each answers.

An edit is exact or it isn't made. What a tool quotes of sources, logs and earlier experiments is data (see `quoting`),
and every answer is bounded.
"""

from __future__ import annotations

import ast
import difflib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args

from autoresearch.agent.proposer import Context, Trial
from autoresearch.agent.quoting import head, quoted
from autoresearch.agent.reader import Reader
from autoresearch.core.contract import Verdict
from autoresearch.core.line_ends import as_in, with_newlines
from autoresearch.core.process import one_line
from autoresearch.core.workspace import TRAIN

CATEGORIES = (
    "architecture", "attention", "batch", "data order", "efficiency", "init", "learning rate", "loss", "optimizer",
    "regularisation", "schedule", "simplification", "size", "weight decay", "other",
)  # fmt: skip
SEARCH_ROWS = 20
SEARCH_BYTES = 4_000
DIFF_BYTES = 2_200
LOG_BYTES = 1_200
VIEW_BYTES = 40_000
NEAR_BYTES = 2_000
COMPARED = 400
"""Characters of a text whose nearest match is looked for: the time that it takes grows with their square."""
PLACES = 8


def _tool(name: str, description: str, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }
    return {"name": name, "description": description, "input_schema": schema}


_PATH = {"type": "string", "enum": [TRAIN], "description": f"Only {TRAIN} can be named; it may be left out."}

TOOLS: tuple[dict[str, Any], ...] = (
    _tool(
        "view",
        f"Show {TRAIN} as it is now, your edits included, with line numbers.",
        path=_PATH,
        first_line={"type": "integer", "description": "1 is the first line of the file."},
        last_line={"type": "integer", "description": "The last line that is shown."},
    ),
    _tool(
        "str_replace",
        f"Replace a piece of {TRAIN}. `old_str` must be the exact text, blanks and line ends included, and must occur "
        "once in the file: take in enough of the lines around it. Line numbers that `view` shows are no part of it.",
        ("old_str", "new_str"),
        path=_PATH,
        old_str={"type": "string"},
        new_str={"type": "string", "description": "Takes its place; empty deletes it."},
    ),
    _tool(
        "search_history",
        "Find earlier experiments of this run, newest first. Use it before you spend an experiment on an idea.",
        words={
            "type": "string",
            "description": "Words that must all occur in hypothesis, category or reason; plain text, not a pattern.",
        },
        verdict={"type": "string", "enum": [*get_args(Verdict)]},
        category={"type": "string"},
    ),
    _tool(
        "show_experiment",
        "One earlier experiment: its diff against what it was made from, verdict, training loss, and the end of the "
        "log of one that failed.",
        ("number",),
        number={"type": "integer"},
    ),
    _tool(
        "submit_proposal",
        f"Hand in {TRAIN} as it is now to be trained. This ends the conversation, so it comes after your last edit.",
        ("hypothesis", "category", "expected_bpb"),
        hypothesis={"type": "string", "description": "What is changed and why it should help, in one sentence."},
        category={"type": "string", "enum": [*CATEGORIES]},
        expected_bpb={"type": "number", "description": "The change of val_bpb that you expect; negative is better."},
    ),
)
_SCHEMAS: Mapping[str, Mapping[str, Any]] = {tool["name"]: tool["input_schema"] for tool in TOOLS}


class Reply(NamedTuple):
    """What a tool answers."""

    text: str
    error: bool = False
    repair: bool = False
    """Whether it was an edit or a submission that failed: only a few of these are given back."""


class Submission(NamedTuple):
    """What `submit_proposal` said."""

    hypothesis: str
    category: str
    expected_bpb: float


class Desk:
    """One proposal in the making: the file as edited so far.

    Args:
        source: the train.py that is edited.
        context: what may be looked up.
        reader: experiments in detail; None where nothing can be looked up, as in a dry run.
    """

    def __init__(self, source: str, context: Context, reader: Reader | None) -> None:
        self.source = with_newlines(source)
        self.submission: Submission | None = None
        self._original, self._context, self._reader = source, context, reader
        self._broken = False

    @property
    def result(self) -> str:
        """The file as it is now, with the line ends that it had at first."""
        return as_in(self._original, self.source)

    @property
    def edited(self) -> bool:
        return self.result not in (self._original, self._context.incumbent_source)

    def begin_answer(self) -> None:
        """Another answer of the model begins: failures of the one before it has seen."""
        self._broken = False

    def use(self, name: str, given: Any) -> Reply:
        """Answer one use of a tool; whatever is wrong with it is said, nothing is raised."""
        if name not in _SCHEMAS:
            return _wrong(f"there is no tool {head(one_line(str(name)), 80)!r}; there are: {', '.join(_SCHEMAS)}")
        edits = name in ("str_replace", "submit_proposal")
        if problem := _problem(_SCHEMAS[name], given):
            reply = _wrong(f"{name}: {problem}", repair=edits)
        else:
            reply = getattr(self, f"_{name}")(**given)
        if name == "str_replace" and reply.error:
            self._broken = True
        return reply

    def _view(self, path: str = TRAIN, first_line: int = 1, last_line: int | None = None) -> Reply:
        lines = _lines(self.source)
        first, last = max(1, first_line), min(len(lines), len(lines) if last_line is None else last_line)
        if first > last:
            return _wrong(f"no lines {first_line} to {last_line}: {TRAIN} has {len(lines)} lines")
        text = "\n".join(_numbered(lines, first, last))
        return Reply(quoted(f"{TRAIN}, lines {first} to {last} of {len(lines)}", head(text, VIEW_BYTES)))

    def _str_replace(self, old_str: str, new_str: str, path: str = TRAIN) -> Reply:
        old_str, new_str = as_in(self.source, old_str), as_in(self.source, new_str)
        if not old_str:
            return _wrong("old_str is empty: name the text that is to be replaced", repair=True)
        if old_str == new_str:
            return _wrong("old_str and new_str are the same: nothing would change", repair=True)
        count = len(places := [*_places(self.source, old_str)])
        if count > 1:
            lines = ", ".join(str(self.source.count("\n", 0, at) + 1) for at in places[:PLACES])
            more = ", …" if count > PLACES else ""
            return _wrong(
                f"old_str occurs {count} times, beginning in the lines {lines}{more}; nothing was changed. Take in "
                "more of the lines around the one that you mean.",
                repair=True,
            )
        if not count:
            near = _nearest(_lines(self.source), _lines(old_str))
            return _wrong(f"old_str does not occur in {TRAIN}; nothing was changed. {near}", repair=True)
        at = places[0]
        self.source = self.source[:at] + new_str + self.source[at + len(old_str) :]
        first = self.source.count("\n", 0, at) + 1
        said = f"replaced in line {first}"
        if problem := syntax_problem(self.source):
            said += f". Now {TRAIN} is not valid Python, mend it before you submit: {problem}"
        return Reply(said)

    def _search_history(self, words: str = "", verdict: str = "", category: str = "") -> Reply:
        wanted = words.casefold().split()

        def fits(trial: Trial) -> bool:
            text = f"{trial.hypothesis} {trial.category} {trial.reason}".casefold()
            right = verdict in ("", trial.verdict) and category.casefold() in ("", trial.category.casefold())
            return right and all(word in text for word in wanted)

        found = [trial for trial in reversed(self._context.history) if fits(trial)]
        if not found:
            return Reply(f"none of {len(self._context.history)} experiments fits")
        rows = "\n".join(_row(trial) for trial in found[:SEARCH_ROWS])
        shown = min(len(found), SEARCH_ROWS)
        return Reply(quoted(f"{shown} of {len(found)} experiments found, newest first", head(rows, SEARCH_BYTES)))

    def _show_experiment(self, number: int) -> Reply:
        trial = next((trial for trial in self._context.history if trial.number == number), None)
        shown = self._reader.show(number) if trial and self._reader else None
        if trial is None or shown is None:
            return _wrong(f"no experiment {number}; they are numbered 0 to {self._context.history[-1].number}")
        parts = [quoted(f"experiment {number}", head(_row(trial), 800))]
        if shown.diff:
            parts.append(quoted(f"diff against experiment {trial.parent}", head(shown.diff, DIFF_BYTES)))
        if shown.curve:
            points = ", ".join(f"{progress:.0%} {loss:.4g}" for progress, loss in shown.curve)
            parts.append(f"training loss in nats per token, by share of the budget: {points}")
        if shown.log_tail:
            parts.append(quoted("end of its log", shown.log_tail, LOG_BYTES))
        return Reply("\n".join(parts))

    def _submit_proposal(self, hypothesis: str, category: str, expected_bpb: float) -> Reply:
        if not hypothesis.strip():
            return _wrong("the hypothesis is empty", repair=True)
        if self._broken:
            return _wrong("an edit before it in the same answer failed; make it, then submit")  # counted there
        if not self.edited:
            return _wrong(f"{TRAIN} is unchanged: there is nothing to try. Edit it, then submit.", repair=True)
        if problem := syntax_problem(self.source):
            return _wrong(f"{TRAIN} is not valid Python: {problem}. Mend it, then submit.", repair=True)
        self.submission = Submission(one_line(hypothesis), category, float(expected_bpb))
        return Reply("submitted")


def syntax_problem(source: str) -> str:
    """Why a source can't be compiled; "" where it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _wrong(text: str, repair: bool = False) -> Reply:
    return Reply(text, error=True, repair=repair)


_KINDS: Mapping[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float)}


def _problem(schema: Mapping[str, Any], given: Any) -> str:
    """What doesn't fit the schema of a tool's input; "" where all does."""
    if not isinstance(given, dict):
        return f"the input must be an object, received {type(given).__name__}"
    properties = schema["properties"]
    for name in schema["required"]:
        if name not in given:
            return f"{name} is missing"
    for name, value in given.items():
        if name not in properties:
            return f"it takes no {head(one_line(str(name)), 80)!r}, but: {', '.join(properties)}"
        rule = properties[name]
        if not isinstance(value, _KINDS[rule["type"]]) or isinstance(value, bool):
            return f"{name} must be of type {rule['type']}, received {type(value).__name__}"
        if isinstance(value, int | float) and not abs(value) < 1e9:  # not-a-number ends here too
            return f"{name} must be a number of a plausible size"
        if isinstance(value, str) and not _encodes(value):
            return f"{name} holds half of a surrogate pair, which no file can hold"
        if "enum" in rule and value not in rule["enum"]:
            received = head(one_line(str(value)), 80)
            return f"{name} must be one of {', '.join(rule['enum'])}; received {received!r}"
    return ""


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _lines(text: str) -> list[str]:
    """As editors number them: Python's own `splitlines` also ends lines at form feeds."""
    return text.removesuffix("\n").split("\n")


def _places(text: str, part: str) -> Iterator[int]:
    """Where `part` begins in `text`, places that overlap included."""
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _nearest(lines: list[str], wanted: list[str]) -> str:
    """What in the file is most like the text that was looked for, with its line numbers."""
    size = min(len(wanted), len(lines))
    text = "\n".join(wanted)[:COMPARED]
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(text)
    best, where = 0.5, -1
    for start in range(len(lines) - size + 1):
        matcher.set_seq1("\n".join(lines[start : start + size])[:COMPARED])
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and (ratio := matcher.ratio()) > best:
            best, where = ratio, start
    if where < 0:
        return "Nothing in it is like it; look at it with `view`."
    shown = "\n".join(_numbered(lines, where + 1, where + size))
    name = f"lines {where + 1} to {where + size}, the nearest that there is"
    return "It may differ from this in blanks or letters:\n" + quoted(name, head(shown, NEAR_BYTES))


def _numbered(lines: list[str], first: int, last: int) -> Iterator[str]:
    return (f"{number:>5}\t{lines[number - 1]}" for number in range(first, last + 1))


def _row(trial: Trial) -> str:
    score = "no score" if trial.val_bpb is None else f"{trial.val_bpb:.4f} bpb"
    verdict = "keep, withdrawn later" if trial.withdrawn else trial.verdict
    why = f" ({one_line(trial.reason)[:200]})" if trial.reason else ""
    return f"#{trial.number} from #{trial.parent}: {verdict}, {score}; {trial.category}: {trial.hypothesis[:300]}{why}"
