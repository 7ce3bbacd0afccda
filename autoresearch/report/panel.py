"""What stands at the foot of a terminal while a search runs: a few rows that fit, whatever its size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from autoresearch.core.amounts import dollars
from autoresearch.core.standing import Limit, Standing

BAR = 16
SPARKLINE = 24
LEAST_SPARKLINE = 8
"""Columns, where there is room."""
MOST_COLUMNS = 120
"""A row isn't longer: nobody reads along the whole of a very wide terminal."""


class Signs(NamedTuple):
    """What rows are drawn with."""

    done: str
    open: str
    between: str
    levels: str
    """From low to high."""
    plus_minus: str
    cut: str
    spinner: str


UNICODE = Signs("━", "╌", " · ", "▁▂▃▄▅▆▇█", "±", "…", "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
ASCII = Signs("#", "-", " | ", "_.-=*#", "+-", ".", "|/-\\")


@dataclass(frozen=True)
class Doing:
    """What a search does at this moment."""

    title: str
    """Of the measurement, or of what is waited for."""
    seconds: float = 0.0
    """Since it began."""
    share: float | None = None
    """0..1; None where nobody knows how far it is."""
    facts: tuple[str, ...] = ()


def duration(seconds: float) -> str:
    """A time for people: 45 s, 12 min, 1 h 5 min, 3 d 4 h."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h"


def sparkline(values: Sequence[float], width: int, levels: str) -> str:
    """A series in one row of at most `width` characters, from its lowest value to its highest.

    Longer series are thinned: each character is the last value of its part.
    """
    if not values or width < 1:
        return ""
    n = min(len(values), width)
    shown = [values[(i + 1) * len(values) // n - 1] for i in range(n)]
    low, high = min(shown), max(shown)
    if high <= low:
        return levels[0] * n
    return "".join(levels[round((value - low) / (high - low) * (len(levels) - 1))] for value in shown)


def cut(text: str, width: int, signs: Signs) -> str:
    """`text` in at most `width` columns, on one line."""
    text = " ".join(text.split())
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - len(signs.cut))).rstrip() + signs.cut


def flow(facts: Iterable[str], width: int, signs: Signs) -> list[str]:
    """Facts side by side, on as many rows as they need; one that is too long for a row is cut."""
    rows: list[str] = []
    for fact in (cut(fact, width, signs) for fact in facts):
        if rows and cell_len(rows[-1]) + len(signs.between) + cell_len(fact) <= width:
            rows[-1] += signs.between + fact
        else:
            rows.append(fact)
    return rows


def measuring(message: Mapping[str, Any], title: str) -> Doing:
    """What the executor's last word on a measurement says; an empty one is that of its start."""
    match message.get("event"):
        case "clock_start":
            return Doing(title, share=0.0, facts=("training",))
        case "progress":
            share = min(1.0, max(0.0, float(message["progress"])))
            left = [f"{duration(message['seconds'] * (1 - share) / share)} left"] if share > 0 else []
            speed = f"{message['tokens_per_second']:,.0f} tokens/s"
            facts = [*left, f"step {message['step']}", f"loss {message['loss']:.3f}", speed]
            return Doing(title, share=share, facts=tuple(facts))
        case "clock_stop":
            return Doing(title, share=1.0, facts=("scoring",))
    return Doing(title, facts=("set-up",))


def rows(
    doing: Doing | None, standing: Standing | None, width: int, height: int, signs: Signs = UNICODE, frame: int = 0
) -> list[Text]:
    """The rows for a terminal of `width` columns and `height` rows; at most half of these are taken.

    Where they don't all fit, what is left out goes by its weight: the counts first, then limits, then the title.

    Args:
        frame: number of the drawing, for what moves.
    """
    width, most = max(8, min(width, MOST_COLUMNS)), max(1, height // 2)
    parts: dict[str, list[Text]] = {"title": [], "bar": [], "best": [], "counts": [], "limits": []}
    if doing is not None:
        spin = signs.spinner[frame % len(signs.spinner)]
        parts["title"] = [Text(cut(f"{spin} {doing.title}", width, signs))]
        parts["bar"] = _bar(doing, width, signs)
    if standing is not None:
        parts["best"] = [Text(row, style="bold") for row in _best(standing, width, signs)]
        parts["counts"] = [Text(row, style="dim") for row in flow(_counts(standing), width, signs)]
        parts["limits"] = [Text(row, style="dim") for row in flow(_limits(standing.limits), width, signs)]
    for name in ("bar", "best", "title", "limits", "counts"):
        parts[name] = parts[name][:most]
        most -= len(parts[name])
    return [row for part in parts.values() for row in part]


def _bar(doing: Doing, width: int, signs: Signs) -> list[Text]:
    """How far it is, then what is known of it."""
    if doing.share is None:
        told = (*doing.facts, *([duration(doing.seconds)] if doing.seconds >= 1 else []))
        return [Text(row, style="dim") for row in flow(told, width, signs)]
    columns = max(1, min(BAR, width // 3))
    filled = round(doing.share * columns)
    bar = signs.done * filled + signs.open * (columns - filled)
    first, *more = flow([f"{bar} {doing.share:.0%}", *doing.facts], width, signs)
    return [Text.assemble((first[:filled], "green"), first[filled:]), *map(Text, more)]


def _best(standing: Standing, width: int, signs: Signs) -> list[str]:
    if standing.best is None:
        return []
    if standing.best_number == 0:
        return [cut(f"best {standing.best:.4f} bpb, the baseline", width, signs)]
    facts = [f"best {standing.best:.4f} bpb (#{standing.best_number})"]
    if standing.gain is not None and standing.baseline is not None:
        gain = standing.gain
        facts.append(f"gain {gain.mean:.4f} {signs.plus_minus} {gain.half_width:.4f} (95 %)")
        facts.append(f"baseline {standing.baseline:.4f}")
    else:
        facts.append("the baseline is another machine's")
    rows = flow(facts, width, signs)
    beside = width - cell_len(rows[-1]) - len(signs.between)
    columns = min(SPARKLINE, beside if beside >= LEAST_SPARKLINE else width)
    return flow([*rows, sparkline(standing.best_so_far, columns, signs.levels)], width, signs)


def _counts(standing: Standing) -> list[str]:
    counts = standing.counts
    facts = [_number(counts.experiments), f"{counts.kept} kept", f"{counts.discarded} discarded"]
    return [*facts, f"{counts.failed} failed", *([f"{dollars(standing.cost_usd)} spent"] if standing.cost_usd else [])]


def _number(experiments: float) -> str:
    return f"{experiments:.0f} experiment{'' if experiments == 1 else 's'}"


def _limits(limits: Iterable[Limit]) -> Iterable[str]:
    now = datetime.now(UTC)
    for limit in limits:
        left = None if limit.ends_at is None else duration(max(0.0, (limit.ends_at - now).total_seconds()))
        about = "" if left is None else f", ~{left}"
        match limit.unit:
            case "seconds":
                yield f"{left} left ({limit.name})"
            case "experiments":
                yield f"{_number(limit.left)} left{about}"
            case "dollars":
                yield f"{dollars(limit.left)} left ({limit.name}){about}"
            case "bpb":
                yield f"{limit.left:.4f} bpb to {limit.name}"
