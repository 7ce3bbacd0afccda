"""What the events of a journal add up to.

Events, in the order of an experiment's life (write-ahead: each is on the disk before the step after it is begun):

    run        tag, settings, comparability_key, task_fingerprint, device, prior (of the spread, see `Prior`, or null)
    call       id, n, agent, purpose, model, worst_usd        before a model or a command is called
    charged    id, usd, outcome, tokens (by kind)             after it
    failed     n, kind, reason, proposer                      a round that gave no proposal: an outage, a refusal
    refused    n, reason, hypothesis, origin, proposer, cost_usd   a proposal that became no experiment
    proposed   n, blob, hypothesis, category, proposer, origin, source_hash, normalized_hash, constants, code_size,
               diff_lines, change_hash, cost_usd, facts, parent (number of the incumbent; null for the baseline, which
               is experiment 0)
    committed  n, commit
    started    n, k, seed, mark                               again, with the same k, where a measurement was cut off
    measured   n, k, result
    decided    n, verdict, reason, val_bpb, z, value, value_n, near_miss, lint (true where it refused the candidate)
                                                              measurements may follow: an incumbent's fresh seeds
    anchored   n, value, value_n                              a kept experiment is worth this from now on
    withdrawn  n, reason                                      a keep that fresh measurements didn't bear out
    calibrating n, key, first (k of its first measurement)    the measurements from there on are a calibration's
    slope      n, steps, val_bpb                              one of its points with a fixed number of steps
    calibrated n, and what `agent.calibrate` found            changes nothing: its measurements were told before
    stopped    reason
    resumed    comparability_key, rules, prior, stop, caps

Fields and events that a later version adds are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, get_args

from autoresearch.core.contract import Result, Verdict
from autoresearch.core.decide import Candidate, Score
from autoresearch.core.errors import DataError
from autoresearch.core.records import Calibrating, Charge, Counts, Outage, Prior, Record, Refusal, Started
from autoresearch.core.suspect import LASTING
from autoresearch.core.task import Rules

_VERDICTS = frozenset(get_args(Verdict))


class History:
    """The state of a run: all that a resumed search goes on from. Changed by `apply` alone."""

    def __init__(self, source: str = "the journal") -> None:
        """An empty history.

        Args:
            source: what errors name, e.g. the journal's path.
        """
        self.run: Mapping[str, Any] = {}
        """The `run` event; empty where there is none yet."""
        self.session: Mapping[str, Any] = {}
        """The `resumed` event of the latest search, or the `run` event where that was the first."""
        self.comparability_key = ""
        """Of the run, or of its latest resumption where that names one."""
        self.experiments: dict[int, Record] = {}
        """By number, ascending; the baseline is number 0."""
        self.results: list[Result] = []
        """Of all experiments, in the order in which they were measured."""
        self.refusals: list[Refusal] = []
        self.rules = Rules()
        """Thresholds of the run, or of its latest resumption."""
        self.priors: dict[str, Prior] = {}
        """By comparability key."""
        self.former: dict[str, list[Candidate]] = {}
        """By comparability key: what was measured under it before the machine changed for good, see `conditions`."""
        self._since: dict[str, int] = {}
        """By key: from which of the results on scores are comparable; 0 where it isn't told."""
        self._suspect: dict[str, int] = {}
        """By key: the latest measurements in a row that are."""
        self.calibration: Calibrating | None = None
        """That was begun and isn't finished."""
        self.stop_reason = ""
        """Of the last stop; "" while the run goes on, also when it was killed."""
        self.charges: list[Charge] = []
        """Of settled calls, in order."""
        self.open_calls: dict[str, Charge] = {}
        """Under way, or cut off, by id, at their worst case."""
        self.outages: list[Outage] = []
        self.failed_rounds = 0
        """In a row, without an experiment between them. A kill doesn't change that; a search that was stopped begins
        anew when it is resumed: somebody wants another try."""
        self._source = source
        self._lines = 0
        self._handlers: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
            "run": self._run,
            "call": self._call,
            "charged": self._charged,
            "failed": self._failed_round,
            "refused": self._refused,
            "proposed": self._proposed,
            "committed": self._committed,
            "started": self._started,
            "measured": self._measured,
            "decided": self._decided,
            "anchored": self._anchored,
            "withdrawn": self._withdrawn,
            "calibrating": self._calibrating,
            "slope": self._slope,
            "calibrated": self._calibrated,
            "stopped": self._stopped,
            "resumed": self._resumed,
        }

    @classmethod
    def from_events(cls, events: Iterable[Mapping[str, Any]], source: str = "the journal") -> History:
        """Replay the events of a journal.

        Raises:
            DataError: see `apply`.
        """
        history = cls(source)
        for event in events:
            history.apply(event)
        return history

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take in the next event.

        Raises:
            DataError: it lacks a field, or can't follow those before it; with its line number.
        """
        self._lines += 1
        handler = self._handlers.get(event["event"])
        if handler is None:
            return
        try:
            handler(event)
        except (KeyError, TypeError, ValueError) as error:
            problem = f"lacks the field {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(
                f"{self._source} contradicts itself: line {self._lines}, {event['event']} {problem}",
                "the journal was changed by something else; start a new run with --tag NAME",
            ) from error

    @property
    def cost_usd(self) -> float:
        """Of all calls, in US dollars; one that is under way, or was cut off, counts at its worst."""
        return math.fsum(charge.usd for charge in (*self.charges, *self.open_calls.values()))

    def cost_of(self, number: int) -> float:
        """Of an experiment, in US dollars: the calls that proposed it, failed rounds and refused ones before it too."""
        calls = (*self.charges, *self.open_calls.values())
        return math.fsum(charge.usd for charge in calls if charge.n == number)

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings that the run was started with."""
        settings: Mapping[str, Any] = self.run.get("settings", {})
        return settings

    @property
    def baseline(self) -> Record | None:
        return self.experiments.get(0)

    @property
    def incumbent(self) -> Record | None:
        """The latest keep that stands; None before the baseline is decided and where it failed."""
        return next((record for record in reversed([*self.experiments.values()]) if record.kept), None)

    @property
    def near_misses(self) -> list[Record]:
        """In order."""
        return [record for record in self.experiments.values() if record.near_miss]

    @property
    def candidates(self) -> list[Candidate]:
        """All experiments as `core.decide` looks at them, with the scores that are comparable now."""
        return [self._candidate(record) for record in self.experiments.values()]

    @property
    def conditions(self) -> str:
        """Scores are comparable where they were measured under the same conditions.

        That is the comparability key, and since when the machine has run at the speed that it has now: after LASTING
        suspect measurements in a row it is another machine, see `core.suspect`.
        """
        since = self._since.get(self.comparability_key, 0)
        return f"{self.comparability_key} since measurement {since}" if since else self.comparability_key

    def comparable(self, record: Record) -> list[Result]:
        """Measurements of an experiment that are comparable with those to come, in order."""
        key, since = self.comparability_key, self._since.get(self.comparability_key, 0)
        made = zip(record.results, record.places, strict=True)
        return [result for result, place in made if result.comparability_key == key and place >= since]

    def current(self, record: Record) -> bool:
        """Whether the value of an experiment is comparable with scores to come."""
        return record.value_key == self.conditions

    def _candidate(self, record: Record) -> Candidate:
        here = self.current(record)
        return Candidate(
            number=record.number,
            code_size=record.code_size,
            scores=tuple(Score(r.val_bpb, r.status, r.reason, r.suspect) for r in self.comparable(record)),
            verdict=record.verdict,
            value=record.value if here else None,
            value_n=record.value_n if here else 0,
            withdrawn=record.withdrawn is not None,
            judged_here=record.decided_key in ("", self.conditions),
        )

    @property
    def pending(self) -> Record | None:
        """The experiment that was proposed and isn't decided. Its `commit` and `unfinished` say what it lacks."""
        return next((record for record in self.experiments.values() if record.verdict is None), None)

    @property
    def next_number(self) -> int:
        return max(self.experiments, default=-1) + 1

    @property
    def origins(self) -> frozenset[str]:
        """Of everything proposed, refused proposals included."""
        named = [record.origin for record in self.experiments.values()] + [r.origin for r in self.refusals]
        return frozenset(origin for origin in named if origin)

    @property
    def counts(self) -> Counts:
        tried = [record for number, record in self.experiments.items() if number != 0]
        decided = [record for record in tried if record.verdict is not None]
        kept, failed = sum(r.kept for r in decided), sum(r.failed for r in decided)
        return Counts(
            experiments=len(decided),
            measurements=sum(len(record.results) for record in tried),
            kept=kept,
            discarded=len(decided) - kept - failed,
            failed=failed,
        )

    def _record(self, event: Mapping[str, Any]) -> Record:
        number = event["n"]
        if number not in self.experiments:
            raise ValueError(f"of experiment {number}, which was never proposed")
        return self.experiments[number]

    def _update(self, record: Record, **changes: Any) -> None:
        self.experiments[record.number] = replace(record, **changes)

    def _run(self, event: Mapping[str, Any]) -> None:
        if self.run:
            raise ValueError("comes a second time")
        self.run = self.session = event
        self.comparability_key = event.get("comparability_key", "")
        self._take_rules(event.get("settings", {}).get("rules", {}))
        self._take_prior(event)

    def _take_rules(self, rules: Mapping[str, Any]) -> None:
        known = {f.name for f in fields(Rules)}
        self.rules = Rules(**{name: value for name, value in rules.items() if name in known})

    def _take_prior(self, event: Mapping[str, Any]) -> None:
        # What is known of a key when the run first meets it: later on this run's own calibration would count twice.
        if (key := self.comparability_key) not in self.priors:
            self.priors[key] = Prior(**(event.get("prior") or {"square": 0.0, "dof": 0}))

    def _refused(self, event: Mapping[str, Any]) -> None:
        number = event["n"]
        if number in self.experiments:
            raise ValueError(f"of experiment {number}, which was proposed before")
        told = (event.get(name, "") for name in ("hypothesis", "origin", "proposer"))
        self.refusals.append(Refusal(number, event["reason"], *told))

    def _call(self, event: Mapping[str, Any]) -> None:
        moment = datetime.fromisoformat(event["time"])
        self.open_calls[event["id"]] = Charge(moment, event["worst_usd"], event.get("agent", ""), event.get("n", 0))

    def _charged(self, event: Mapping[str, Any]) -> None:
        if event["id"] not in self.open_calls:
            raise ValueError(f"a call {event['id']} that never began")
        self.charges.append(self.open_calls.pop(event["id"])._replace(usd=event["usd"]))

    def _failed_round(self, event: Mapping[str, Any]) -> None:
        self.failed_rounds += 1
        self.outages.append(Outage(event["n"], event["kind"], event["reason"], event.get("proposer", "")))

    def _proposed(self, event: Mapping[str, Any]) -> None:
        number = event["n"]
        if self.experiments:
            last = next(reversed(self.experiments.values()))
            if number <= last.number:
                raise ValueError(f"of experiment {number} after experiment {last.number}")
            if last.verdict is None:
                raise ValueError(f"of experiment {number} while experiment {last.number} is undecided")
        self.experiments[number] = Record(
            number=number,
            blob=event["blob"],
            hypothesis=event["hypothesis"],
            category=event.get("category", "other"),
            proposer=event.get("proposer", ""),
            origin=event.get("origin", ""),
            source_hash=event.get("source_hash", ""),
            normalized_hash=event["normalized_hash"],
            constants=event.get("constants", {}),
            diff_lines=event.get("diff_lines", 0),
            parent=event.get("parent"),
            code_size=event.get("code_size", 0),
            change_hash=event.get("change_hash", ""),
            facts=event.get("facts", {}),
            proposed_at=_moment(event),
        )
        self.failed_rounds = 0

    def _committed(self, event: Mapping[str, Any]) -> None:
        self._update(self._record(event), commit=event["commit"])

    def _started(self, event: Mapping[str, Any]) -> None:
        record, k = self._record(event), event["k"]
        if k != len(record.results):
            raise ValueError(f"with k = {k} of experiment {record.number}, which has {len(record.results)} results")
        self._update(record, unfinished=Started(k, event["seed"], event.get("mark", "")))

    def _measured(self, event: Mapping[str, Any]) -> None:
        record, k = self._record(event), event["k"]
        if record.unfinished is None or record.unfinished.k != k:
            raise ValueError(f"with k = {k} of experiment {record.number}, which was not started")
        result = Result.from_json(event["result"])
        places = (*record.places, len(self.results))
        self.results.append(result)
        self._update(record, results=(*record.results, result), places=places, unfinished=None)
        self._look_at_machine(result)

    def _look_at_machine(self, result: Result) -> None:
        key = result.comparability_key
        self._suspect[key] = self._suspect.get(key, 0) + 1 if result.suspect else 0
        if self._suspect[key] == LASTING:
            self.former.setdefault(key, []).extend(self.candidates)
            self._since[key], self._suspect[key] = len(self.results), 0

    def _decided(self, event: Mapping[str, Any]) -> None:
        record, verdict = self._record(event), event["verdict"]
        if record.verdict is not None:
            raise ValueError(f"a second time about experiment {record.number}")
        if verdict not in _VERDICTS:
            raise ValueError(f"with the unknown verdict {verdict!r} about experiment {record.number}")
        val_bpb = event.get("val_bpb")
        self._update(
            record,
            verdict=verdict,
            reason=event.get("reason", ""),
            val_bpb=val_bpb,
            value=event.get("value", val_bpb),
            value_n=event.get("value_n", len(record.results)),
            value_key=self.conditions,
            decided_key=self.conditions,
            near_miss=event.get("near_miss", False),
            unfinished=None,
            decided_at=_moment(event),
        )

    def _anchored(self, event: Mapping[str, Any]) -> None:
        record = self._record(event)
        if not record.kept:
            raise ValueError(f"experiment {record.number}, which is not kept")
        self._update(record, value=event["value"], value_n=event["value_n"], value_key=self.conditions)

    def _withdrawn(self, event: Mapping[str, Any]) -> None:
        record = self._record(event)
        if not record.kept:
            raise ValueError(f"experiment {record.number}, which is not kept")
        self._update(record, withdrawn=event["reason"])

    def _calibrating(self, event: Mapping[str, Any]) -> None:
        self.calibration = Calibrating(event["n"], event["key"], event["first"])

    def _slope(self, event: Mapping[str, Any]) -> None:
        if self.calibration is None:
            raise ValueError("outside of a calibration")
        points = {**self.calibration.points, event["steps"]: event["val_bpb"]}
        self.calibration = self.calibration._replace(points=points)

    def _calibrated(self, event: Mapping[str, Any]) -> None:
        self.calibration = None

    def _stopped(self, event: Mapping[str, Any]) -> None:
        self.stop_reason = event["reason"]

    def _resumed(self, event: Mapping[str, Any]) -> None:
        if self.stop_reason:
            self.failed_rounds = 0
        self.stop_reason, self.session = "", event
        self.comparability_key = event.get("comparability_key", self.comparability_key)
        if "rules" in event:
            self._take_rules(event["rules"])
        self._take_prior(event)


def _moment(event: Mapping[str, Any]) -> datetime | None:
    """When it was journaled; None for an event that was never written."""
    return datetime.fromisoformat(event["time"]) if "time" in event else None
