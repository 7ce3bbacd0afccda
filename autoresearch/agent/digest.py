"""What a proposer is told of a run's history: bounded, however long the run was.

Whoever made a text decides where it is shown. Where the run stands is the harness's own word. What the experiments
tried, in the words of their proposers, is a data block, one line and in quotation marks each; what candidates printed,
their errors included, is another one. No text can close its block; see `agent.quoting`.

Two limits hold, whatever the texts are: MAX_BYTES, which is three bytes a token, usual for English and code; and
MAX_TOKENS by `tokens_at_most`, which counts digits, punctuation and other scripts as dearly as they may come.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autoresearch.agent.proposer import Context, Trial
from autoresearch.agent.quoting import head, quoted, tail
from autoresearch.agent.reader import thinned
from autoresearch.core.constants import moved
from autoresearch.core.process import one_line

MAX_BYTES = 18_000
MAX_TOKENS = 6_000
TRACEBACK_BYTES = 600
"""Of one failure's log, and of the reason before it."""

_LINE_BYTES = 200
"""Of a text that a proposer wrote."""
_FAILURE_TOKENS = 1300
_MOST_FAILURES = ((5, TRACEBACK_BYTES), (3, TRACEBACK_BYTES), (2, TRACEBACK_BYTES), (1, TRACEBACK_BYTES), (1, 200))
"""(how many, bytes of each log): the first that fits."""
_MOST_CATEGORIES = 12
_LONGEST_WORD = 16
_PLAIN = re.compile(r"[\w.+-]{1,24}", re.ASCII)
_PIECE = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\s+|[^\x00-\x7f]+|.", re.DOTALL)


def digest(context: Context) -> str:
    """The history, newest and best first, in at most MAX_BYTES and MAX_TOKENS.

    What is left out is counted. No number of the test split is in it, as none is in a Context.
    """
    page = _Page()
    run = _Run(context)
    # The tokens of each section; what one leaves, the next may use.
    page.section(700, "", run.standing())
    page.begin_block("what the experiments tried")
    page.section(800, "Kept changes, the latest first: change of val_bpb against what was the incumbent", run.kept())
    page.section(600, "Near misses: a first gain that wasn't borne out; two of them together may be clear", run.near())
    page.section(1200, "Constants tried: value -> change of val_bpb", run.constants())
    page.section(900, "Dead ends by category, the latest first", run.dead_ends())
    page.section(400, "Refused before any training", run.refused())
    page.end_block()
    page.section(_FAILURE_TOKENS, "", run.failures())
    return page.text()


def tokens_at_most(text: str) -> int:
    """An upper estimate of a text's tokens.

    Two and a half letters of a word are one; each digit, each sign, each letter of what is too long for a word, and
    each byte of another script is one of its own.
    """
    return sum(_cost(piece) for piece in _PIECE.findall(text))


def _cost(piece: str) -> int:
    if not piece.isascii():
        return len(piece.encode("utf-8", "replace"))
    if piece.isalpha():
        return math.ceil(len(piece) / 2.5) if len(piece) <= _LONGEST_WORD else len(piece)
    if piece.isspace():
        return 0 if piece == " " else math.ceil(len(piece) / 2)
    return 1


