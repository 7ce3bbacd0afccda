"""What it costs not to be cheated: a measurement with every guard, probe and check against one with none of them.

    python benchmarks/guards.py [--steps 120] [--repeats 5]

The reference model of PyTorch on the processor, preset tinystories/cpu, with a number of steps instead of seconds, so
that slower steps show in the wall time as well (two cores make 120 in the preset's 40 s). Both arms take turns in one
run. Off in the bare arm: lint, device probes, audit hook and the comparison of functions, the probes of the evaluation,
and the parent's look at memory, log and limits. Prints the ratio of the wall times and its parts (aim: 1.05 or less).
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from numpy.typing import NDArray

from autoresearch.backends.cuda_torch import ALLOWED_IMPORTS, BASELINE
from autoresearch.core import candidate, child, executor
from autoresearch.core import measure as scoring
from autoresearch.core.constants import set_constants
from autoresearch.core.contract import Result
from autoresearch.core.dataset import Dataset
from autoresearch.core.executor import LocalExecutor, Request
from autoresearch.core.measure import Evaluator, Score
from autoresearch.core.task import load_preset
from autoresearch.prepare.build import prepare

BARE_CHILD = "child"
PARTS = ("setup_seconds", "train_seconds", "eval_seconds")


# ---------------------------------------------------------------------------------------------------------------------
# The bare arm


class Unwatched:
    """In the place of the guard."""

    def __init__(self, *args: Any) -> None: ...
    def arm(self) -> None: ...
    def disarm(self) -> None: ...
    def check(self) -> None: ...


class Unprobed(Evaluator):
    """Scores and nothing else."""

    def measure(
        self, val: NDArray[Any], held_out: Mapping[str, NDArray[Any]], seed: int
    ) -> tuple[Score, dict[str, Score]]:
        return self.score(val), {name: self.score(rows) for name, rows in held_out.items()}


def bare_child() -> None:
    """The child's program, its guards replaced."""
    with mock.patch.object(child, "Guard", Unwatched), mock.patch.object(scoring, "Evaluator", Unprobed):
        child.main()


@contextlib.contextmanager
def bare() -> Iterator[None]:
    """Measurements whose child is `bare_child`, and whose parent only waits."""
    start = subprocess.Popen

    def start_bare(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        at = command.index("autoresearch.core.child")
        return start([*command[: at - 1], __file__, BARE_CHILD, *command[at + 1 :]], **options)

    with (
        mock.patch.object(subprocess, "Popen", start_bare),
        mock.patch.object(executor._Attempt, "_over_limit", lambda *_: None),
    ):
        yield


# ---------------------------------------------------------------------------------------------------------------------
# Both arms


@dataclass(frozen=True)
class Sample:
    """One measurement."""

    wall: float
    """In seconds, from the lint to the score."""
    result: Result

    def part(self, name: str) -> float:
        if name == "rest":
            return self.wall - sum(self.part(part) for part in PARTS)
        return float(getattr(self.result, name))


def measure(request: Request, dataset: Dataset, folder: Path, guarded: bool) -> Sample:
    begin = time.monotonic()
    with contextlib.nullcontext() if guarded else bare():
        if guarded:
            candidate.lint(request.source, ALLOWED_IMPORTS)
        result = LocalExecutor(folder).measure(replace(request, mark=uuid.uuid4().hex), dataset, folder / "log").result
    if result.status != "ok":
        raise SystemExit(f"the measurement failed: {result.status}: {result.reason}\n{result.log_tail}")
    return Sample(time.monotonic() - begin, result)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--steps", type=int, default=120)
    options.add_argument("--repeats", type=int, default=5)
    chosen = options.parse_args()
    settings = load_preset("tinystories/cpu")
    task = replace(settings.task, train_steps=chosen.steps, train_seconds=3600.0)
    source = set_constants(BASELINE.read_text(), settings.hyperparameters)
    samples: dict[bool, list[Sample]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = prepare(task, "sample", folder / "data", lambda what, share: None)
        request = Request(
            source=source,
            source_hash=candidate.source_hash(source),
            device=LocalExecutor().describe("cuda", "cpu", settings.task.train_seconds),
            task=task,
            limits=settings.limits,
            seed=1,
            comparability_key="",
            mark="",
        )
        plain = replace(request, limits=replace(settings.limits, probe_seconds=0.0))
        for turn in range(chosen.repeats + 1):
            # The first turn warms the caches of files; which arm goes first alternates.
            for guarded in (True, False) if turn % 2 else (False, True):
                sample = measure(request if guarded else plain, dataset, folder / "run", guarded)
                if turn:
                    samples[guarded].append(sample)
                    print(f"  {'guarded' if guarded else 'bare'}: {sample.wall:.2f} s", file=sys.stderr, flush=True)
    report(samples[True], samples[False], chosen.steps, settings.task.train_seconds)


def report(guarded: list[Sample], unguarded: list[Sample], steps: int, budget: float) -> None:
    """Medians of each part of both arms, the ratio of the walls, and what is fixed as a share of a whole measurement.

    Args:
        steps: of each measurement here.
        budget: training seconds of the preset.
    """
    print(f"{steps} steps, {len(guarded)} measurements of each arm, medians in seconds")
    print(f"{'':>14}{'guarded':>9}{'bare':>9}{'cost':>9}")
    for part in (*PARTS, "rest"):
        with_guards, without = (median(sample.part(part) for sample in arm) for arm in (guarded, unguarded))
        print(f"{part:>14}{with_guards:9.2f}{without:9.2f}{with_guards - without:+9.2f}")
    ratios = sorted(a.wall / b.wall for a, b in zip(guarded, unguarded, strict=True))
    with_guards, without = (median(sample.wall for sample in arm) for arm in (guarded, unguarded))
    print(f"{'wall':>14}{with_guards:9.2f}{without:9.2f}{with_guards - without:+9.2f}")
    fixed = [median(sample.wall - sample.part("train_seconds") for sample in arm) for arm in (guarded, unguarded)]
    print(
        f"outside training {fixed[0] - fixed[1]:+.2f} s, {(fixed[0] - fixed[1]) / (fixed[1] + budget):.1%} of a "
        f"measurement that trains for {budget:.0f} s"
    )
    each = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    print(f"guarded / bare: {with_guards / without:.3f}; of each turn: {each}")


if __name__ == "__main__":
    if sys.argv[1:2] == [BARE_CHILD]:
        del sys.argv[1]
        bare_child()
    else:
        main()
