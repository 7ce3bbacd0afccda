"""A search whose machine is a function: real journal, real git, invented scores."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from autoresearch.agent.lab import Lab, Run
from autoresearch.agent.ledger import Ledger
from autoresearch.agent.proposer import Context, Proposal
from autoresearch.core.agent_settings import Caps
from autoresearch.core.contract import DeviceInfo, Result
from autoresearch.core.dataset import Dataset
from autoresearch.core.executor import Measurement
from autoresearch.core.history import History
from autoresearch.core.task import Rules, Settings, Stop, Task
from autoresearch.core.workspace import Workspace

DEVICE = DeviceInfo("null", "null", "a processor", 1, "numpy 1.0", "float32", "none", False, None, 2**30)


def source_of(rate: float) -> str:
    """A train.py that the lint accepts."""
    return f"RATE = {rate}\n\n\ndef train(experiment):\n    return RATE\n"


@dataclass
class Machine:
    """Stands in for the executor: the score of a source is what `score` says of its rate."""

    score: Callable[[float], float] = lambda rate: rate
    status: str = "ok"
    measured: list[tuple[str, int]] = field(default_factory=list)
    """(comparability key, seed) of each measurement."""
    changes: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Fields of the results of some measurements, counted from 0."""

    def measure(self, request, dataset, log, on_event) -> Measurement:
        self.measured.append((request.comparability_key, request.seed))
        found = re.search(r"RATE = (\S+)", request.source)
        assert found is not None
        score = self.score(float(found[1])) if self.status == "ok" else None
        result = Result(
            status=self.status,
            reason="" if self.status == "ok" else "as planned",
            val_bpb=score,
            seed=request.seed,
            comparability_key=request.comparability_key,
            source_hash=request.source_hash,
        )
        result = replace(result, **self.changes.get(len(self.measured) - 1, {}))
        return Measurement(result, {} if score is None else {"test_bpb": score})


class Listener:
    """A view that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.outcomes: list = []
        self.standings: list = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def detail(self, text: str) -> None: ...
    def stage(self, name: str, share: float) -> None: ...
    def begin(self, title: str) -> None: ...
    def event(self, message) -> None: ...
    def close(self) -> None: ...

    def standing(self, standing) -> None:
        self.standings.append(standing)

    def decided(self, outcome) -> None:
        self.outcomes.append(outcome)


class Listed:
    """Proposes rates from a list, as candidates of these names."""

    name = "listed"

    def __init__(self, **rates: float | Proposal) -> None:
        self._rates = rates
        self.contexts: list[Context] = []

    def propose(self, context: Context) -> Proposal | None:
        self.contexts.append(context)
        for name, rate in self._rates.items():
            if name not in context.origins:
                return rate if isinstance(rate, Proposal) else Proposal(source_of(rate), name, origin=name)
        return None


@pytest.fixture
def place(tmp_path, monkeypatch) -> Workspace:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return Workspace.create(tmp_path / "lab", {"train.py": source_of(2.0), "autoresearch.toml": ""})


@pytest.fixture
def lab_of(place: Workspace) -> Callable[..., Lab]:
    """Open the run: `lab_of(machine, key="a", spread=0.01, max_experiments=…)`, again and again; `where` moves it."""

    def build(machine: Machine, key: str = "a", view: Listener | None = None, where: Workspace = place, **more) -> Lab:
        # A wide band of unclear scores, so that scores planned by hand meet every step of the rule.
        rules = Rules(spread=more.pop("spread", 0.01), keep_z=2.5, strict=more.pop("strict", False))
        settings = Settings("tinystories/smoke", Task(), rules=rules, stop=Stop(**more), backend="null")
        dataset = Dataset(Path(), "data", "stories", 512, 64, 0, {})
        run = Run(where, "tag", settings, DEVICE, dataset, key, program="")
        return Lab(run, machine, view or Listener())

    return build


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def listed() -> type[Listed]:
    return Listed


@dataclass
class Purse:
    """A ledger over a journal in memory."""

    ledger: Ledger
    events: list[dict[str, Any]]
    history: History

    @property
    def outcomes(self) -> list[str]:
        """How each call ended, in order."""
        return [event["outcome"] for event in self.events if event["event"] == "charged"]

    @property
    def charged(self) -> list[float]:
        """Dollars of each call."""
        return [event["usd"] for event in self.events if event["event"] == "charged"]


@pytest.fixture
def purse() -> Callable[..., Purse]:
    """Open one: `purse(max_cost=0.5, call_usd=0.1)`."""

    def build(max_cost: float = 0.0, **caps: float) -> Purse:
        events: list[dict[str, Any]] = []
        history = History()

        def log(event: str, **data: Any) -> None:
            data = {"event": event, "time": datetime.now(UTC).isoformat(), **data}
            events.append(json.loads(json.dumps(data)))
            history.apply(events[-1])

        return Purse(Ledger(log, history, Caps(**caps), max_cost), events, history)

    return build
