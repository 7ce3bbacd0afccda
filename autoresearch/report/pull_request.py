"""A run's kept changes for others: a clean branch, whose commits tell their numbers, and the text of a pull request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from autoresearch.core import noise
from autoresearch.core.errors import AutoresearchError
from autoresearch.core.handover import Branch, Step, hand_over
from autoresearch.core.interval import Interval
from autoresearch.core.runs import SavedRun
from autoresearch.report.audit import NAMES
from autoresearch.report.findings import audit_of
from autoresearch.report.trajectory import Row, Trajectory, of_run

SUBJECT = 72
"""Characters of a commit's first line that git and its hosts show whole."""
TOLD = 10
"""Failures, and near misses, that are told one by one."""


def finalize(saved: SavedRun, onto: str = "", squash: bool = False, branch: str = "") -> dict[str, Any]:
    """Make the branch; the document of `autoresearch finalize --json`.

    Args:
        saved: a run with its workspace.
        onto: see `core.handover`.
        squash: one commit for all changes.
        branch: its name; "" is `autoresearch-TAG`.

    Returns:
        The branch, its commits with the experiments in them, `title` and `text` of the pull request (Markdown).

    Raises:
        AutoresearchError: nothing was kept; git fails.
        UsageError: see `hand_over`.
    """
    assert saved.workspace is not None, "a run of a workspace"
    trajectory = of_run(saved)
    if not trajectory.kept:
        raise AutoresearchError(
            f"run {saved.tag} has kept nothing yet: there is nothing to hand over", "go on searching"
        )
    chain = [trajectory.rows[0], *trajectory.kept]
    records = saved.history.experiments
    blobs = [records[row.number].blob for row in chain]
    title = f"autoresearch {saved.tag}: {_change(chain[0], chain[-1])} by {_count(len(chain) - 1, 'kept change')}"
    if squash:
        steps = [Step(blobs[-1], _squashed(title, chain, trajectory), chain[-1].decided_at)]
        parts: list[Sequence[Row]] = [chain[1:]]
    else:
        messages = [_message(before, row, trajectory) for before, row in pairwise(chain)]
        moments = [row.decided_at for row in chain[1:]]
        steps = [Step(*step) for step in zip(blobs[1:], messages, moments, strict=True)]
        parts = [[row] for row in chain[1:]]
    name = branch or f"autoresearch-{saved.tag}"
    made = hand_over(saved.workspace, records[0].commit, steps, name, onto)
    return {
        "tag": saved.tag,
        "branch": made.name,
        "created": made.is_new,
        "base": made.base,
        "onto": onto or None,
        "squashed": squash,
        "commit": made.commits[-1],
        "commits": [
            {"commit": commit, "experiments": [row.number for row in rows]}
            for commit, rows in zip(made.commits, parts, strict=True)
        ],
        "title": title,
        "text": _text(title, chain, trajectory, made, squash),
    }


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _change(before: Row, after: Row) -> str:
    """E.g. "val_bpb 1.8153 → 1.6780 (-0.1373)"; the scores of rows that can't be compared stand alone."""
    if before.value is None or after.value is None:
        score = after.val_bpb if after.value is None else after.value
        return f"val_bpb {score:.4f}" if score is not None else "val_bpb unknown"
    return f"val_bpb {before.value:.4f} → {after.value:.4f} ({after.value - before.value:+.4f})"


# Commits


def _message(before: Row, row: Row, trajectory: Trajectory) -> str:
    """Of the commit of one kept change."""
    subject = _printable(row.description)
    lines = [] if len(subject) <= SUBJECT else [subject, ""]
    told = f"{_change(before, row)}, n {before.value_n} and {row.value_n}"
    if before.value is None or row.value is None:
        told = f"{_change(before, row)}; not comparable with what it was made from: the machine changed meanwhile"
    lines.append(told)
    who = f", by {row.proposer}" if row.proposer else ""
    lines.append(f"experiment {row.number} of run {trajectory.name}{who}, {row.category or 'other'}")
    if row.parent != before.number:
        lines.append(
            f"with the change of experiment {row.parent}, from which it was made and which was withdrawn later"
        )
    return "\n".join([_cut(subject), "", *lines, *_measured(trajectory)]) + "\n"


def _squashed(title: str, chain: Sequence[Row], trajectory: Trajectory) -> str:
    changes = [f"- {_printable(row.description)}: {_change(before, row)}" for before, row in pairwise(chain)]
    return "\n".join([_cut(title), "", *changes, "", *_measured(trajectory)]) + "\n"


def _measured(trajectory: Trajectory) -> list[str]:
    spread = [f"spread between seeds {trajectory.spread}"] if trajectory.spread else []
    return [*spread, f"comparability key {trajectory.key}"]


def _cut(subject: str) -> str:
    return subject if len(subject) <= SUBJECT else subject[: SUBJECT - 1].rstrip() + "…"


def _printable(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split()) or "(no description)"


# The text


