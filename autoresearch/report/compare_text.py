"""A comparison for people: sections of lines and tables, for a terminal, a pipe or a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

SHOWN = 25
"""Rows of a table; the document has all."""


class Section(NamedTuple):
    """A part of a comparison. Columns without any content aren't shown."""

    title: str
    lines: tuple[str, ...] = ()
    """Before the table."""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    text_columns: frozenset[int] = frozenset({0})
    """Places of those that are set to the left; the others are numbers."""
    note: str = ""
    """After the table."""


def sections(document: Mapping[str, Any]) -> list[Section]:
    """Of `compare.document`, the conclusion first; empty ones are left out."""
    runs = document["runs"]
    parts = [Section("", conclusion(document)), Section("not ranked", _not_ranked(document)), _summary(runs)]
    parts += [_wins(runs[0])] if len(runs) == 1 else [_kept(run) for run in runs]
    parts += [_categories(runs), _constants(document)]
    parts += [_agreement(pair) for pair in document["agreement"]]
    for found in document["transfers"]:
        parts += [_transfer(found), _not_carried(found)]
    parts += [_problems(run) for run in runs]
    return [_fit_to_print(part) for part in parts if part.lines or part.rows]


def _fit_to_print(part: Section) -> Section:
    """Without columns that hold nothing, and without characters by which a description could steer a terminal."""
    filled = [place for place in range(len(part.columns)) if any(row[place] for row in part.rows)]
    return part._replace(
        title=_printable(part.title),
        lines=tuple(map(_printable, part.lines)),
        columns=tuple(_printable(part.columns[place]) for place in filled),
        rows=tuple(tuple(_printable(row[place]) for place in filled) for row in part.rows),
        text_columns=frozenset(new for new, place in enumerate(filled) if place in part.text_columns),
    )


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def conclusion(document: Mapping[str, Any]) -> tuple[str, ...]:
    """What each search gained, and how those of one key rank."""
    steps = [step for ranking in document["rankings"] for step in ranking["steps"]]
    return (*map(_gained, document["runs"]), *map(_step, steps))


def _not_ranked(document: Mapping[str, Any]) -> tuple[str, ...]:
    keys = {run["name"]: run["comparability_key"] for run in document["runs"]}
    unknown = [name for name, key in keys.items() if not key] if len(keys) > 1 else []
    told = [f"{name}, with any: on what it was measured isn't known (no comparability key)" for name in unknown]
    pairs = [pair for pair in document["not_ranked"] if all(keys[name] for name in pair["runs"])]
    return (*told, *(f"{' and '.join(pair['runs'])}: {pair['why']}" for pair in pairs))


def _gained(run: Mapping[str, Any]) -> str:
    baseline, best = run["baseline"], run["best"]
    tried = f"{run['experiments']} experiment{'s' * (run['experiments'] != 1)}"
    if baseline is None or best is None:
        return f"{run['name']}: {tried}, and no baseline to measure a gain from"
    if best["experiment"] == baseline["experiment"]:
        return f"{run['name']}: nothing beat the baseline's {baseline['val_bpb']:.6f} bpb in {tried}"
    interval = _interval(run["relative_gain_interval"], 100)
    sure = f"95 % interval {interval} %" if interval else "no interval: nothing is known of its noise"
    return (
        f"{run['name']}: {baseline['val_bpb']:.6f} → {best['val_bpb']:.6f} bpb, a gain of {run['gain']:.6f} or "
        f"{percent(run['relative_gain'])} ({sure}) in {tried}"
    )


def _step(step: Mapping[str, Any]) -> str:
    lead = step["lead"]
    told = f"by {lead['bpb']:.6f} bpb, 95 % interval {_interval(lead, 1)} ({step['method']})"
    if step["clear"]:
        return f"{step['better']} is better than {step['worse']} {told}"
    return f"{step['better']} and {step['worse']} can't be told apart: the first leads {told}"