class _Page:
    """Takes in sections, each within its share."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._block = ("", 0)
        self._room = 0
        self._bytes = MAX_BYTES - 1000  # for titles, tags, and counts of what is left out

    def section(self, tokens: int, title: str, lines: Iterable[str]) -> None:
        self._room += tokens - tokens_at_most(f"\n## {title}\n({10**6} more left out)\n")
        taken: list[str] = []
        left_out = 0
        for line in lines:
            cost, size = tokens_at_most(line + "\n"), len(line.encode()) + 1
            if left_out or cost > self._room or size > self._bytes:
                left_out += 1
                continue
            self._room -= cost
            self._bytes -= size
            taken.append(line)
        if left_out:
            taken.append(f"({left_out} more left out)")
        if taken and title:
            taken.insert(0, f"\n## {title}")
        self._parts += taken

    def begin_block(self, name: str) -> None:
        """The sections from here on are data."""
        self._block = (name, len(self._parts))

    def end_block(self) -> None:
        name, start = self._block
        if said := "\n".join(self._parts[start:]).strip():
            self._parts[start:] = ["\n" + quoted(name, said)]

    def text(self) -> str:
        return "\n".join(self._parts).strip() + "\n"


class _Run:
    """The lines of each section."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._by_number = {trial.number: trial for trial in context.history}
        self._latest = [trial for trial in reversed(context.history) if trial.number]
        self._changes = Counter(trial.change for trial in context.history if trial.change)
        self._near = {trial.number for trial in context.near_misses}

    def standing(self) -> Iterator[str]:
        """Where the run stands, and what limits the incumbent."""
        context, incumbent = self._context, self._context.incumbent
        verdicts = Counter(_outcome(trial) for trial in self._latest)
        told = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()) or "none yet"
        yield "# What this run has shown so far"
        yield f"Experiments: {len(self._latest)} ({told}). Lower val_bpb is better."
        yield f"One source varies between seeds by {context.spread:.4f} bpb: a smaller change can't be told from noise."
        baseline = self._by_number.get(0)
        if baseline is not None and baseline.val_bpb is not None and incumbent.number:
            yield f"Baseline {baseline.val_bpb:.4f} bpb."
        name = f"experiment {incumbent.number}" if incumbent.number else "the baseline"
        score = "not measured yet" if incumbent.val_bpb is None else f"{incumbent.val_bpb:.4f} bpb"
        yield f"\n## The incumbent, {name}: {score}"
        if incumbent.measured:
            yield from _resources(incumbent.measured, context.device)
        if incumbent.loss_curve:
            points = (f"{100 * share:.0f}% {loss:.3f}" for share, loss in thinned(incumbent.loss_curve))
            yield f"Training loss in nats per token, by share of the budget: {', '.join(points)}"
            yield from _falling(incumbent.loss_curve)

    def kept(self) -> Iterator[str]:
        for trial in self._latest:
            if trial.verdict == "keep":
                taken_back = ", withdrawn later: fresh measurements were no better" if trial.withdrawn else ""
                yield f"- {self._told(trial)}{taken_back}"

    def near(self) -> Iterator[str]:
        for trial in sorted(self._context.near_misses, key=lambda trial: (trial.val_bpb or math.inf, -trial.number)):
            yield f"- {self._told(trial)}"

    def constants(self) -> Iterator[str]:
        """First what was tried from the present incumbent, which need not be tried again; then the rest by constant."""
        here: list[str] = []
        elsewhere: dict[str, list[str]] = {}
        for trial in self._latest:
            parent = self._by_number.get(trial.parent)
            if parent is None:
                continue
            changed = moved(parent.constants, trial.constants)
            known = {
                name: f"{_arrow(old, new)} {_value(new)}"
                for name, (old, new) in changed.items()
                if None not in (old, new) and _PLAIN.fullmatch(name)
            }
            if known and trial.parent == self._context.incumbent.number:
                told = ", ".join(f"{name} {move}" for name, move in known.items())
                here.append(f"- {told} -> {self._result(trial)} (#{trial.number})")
                continue
            others = f", with {len(changed) - 1} other{'s' if len(changed) > 2 else ''}" if len(changed) > 1 else ""
            for name, move in known.items():
                told = f"{move} -> {self._result(trial)} (#{trial.number}{others})"
                elsewhere.setdefault(name, []).append(told)
        yield from (["From the present incumbent, so not worth trying again:", *here] if here else [])
        if elsewhere:
            yield "From earlier incumbents:"
        for name, tried in elsewhere.items():
            more = f"; and {len(tried) - 8} more" if len(tried) > 8 else ""
            yield f"- {name}: {'; '.join(tried[:8])}{more}"

    def dead_ends(self) -> Iterator[str]:
        """A line with the counts of each category, then its experiments, an edit that was made several times once."""
        by_category: dict[str, list[Trial]] = {}
        for trial in self._latest:
            if trial.verdict != "keep" and trial.number not in self._near:
                by_category.setdefault(_category(trial), []).append(trial)
        kept = Counter(_category(trial) for trial in self._latest if trial.verdict == "keep" and not trial.withdrawn)
        # The counts are worth more than one more experiment: they come first.
        for category, trials in list(by_category.items())[:_MOST_CATEGORIES]:
            yield f"- {category}: {len(trials)} without a gain, {kept[category]} kept"
        rows = {category: iter(trials) for category, trials in by_category.items()}
        seen: set[str] = set()
        while rows:  # one of each category in turn, so that none is crowded out
            for category in list(rows):
                row = next((t for t in rows[category] if not (t.change and t.change in seen)), None)
                if row is None:
                    del rows[category]
                    continue
                seen.add(row.change)
                yield f"- {category}: {self._told(row)}"

    def refused(self) -> Iterator[str]:
        for refusal in reversed(self._context.refusals):
            yield f"- {_text(refusal.hypothesis)}: {_text(refusal.reason)}"

    def failures(self) -> Iterator[str]:
        """The latest failures, what their candidates said in a data block."""
        failed = [trial for trial in self._latest if _failed(trial)]
        # The block is one line of this page: whole or not at all, so that it is always closed.
        for count, limit in _MOST_FAILURES:
            said = [self._failure(trial, limit) for trial in failed[:count]]
            block = quoted("the latest failures: reason and end of the log", "\n\n".join(said))
            if said and tokens_at_most(block) <= _FAILURE_TOKENS - 50:
                yield f"\n## The latest failures ({len(said)} of {len(failed)})\n{block}"
                return

    def _failure(self, trial: Trial, limit: int) -> str:
        reason = head(one_line(trial.reason), _LINE_BYTES)
        log = tail(trial.log_tail.strip(), limit)
        return f"experiment {trial.number}, {trial.verdict}, tried {_text(trial.hypothesis)}: {reason}\n{log}".strip()

    def _told(self, trial: Trial) -> str:
        """E.g. `#12 +0.0134 "DEPTH 8 -> 7: faster steps" (the same edit 2 times)`."""
        again = f" (the same edit {times} times)" if (times := self._changes[trial.change]) > 1 else ""
        return f"#{trial.number} {self._result(trial)} {_text(trial.hypothesis)}{again}"

    def _result(self, trial: Trial) -> str:
        """Change against the incumbent of that time, or the kind of failure."""
        parent = self._by_number.get(trial.parent)
        if trial.val_bpb is None:
            return str(trial.verdict)
        if parent is None or parent.val_bpb is None:
            return f"{trial.val_bpb:.4f} bpb"
        return f"{trial.val_bpb - parent.val_bpb:+.4f}"