def _text(title: str, chain: Sequence[Row], trajectory: Trajectory, made: Branch, squash: bool) -> str:
    """Markdown."""
    saved = trajectory.saved
    assert saved is not None
    commits: Sequence[str] = [] if squash else made.commits
    rows = trajectory.rows
    near = [f"- experiment {row.number}: {_plain(row.description)}: {_bpb(row)}" for row in rows if row.near_miss]
    withdrawn = [
        f"- experiment {row.number}: {_plain(row.description)}: {_plain(row.withdrawn)}"
        for row in rows
        if row.withdrawn
    ]
    parts = [
        [f"# {_plain(title)}", "", *_result(chain, noise.gain_interval(saved.history), audit_of(saved))],
        ["## Kept changes", "", *_kept(chain, commits)],
        _section("Failures worth knowing", _failures(rows)),
        _section("Kept at first, then withdrawn", withdrawn[-TOLD:]),
        _section("Near misses: no gain that was borne out alone", near[-TOLD:]),
        ["## How it was measured", "", *_how(trajectory, made)],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "", *lines] if lines else []


def _bpb(row: Row) -> str:
    return "no score" if row.val_bpb is None else f"{row.val_bpb:.4f} bpb"


def _result(chain: Sequence[Row], gain: Interval | None, audit: Mapping[str, Any] | None) -> list[str]:
    lines = ["| | val_bpb | measurements |", "| --- | --- | --- |"]
    for what, row in (("baseline", chain[0]), (f"result (experiment {chain[-1].number})", chain[-1])):
        value = "measured on another machine" if row.value is None else f"{row.value:.4f}"
        lines.append(f"| {what} | {value} | {row.value_n} |")
    lines.append("")
    if gain is not None:
        share = f" ({100 * gain.mean / chain[0].value:.2f} %)" if chain[0].value else ""
        lines.append(
            f"Gain of the search: {gain.mean:.4f} bpb{share}, 95 % interval {gain.low:.4f} to {gain.high:.4f}, from "
            "its own scores, which also chose the changes."
        )
        if gain.low <= 0:
            lines.append("**This gain can't be told from noise.**")
    if audit is None:
        return [*lines, "Not audited with fresh seeds on held-out text (`autoresearch audit`)."]
    lines += ["", f"Audit with fresh seeds: {_plain(audit['conclusion'])}.", ""]
    for name, compared in audit["texts"].items():
        before, after, found = compared["baseline"], compared["incumbent"], compared["gain"]
        lines.append(
            f"- {NAMES[name]}: {before['bpb']:.4f} (n {before['n']}) → {after['bpb']:.4f} (n {after['n']}), gain "
            f"{found['bpb']:.4f}, 95 % interval {found['low']:.4f} to {found['high']:.4f}"
        )
    return lines


def _kept(chain: Sequence[Row], commits: Sequence[str]) -> list[str]:
    names = [f"{commit[:10]}, " for commit in commits] or [""] * (len(chain) - 1)
    return [
        f"{place}. {_plain(row.description)} ({name}experiment {row.number}): {_plain(_change(before, row))}"
        for place, ((before, row), name) in enumerate(zip(pairwise(chain), names, strict=True), start=1)
    ]


def _failures(rows: Iterable[Row]) -> list[str]:
    """How many of each kind, and the latest, those of one description once."""
    failed = [row for row in rows if row.failed]
    if not failed:
        return []
    kinds = Counter(row.verdict.replace("_", " ") for row in failed)
    latest = {(row.verdict, row.description): row for row in failed}
    told = [
        f"- {row.verdict.replace('_', ' ')}: {_plain(row.description)}"
        + (f": {_plain(row.reason)}" if row.reason else "")
        for row in list(latest.values())[-TOLD:]
    ]
    more = f"; the last {TOLD} of them" if len(latest) > TOLD else ""
    return [", ".join(f"{n} × {kind}" for kind, n in kinds.items()) + more + ":", "", *told]


def _how(trajectory: Trajectory, made: Branch) -> list[str]:
    saved = trajectory.saved
    assert saved is not None
    counts, task = saved.history.counts, saved.history.settings.get("task", {})
    budget = f"{task['train_steps']} steps" if task.get("train_steps") else f"{task.get('train_seconds', 0):g} s"
    return [
        f"- task {_plain(trajectory.preset)}, {budget} of training an experiment, {trajectory.backend} on "
        f"{_plain(trajectory.device)}",
        f"- {_count(counts.experiments, 'experiment')}: {counts.kept} kept, {counts.discarded} discarded, "
        f"{counts.failed} failed; {_count(counts.measurements, 'measurement')}, each with a seed of its own",
        *([f"- spread between seeds {trajectory.spread}"] if trajectory.spread else []),
        f"- comparability key `{trajectory.key}`: scores under another one measure something else",
        f"- branch `{made.name}` on top of {made.base[:10]}; it changes train.py alone",
    ]


def _plain(text: str) -> str:
    """What others wrote, so that it is no Markdown, no HTML, and mentions neither people nor issues."""
    escaped = re.sub(r"([\\`*_\[\]<>|~&$#])", r"\\\1", _printable(text))
    return re.sub(r"([@#])(?=\w)", "\\1\u200b", escaped)
