"""How much the score of one train.py varies between seeds on this machine, and through what."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from autoresearch.agent import folder, start
from autoresearch.agent.lab import Lab
from autoresearch.core import noise, spreads
from autoresearch.core.awake import kept_awake
from autoresearch.core.contract import Result
from autoresearch.core.errors import AutoresearchError, UsageError
from autoresearch.core.interval import spread_limits
from autoresearch.core.records import Calibrating, Record
from autoresearch.core.suspect import counted
from autoresearch.core.task import SETTINGS
from autoresearch.core.view import View
from autoresearch.core.workspace import Workspace

CONFIDENCE = 0.9
FEWER, MORE = 0.8, 1.25
"""Of the steps that the budget allows: where the slope of the score is measured."""
SEEDS = -3
"""Minus the experiment's number, it stands for the experiment in the seeds of the two measurements of the slope."""


@dataclass(frozen=True)
class Calibration:
    """The spread of one experiment's score between fresh seeds. Spreads are standard deviations in bits per byte."""

    experiment: int
    key: str
    """Comparability key."""
    repeats: int
    mean: float
    spread: float
    low: float
    """Limits of the 90 % interval of the true spread, for normal scores."""
    high: float
    steps: float
    """Median of the steps reached."""
    steps_spread: float
    """Standard deviation of their natural logarithm."""
    slope: float | None
    """Bits per byte that the score changes by, per unit of the natural logarithm of steps; None where not measured."""
    fixed: float | None
    """The spread at the median steps: seed and kernels."""
    throughput: float | None
    """The spread through the number of steps reached."""
    suspect: int = 0
    """Measurements among these that the machine disturbed, as it did the ones that they repeat."""


def calibrate(
    directory: Path, tag: str, repeats: int, options: Mapping[str, Any], view: View
) -> tuple[Calibration, noise.Spread]:
    """Measure a run's incumbent with fresh seeds, and twice more with fewer and with more steps.

    The first are ordinary measurements of the experiment: they count for its value, by which a keep may be withdrawn,
    and for the spread, also that of later runs with the same comparability key.

    Args:
        directory: a workspace, or where the main job would make one.
        tag: "" is the run written to last; a run is started where there is none.
        repeats: 2 or more.
        options: of the command line, in the shape of autoresearch.toml.
        view: told of everything.

    Returns:
        What was found, and the spread by which the run decides from now on.

    Raises:
        AutoresearchError: two measurements in a row failed; see also `open_run`.
    """
    place = folder.find_workspace(directory)
    if (place / SETTINGS).is_file():
        tags = Workspace(place).tags()
        if tag and tags and tag not in tags:
            raise UsageError(f"no run {tag!r} in {place}", "runs: " + ", ".join(tags))
        tag = tag or start.latest_tag(Workspace(place))
    with start.open_run(directory, tag, options, None, view) as run:
        lab = Lab(run, run.executor(), view)
        reason = "calibrating was interrupted"
        try:
            with kept_awake():
                lab.begin()
                record, results = _repeated(lab, repeats, view)
                slope, points = _slope(lab, record, results, view)
            found = _found(record.number, run.key, results, slope)
            lab.log("calibrated", n=record.number, points=points, **asdict(found))
            scores = [result.val_bpb for result in results if result.val_bpb is not None]
            spreads.add(run.folder.parent, run.key, noise.pooled([scores]))
            reason = "calibrated"
        finally:
            lab.log("stopped", reason=reason)
        return found, noise.spread_of(lab.history, run.settings.rules)


def _begun(lab: Lab) -> Calibrating:
    """The calibration of the incumbent that is under way; where it was cut off, it goes on. It begins anew where the
    machine changed for good: that jump is no spread between seeds."""
    number, key = lab.incumbent.number, lab.history.conditions
    begun = lab.history.calibration
    if begun is None or (begun.number, begun.key) != (number, key):
        lab.log("calibrating", n=number, key=key, first=len(lab.incumbent.results))
        begun = lab.history.calibration
        assert begun is not None
    return begun