def percent(share: float | None) -> str:
    """With its sign and three or four digits; "" for None."""
    if share is None:
        return ""
    if abs(share) < 5e-7:
        return "0 %"
    return f"{100 * share:+.{2 if abs(share) >= 0.01 else 3 if abs(share) >= 0.001 else 4}f} %"


def _interval(limits: Mapping[str, float] | None, factor: float) -> str:
    return "" if limits is None else f"[{factor * limits['low']:.3g}, {factor * limits['high']:.3g}]"


_Cell = Callable[[Mapping[str, Any]], str]
_SUMMARY: dict[str, _Cell] = {
    "backend": lambda run: run["backend"],
    "device": lambda run: run["device"],
    "preset": lambda run: run["preset"],
    "task": lambda run: _key(run)[0],
    "measured with": lambda run: ", ".join(_key(run)[3:]),
    "rows, the baseline too": lambda run: _rows(run["rows"]) if run["kind"] == "table" else "",
    "experiments": lambda run: f"{run['experiments']:,}",
    "kept": lambda run: f"{run['kept']:,}",
    "discarded": lambda run: f"{run['discarded']:,}",
    "failed": lambda run: f"{run['failed']:,}",
    "baseline, bpb": lambda run: _value(run["baseline"]),
    "best, bpb": lambda run: _value(run["best"]),
    "relative gain": lambda run: percent(run["relative_gain"]),
    "95 % interval, %": lambda run: _interval(run["relative_gain_interval"], 100),
    "gain per experiment": lambda run: percent(run["gain_per_experiment"]),
    "hours": lambda run: "" if run["hours"] is None else f"{run['hours']:.3g}",
    "gain per hour": lambda run: percent(run["gain_per_hour"]),
    "steps, baseline → best": lambda run: _both(run, "steps"),
    "tokens, baseline → best": lambda run: _both(run, "tokens"),
    "tokens/s, baseline → best": lambda run: _both(run, "tokens_per_second"),
    "parameters, baseline → best": lambda run: _both(run, "num_params"),
    "tokens/s drift, median": lambda run: percent((run["throughput"]["drift"] or {}).get("median")),
    "failures": lambda run: ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in run["wasted"]["failures"].items()),
    "refused, of them duplicates": lambda run: _refused(run["wasted"]),
    "hours that gave nothing": lambda run: _share(run["wasted"]["share_of_hours"]),
}


def _summary(runs: Sequence[Mapping[str, Any]]) -> Section:
    rows = [(name, *(cell(run) for run in runs)) for name, cell in _SUMMARY.items()]
    shown = tuple(row for row in rows if any(row[1:]))
    return Section("side by side" if len(runs) > 1 else "in numbers", (), ("", *(run["name"] for run in runs)), shown)


def _key(run: Mapping[str, Any]) -> list[str]:
    """Parts of the comparability key; backend and device are told apart from it."""
    return (run["comparability_key"] or "not known").split("/")


def _rows(rows: Mapping[str, int]) -> str:
    return f"{sum(rows.values())}: " + ", ".join(f"{n} {verdict}" for verdict, n in rows.items())


def _value(standing: Mapping[str, Any] | None) -> str:
    return "" if standing is None else f"{standing['val_bpb']:.6f} (#{standing['experiment']}, n {standing['n']})"


def _both(run: Mapping[str, Any], name: str) -> str:
    ends = [run["throughput"][end] for end in ("baseline", "best")]
    numbers = [f"{end[name]:,.0f}" if end and end[name] else "" for end in ends]
    return " → ".join(number or "?" for number in numbers) if any(numbers) else ""


def _refused(wasted: Mapping[str, Any]) -> str:
    return "" if not wasted["refused"] else f"{wasted['refused']}, {wasted['duplicates']}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _wins(run: Mapping[str, Any]) -> Section:
    rows = tuple(
        (f"#{win['experiment']}", f"{win['gain']:.6f}", percent(win["relative_gain"]), win["commit"][:10], *_what(win))
        for win in run["wins"]
    )
    columns = ("experiment", "gain, bpb", "relative", "commit", "category", "what was kept")
    return Section("largest gains", (), columns, rows, frozenset({3, 4, 5}))