def _resources(measured: Mapping[str, Any], device: Mapping[str, Any]) -> Iterator[str]:
    """Steps, memory and utilisation, each with what it leaves open."""
    steps, seconds = int(measured.get("steps", 0)), float(measured.get("train_seconds", 0.0))
    params, rate = float(measured.get("num_params", 0)), float(measured.get("tokens_per_second", 0.0))
    each = f", {seconds / steps:.3g} s each" if steps else ""
    yield f"{params / 1e6:.3g} M parameters; {steps} steps in {seconds:.4g} s{each}; {rate:.4g} tokens/s"
    limits = []
    if steps and steps < 500:
        limits.append("steps: few fit into the budget, so faster or smaller ones may pay")
    peak, memory = int(measured.get("peak_memory_bytes", 0)), int(device.get("memory_bytes", 0))
    if peak and memory:
        yield f"Peak memory {peak / 2**30:.3g} of {memory / 2**30:.3g} GiB ({100 * peak / memory:.0f}%)"
        if peak > 0.85 * memory:
            limits.append("memory: a larger model or batch may not fit")
    mfu = measured.get("mfu")
    yield f"Utilisation {'unknown' if mfu is None else f'{100 * mfu:.1f}% of the peak FLOP/s'}"
    if mfu is not None and mfu < 0.2:
        limits.append("utilisation: much of the time goes to something else than matrix products")
    yield f"What limits it: {'; '.join(limits) or 'time alone, as far as these numbers tell'}"


def _falling(curve: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Whether the loss still fell in the last fifth of the budget."""
    late = [loss for share, loss in curve if share >= 0.8]
    if len(late) >= 2 and late[0] - late[-1] > 0.02 * abs(late[-1]):
        yield "The loss still falls at the end: more steps would help."


def _outcome(trial: Trial) -> str:
    if trial.verdict == "keep":
        return "withdrawn" if trial.withdrawn else "kept"
    return "discarded" if trial.verdict == "discard" else str(trial.verdict)


def _failed(trial: Trial) -> bool:
    return trial.verdict not in ("keep", "discard")


def _category(trial: Trial) -> str:
    return head(one_line(trial.category), 30) or "other"


def _arrow(old: Any, new: Any) -> str:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new))
    return ("up to" if new > old else "down to") if numbers else "to"


def _value(value: Any) -> str:
    """A constant's value; a text that isn't plain is one that a candidate might speak through."""
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else "(a text)"
    if isinstance(value, list | tuple):
        return head("(" + ", ".join(_value(item) for item in value) + ")", 60)
    return f"{value:.6g}" if isinstance(value, float) else head(str(value), 24)


def _text(text: str) -> str:
    """One line of somebody else's, in quotation marks that it can't close."""
    return json.dumps(head(one_line(text), _LINE_BYTES), ensure_ascii=False)
