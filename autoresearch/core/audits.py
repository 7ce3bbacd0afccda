"""What the audits of a run measured, and what follows from it about the gain.

An audit measures the baseline and the incumbent again, with fresh seeds, and scores them on text that decided nothing.
Its events have a journal of their own, `audits.jsonl`, beside the run's: nothing in it reaches a proposer.

    audit      incumbent, key, text, rows                   what the events after it belong to
    started    n, k, seed, mark                             n is 0 or the incumbent's number
    measured   n, k, result, scores                         scores: see `executor.Measurement.audit`
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from autoresearch.core import suspect
from autoresearch.core.contract import Result
from autoresearch.core.errors import DataError
from autoresearch.core.interval import Interval, welch
from autoresearch.core.records import Started

ENOUGH = 6
"""Measurements of each that an interval should rest on: below it the t quantile makes it wide."""
_INTERLEAVED = (0, 1, 1, 0)
"""Baseline, incumbent, incumbent, baseline: a machine that slows down or speeds up evenly favours neither."""


class Subject(NamedTuple):
    """What is audited. Measurements of equal subjects go into one comparison."""

    incumbent: int
    """Its number; the baseline is 0."""
    key: str
    """Comparability key of the machine that measures."""
    text: str
    """Digest of the rows of another text; "" for none."""


class Audited(NamedTuple):
    """One measurement of an audit."""

    n: int
    result: Result
    scores: Mapping[str, float]

    def bpb(self, name: str) -> float:
        """Bits per byte on "val", "test" or "text"."""
        if name != "val":
            return self.scores[f"{name}_bpb"]
        assert self.result.val_bpb is not None, "only what went well is asked for"
        return self.result.val_bpb


class Comparison(NamedTuple):
    """Baseline and incumbent on one text."""

    baseline: tuple[float, ...]
    """Scores in bits per byte."""
    incumbent: tuple[float, ...]
    gain: Interval
    """Of the mean scores, baseline minus incumbent: positive is better."""


@dataclass
class Audits:
    """The state of a run's audits. Changed by `apply` alone."""

    source: str = "the audits' journal"
    """What errors name."""
    measured: dict[Subject, list[Audited]] = field(default_factory=dict)
    """In order, with those that failed."""
    current: Subject | None = None
    """Of the latest `audit` event."""
    unfinished: Started | None = None
    """The measurement that was started and not measured."""
    count: int = 0
    """Measurements of all subjects together: the next one's k, so that no seed comes twice."""

    @classmethod
    def from_events(cls, events: Iterable[Mapping[str, Any]], source: str) -> Audits:
        """Replay a journal.

        Raises:
            DataError: an event lacks a field or can't follow those before it.
        """
        audits = cls(source)
        for event in events:
            audits.apply(event)
        return audits

    @property
    def results(self) -> list[Result]:
        """Of every measurement."""
        return [made.result for measured in self.measured.values() for made in measured]

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take in the next event; unknown ones are ignored.

        Raises:
            DataError: see `from_events`.
        """
        try:
            if event["event"] == "audit":
                self.current = Subject(event["incumbent"], event["key"], event["text"])
                self.measured.setdefault(self.current, [])
            elif event["event"] == "started":
                self.unfinished = Started(event["k"], event["seed"], event["mark"])
            elif event["event"] == "measured":
                if self.current is None or self.unfinished is None or self.unfinished.k != event["k"]:
                    raise ValueError(f"measurement {event['k']} was never started")
                made = Audited(event["n"], Result.from_json(event["result"]), event["scores"])
                self.measured[self.current].append(made)
                self.unfinished = None
                self.count += 1
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{self.source} contradicts itself: {event.get('event')}: {error}",
                "the file was changed by something else; move it away to audit anew",
            ) from error


def counted(measurements: Sequence[Audited]) -> list[Audited]:
    """Those that count, see `suspect.counted`."""
    return suspect.counted(measurements, lambda made: made.result)


def next_arm(measurements: Sequence[Audited], repeats: int) -> int | None:
    """Which is measured next: 0 the baseline, 1 the incumbent, None once both were measured `repeats` times."""
    place = len(counted(measurements))
    return _INTERLEAVED[place % len(_INTERLEAVED)] if place < 2 * repeats else None


def compare(measurements: Sequence[Audited], name: str, confidence: float = 0.95) -> Comparison:
    """Baseline against incumbent on "val", "test" or "text".

    Raises:
        ValueError: fewer than two measurements of either that count.
    """
    return _compare([(made.n, made.bpb(name)) for made in counted(measurements)], confidence)


def compare_excess(measurements: Sequence[Audited], confidence: float = 0.95) -> Interval:
    """By how much the gain on val exceeds that on test, in bits per byte: what choosing by val bought on val alone.

    Val and test are scored with the same weights, so their difference varies less between seeds than either.

    Raises:
        ValueError: see `compare`.
    """
    pairs = [(made.n, made.bpb("val") - made.bpb("test")) for made in counted(measurements)]
    return _compare(pairs, confidence).gain


def _compare(values: Sequence[tuple[int, float]], confidence: float) -> Comparison:
    baseline = tuple(value for n, value in values if n == 0)
    incumbent = tuple(value for n, value in values if n != 0)
    return Comparison(baseline, incumbent, welch(baseline, incumbent, confidence))