def _what(change: Mapping[str, Any]) -> tuple[str, str]:
    return change["category"], change["description"]


def _kept(run: Mapping[str, Any]) -> Section:
    changes = run["kept_changes"]
    rows = tuple((f"#{one['experiment']}", percent(one["relative_gain"]), *_what(one)) for one in changes[:SHOWN])
    columns = ("experiment", "gain", "category", "what was kept")
    return Section(f"kept by {run['name']}, in order", (), columns, rows, frozenset({2, 3}), _more(len(changes)))


def _more(total: int) -> str:
    return f"the first {SHOWN} of {total}; --json has all" if total > SHOWN else ""


def _categories(runs: Sequence[Mapping[str, Any]]) -> Section:
    names = {name: None for run in runs for name in run["categories"]}
    if len(names) < 2:
        return Section("")
    rows = tuple((name, *(_category(run["categories"].get(name)) for run in runs)) for name in names)
    return Section("kept by category", (), ("", *(run["name"] for run in runs)), rows)


def _category(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return "-"
    return f"{one['kept']} of {one['tried']}" + (f", {percent(one['relative_gain'])}" if one["kept"] else "")


def _constants(document: Mapping[str, Any]) -> Section:
    names = [run["name"] for run in document["runs"]]
    alone = len(names) == 1
    # Beside each other: what more than one search knows, or one of them changed.
    shown = {
        name: found
        for name, found in document["constants"].items()
        if any(one["from"] != one["to"] for one in found.values()) or (not alone and len(found) > 1)
    }
    rows = tuple((name, *(_constant(found.get(label)) for label in names)) for name, found in shown.items())
    told: tuple[str, ...] = ("from the baseline to the best; in brackets kept of tried, where it was moved alone",)
    if any(run["kind"] == "table" for run in document["runs"]):
        told += ("of a table: as far as its descriptions say NAME BEFORE to AFTER",)
    return Section("constants", told if rows else (), ("", *names), rows[:SHOWN], note=_more(len(rows)))


def _constant(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return "-"
    before, after = one["from"], one["to"]
    told = _plain(before) if before == after else f"{_plain(before)} → {_plain(after)}{_factor(before, after)}"
    tries = [f"{move['move'].split(' ', 1)[1]} {move['kept']}/{move['tried']}" for move in one["moves"]]
    return told + (f" ({', '.join(tries)})" if tries else "")


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _factor(before: Any, after: Any) -> str:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (before, after))
    return f", ×{after / before:.3g}" if numbers and before else ""


def _agreement(pair: Mapping[str, Any]) -> Section:
    first, second = pair["runs"]
    title = f"moves of both {first} and {second}"
    if pair["note"]:
        return Section(title, (f"{pair['n']} shared: {pair['note']}",))
    lines = _signs_and_ranks(pair)
    moves = sorted(pair["moves"], key=lambda move: not move["opposed"])
    rows = tuple(
        (move["label"], _effect(move["first"]), _effect(move["second"]), _sides(move, pair["runs"])) for move in moves
    )
    columns = ("", first, second, "")
    return Section(title, tuple(lines), columns, rows[:SHOWN], frozenset({0, 3}), _more(len(rows)))


def _signs_and_ranks(found: Mapping[str, Any]) -> list[str]:
    signs, ranks = found["signs"], found["ranks"]
    lines = []
    if signs:
        lines.append(f"the same sign in {signs['same']} of {signs['n']} (sign test, p {signs['p']:.2g})")
    if ranks:
        how = "all orders" if ranks["exact"] else "random orders"
        lines.append(f"rank correlation of the effects {ranks['rho']:+.2f} (n {ranks['n']}, p {ranks['p']:.2g}, {how})")
    return lines


def _transfer(found: Mapping[str, Any]) -> Section:
    there, here, counts = found["from"], found["to"], found["counts"]
    rows = found["experiments"]
    parts = f", {found['in_part']} of them only in part: these are not counted below" if found["in_part"] else ""
    lines = [
        f"{len(rows)} of {len(rows) + len(found['not_carried'])} experiments were carried over{parts}",
        f"helped (kept, or better by more than noise) on both {counts['both']}, on {there} alone "
        f"{counts['there_alone']}, on {here} alone {counts['here_alone']}, on neither {counts['neither']}",
        *_signs_and_ranks(found),
    ]
    table = tuple(
        (
            *(f"#{row['there']}", row["verdict_there"], percent(row["effect_there"])),
            *(f"#{row['here']}", row["verdict_here"], percent(row["effect_here"])),
            "in part" if row["left_out"] else _helped(row, there, here),
            row["hypothesis"],
        )
        for row in rows[:SHOWN]
    )
    columns = (there, "verdict", "effect", here, "verdict", "effect", "helped on", "what was tried")
    title = f"carried over from {there} to {here}"
    return Section(title, tuple(lines), columns, table, frozenset({1, 4, 6, 7}), _more(len(rows)))


def _helped(row: Mapping[str, Any], there: str, here: str) -> str:
    if row["helped_there"] and row["helped_here"]:
        return "both"
    return there if row["helped_there"] else here if row["helped_here"] else ""


def _not_carried(found: Mapping[str, Any]) -> Section:
    rows = tuple(
        (f"#{row['there']}", row["verdict_there"], row["hypothesis"], row["reason"]) for row in found["not_carried"]
    )
    columns = ("", "verdict", "what was tried", "why not")
    title = f"not carried over from {found['from']} to {found['to']}"
    return Section(title, (), columns, rows[:SHOWN], frozenset({1, 2, 3}), _more(len(rows)))


def _effect(tried: Mapping[str, Any]) -> str:
    noise = "" if tried["error"] is None else f" ± {100 * tried['error']:.2g}"
    times = f" ({tried['tried']}×)" if tried["tried"] > 1 else ""
    return percent(tried["effect"]).removesuffix(" %") + noise + " %" + times


def _sides(move: Mapping[str, Any], runs: Sequence[str]) -> str:
    if not move["opposed"]:
        return ""
    helped, hurt = runs if move["first"]["effect"] > 0 else reversed(runs)
    return f"helped on {helped}, hurt on {hurt}" + (", within noise" if move["clear"] is False else "")


def _problems(run: Mapping[str, Any]) -> Section:
    problems = tuple(run["problems"])
    more = (f"and {len(problems) - SHOWN} more; --json has all",) * (len(problems) > SHOWN)
    return Section(f"read with {len(problems)} remarks: {run['name']}", problems[:SHOWN] + more)


def text(parts: Sequence[Section]) -> str:
    """Plain lines, each table aligned by blanks; never wrapped."""
    lines: list[str] = []
    for part in parts:
        lines += ["", part.title] if part.title else []
        lines += part.lines
        lines += _aligned(part)
        lines += [part.note] if part.note else []
    return "\n".join(lines)


def _aligned(part: Section) -> list[str]:
    table = [part.columns, *part.rows] if part.rows else []
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(_set(row, widths, part.text_columns)).rstrip() for row in table]


def _set(row: Sequence[str], widths: Sequence[int], left: frozenset[int]) -> list[str]:
    return [
        cell.ljust(width) if i in left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def show(parts: Sequence[Section], stream: TextIO) -> None:
    """Tables that fit the terminal; in a pipe the plain lines of `text`."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    if not console.is_terminal:
        print(text(parts), file=stream)
        return
    for part in parts:
        if part.title:
            console.print(Text(f"\n{part.title}", style="bold"))
        for line in part.lines:
            console.print(Text(line))
        if part.rows:
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
            for place, name in enumerate(part.columns):
                table.add_column(Text(name), justify="left" if place in part.text_columns else "right", overflow="fold")
            for row in part.rows:
                table.add_row(*map(Text, row))
            console.print(table)
        if part.note:
            console.print(Text(part.note, style="dim"))