def _repeated(lab: Lab, repeats: int, view: View) -> tuple[Record, list[Result]]:
    """The incumbent with so many measurements more, and these; another one where it is withdrawn on the way."""
    number = lab.incumbent.number
    while True:
        if lab.incumbent.number != number:
            number = lab.incumbent.number
            view.note(f"calibrating starts again with #{number}, the incumbent")
        made = lab.incumbent.results[_begun(lab).first :]
        taken = counted(made, lambda result: result)
        if len(taken) >= repeats:
            return lab.incumbent, taken[:repeats]
        if len(made) >= 2 and all(result.status != "ok" for result in made[-2:]):
            raise AutoresearchError(
                f"two measurements in a row failed: {made[-1].status}: {made[-1].reason}",
                "leave the machine alone meanwhile, then run the same command again",
            )
        if made and made[-1].suspect and made[-1] not in taken:
            view.note(f"  once more: suspect: {made[-1].suspect}")
        lab.measure(number, f"calibrating #{number}: {len(taken) + 1} of {repeats}")
        lab.conclude()


def _slope(
    lab: Lab, record: Record, results: Sequence[Result], view: View
) -> tuple[float | None, list[tuple[int, float]]]:
    """Change of the score per unit of log steps, and its two points (steps, bits per byte).

    Both points have one seed, so that much of what it does to the score cancels out.
    """
    centre = median(result.steps for result in results)
    fewer = max(1, round(FEWER * centre))
    more = max(fewer + 1, round(MORE * centre))
    begun = _begun(lab)
    seed = noise.fresh_seed(lab.run.settings.seed, SEEDS - record.number, begun.first)
    points: list[tuple[int, float]] = []
    for steps in (fewer, more):
        if steps in begun.points:
            points.append((steps, begun.points[steps]))
            continue
        result = lab.try_steps(record.number, steps, seed, f"calibrating #{record.number}: {steps} steps")
        if result.val_bpb is None or result.steps != steps:
            reason = f"{result.status}: {result.reason}" if result.val_bpb is None else f"only {result.steps} fitted"
            view.note(f"  {steps} steps could not be measured, so the sources of the spread stay unknown: {reason}")
            return None, points
        lab.log("slope", n=record.number, steps=steps, val_bpb=result.val_bpb)
        points.append((steps, result.val_bpb))
    (_, first), (_, second) = points
    return (second - first) / math.log(more / fewer), points


def _found(number: int, key: str, results: Sequence[Result], slope: float | None) -> Calibration:
    """The spread, and its two sources by the linear model score = mean + slope · log steps + noise."""
    scores = [result.val_bpb for result in results if result.val_bpb is not None]
    centre = median(result.steps for result in results)
    logs = [math.log(result.steps / centre) for result in results]
    spread = stdev(scores)
    low, high = spread_limits(spread, len(scores) - 1, CONFIDENCE)
    fixed = throughput = None
    if slope is not None:
        fixed = stdev([score - slope * log for score, log in zip(scores, logs, strict=True)])
        throughput = abs(slope) * stdev(logs)
    return Calibration(
        experiment=number,
        key=key,
        repeats=len(scores),
        mean=fmean(scores),
        spread=spread,
        low=low,
        high=high,
        steps=centre,
        steps_spread=stdev(logs),
        slope=slope,
        fixed=fixed,
        throughput=throughput,
        suspect=sum(bool(result.suspect) for result in results),
    )


def text(found: Calibration, used: noise.Spread) -> str:
    """In plain words, for a person."""
    lines = [
        f"experiment {found.experiment}: {found.mean:.4f} bpb, mean of {found.repeats} fresh seeds",
        f"spread between seeds: {found.spread:.5f} bpb; the true one is between {found.low:.5f} and {found.high:.5f} "
        f"(90 % interval: few measurements tell it roughly)",
    ]
    if found.slope is not None:
        lines += [
            f"  at fixed tokens (seed, kernels): {found.fixed:.5f} bpb",
            f"  through throughput: {found.throughput:.5f} bpb (the budget was enough for {found.steps:g} steps, give "
            f"or take {found.steps_spread:.1%}; 10 % more change the score by {found.slope * math.log(1.1):+.5f} bpb)",
        ]
    if found.suspect:
        lines.append(
            f"  {found.suspect} of them suspect, and so were those that they repeat: the speed of this machine changes "
            "by itself, and the scores with it"
        )
    lines.append(
        f"this run decides by {used.value:.5f} bpb from now on: the prior and {used.measured} degrees of freedom"
    )
    return "\n".join(lines)


def document(found: Calibration, used: noise.Spread) -> dict[str, Any]:
    """For `--json`."""
    return {**asdict(found), "decides_by": {"spread": used.value, "dof": used.dof, "measured": used.measured}}
