"""What the report of a long run costs, and how large its page is.

    python benchmarks/report.py [EXPERIMENTS ...]        700 and 5000 by default

Builds a run of so many experiments in a real git repository: a commit for each, as a search leaves them, and a journal
with loss curves, logs, retests, failures, withdrawn keeps, refused proposals and costs. Nothing is trained. Prints the
seconds to read the journal, to make the page and to draw the picture (aim: 5 s in all for 5,000 experiments), the
page's size, the seconds a thousand experiments, and the whole as a multiple of reading the journal alone.
"""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoresearch.core.registry import facts
from autoresearch.core.runs import load
from autoresearch.core.task import SETTINGS
from autoresearch.report import page, plot
from autoresearch.report.trajectory import of_run

TAG = "long"
CATEGORIES = ("batch", "learning rate", "schedule", "architecture", "initialisation", "regularisation", "other")
BASELINE = 1.8
SPREAD = 0.004
_CONSTANT = re.compile(r"^([A-Z_0-9]+ = )(\d+\.\d+)", re.MULTILINE)


def build(folder: Path, count: int, seed: int = 0, texts: str = "") -> Path:
    """Make a workspace with a run of `count` experiments and the baseline; its folder.

    Args:
        texts: put into every hypothesis, reason, category and log, and into every source as a comment.
    """
    chance = random.Random(seed)
    sources = [facts("cuda").BASELINE.read_text()]
    events = list(_events(count, chance, sources, texts))
    folder.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(folder)], check=True)
    command = ["git", "-C", str(folder), "fast-import", "--quiet", "--export-marks=marks"]
    parents = {event["n"]: event["parent"] for event in events if event["event"] == "proposed"}
    subprocess.run(command, input=b"".join(_commits(sources, parents)), check=True)
    marks = dict(line.split() for line in (folder / "marks").read_text().splitlines())
    state = folder / ".autoresearch" / TAG
    state.mkdir(parents=True)
    for event in events:
        if event["event"] == "committed":
            event["commit"] = marks[f":{event['n'] + 1}"]
    (state / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    tests = [{"n": n, "k": k, "test_bpb": score + 0.05 + chance.gauss(0, 0.001)} for n, k, score in _scores(events)]
    (state / "audit.jsonl").write_text("".join(json.dumps({"event": "test", **test}) + "\n" for test in tests))
    (folder / "train.py").write_text(sources[0])
    (folder / SETTINGS).write_text("")
    return folder


def _commits(sources: list[str], parents: dict[int, int | None]) -> Iterator[bytes]:
    """What `git fast-import` makes commits of, experiment n as mark n + 1."""
    for n, source in enumerate(sources):
        content = source.encode()
        base = "" if (parent := parents[n]) is None else f"from :{parent + 1}\n"
        yield (
            f"commit refs/autoresearch/{TAG}/{n}\nmark :{n + 1}\ncommitter a <a@localhost> 1700000000 +0000\n"
            f"data 1\nm\n{base}M 100644 inline train.py\ndata {len(content)}\n"
        ).encode() + content
        yield b"\n"


def _scores(events: list[dict[str, Any]]) -> Iterator[tuple[int, int, float]]:
    for event in events:
        if event["event"] == "measured" and event["result"]["val_bpb"] is not None:
            yield event["n"], event["k"], event["result"]["val_bpb"]


def _events(count: int, chance: random.Random, sources: list[str], texts: str) -> Iterator[dict[str, Any]]:
    """The journal; `sources` grows by one train.py an experiment."""
    clock = (f"2026-11-30T{h:02d}:{m:02d}:{s:02d}+00:00" for h in range(24) for m in range(60) for s in range(60))
    rules = {"spread": SPREAD, "spread_dof": 4.0}
    settings = {"backend": "null", "preset": "tinystories/cpu", "rules": rules}
    yield {"event": "run", "tag": TAG, "settings": settings, "comparability_key": "key", "device": {"name": "CPU"}}
    incumbent, values = 0, {0: BASELINE}
    yield from _experiment(0, None, "keep", BASELINE, chance, "baseline", texts)
    for n in range(1, count + 1):
        sources.append(_edited(sources[incumbent], chance, texts))
        call = {"event": "call", "id": str(n), "n": n, "agent": "claude", "worst_usd": 0.1, "time": next(clock)}
        yield call
        yield {"event": "charged", "id": str(n), "usd": round(chance.uniform(0.01, 0.08), 4)}
        if chance.random() < 0.02:
            yield {"event": "refused", "n": n, "reason": "a duplicate", "hypothesis": f"again {n} {texts}"}
        lot, value = chance.random(), values[incumbent]
        if lot < 0.08:
            yield from _experiment(
                n, incumbent, chance.choice(["crash", "timeout", "diverged"]), None, chance, "", texts
            )
            continue
        score = value + abs(chance.gauss(0, 0.02)) * (3 if lot > 0.97 else 1)
        if lot < 0.08 + 2 / math.sqrt(n + 4) * 0.3:
            score = value - abs(chance.gauss(0, 0.3)) / (n + 10) - 2e-4
            yield from _experiment(n, incumbent, "keep", score, chance, "", texts)
            values[n] = score
            if chance.random() < 0.1:
                yield {"event": "withdrawn", "n": n, "reason": f"fresh measurements say otherwise {texts}"}
            else:
                incumbent = n
        else:
            yield from _experiment(n, incumbent, "discard", score, chance, "", texts)
    yield {"event": "stopped", "reason": "no proposals are left (script)"}


def _edited(source: str, chance: random.Random, texts: str) -> str:
    """One or two constants changed, at times a line of the body too."""
    edited = source
    for found in chance.sample(list(_CONSTANT.finditer(source)), chance.choice((1, 1, 2))):
        number = float(found[2]) * chance.choice((0.5, 0.8, 1.25, 2)) or 0.1
        edited = edited.replace(found[0], f"{found[1]}{number:.5f}", 1)
    if chance.random() < 0.3 or texts:
        lines = edited.split("\n")
        lines.insert(chance.randrange(len(lines) // 2, len(lines)), f"# an idea, number {chance.random()} {texts}")
        edited = "\n".join(lines)
    return edited


def _experiment(
    n: int, parent: int | None, verdict: str, score: float | None, chance: random.Random, what: str, texts: str
) -> Iterator[dict[str, Any]]:
    idea = what or f"idea {n}: {chance.choice(('raise', 'lower', 'move'))} {chance.choice(CATEGORIES)} a little {texts}"
    category = "baseline" if parent is None else f"{chance.choice(CATEGORIES)}{texts}"
    yield {
        "event": "proposed", "n": n, "blob": "0" * 40, "hypothesis": idea, "category": category, "proposer": "claude",
        "origin": "", "source_hash": f"s{n}", "normalized_hash": f"n{n}", "parent": parent, "diff_lines": 2,
    }  # fmt: skip
    yield {"event": "committed", "n": n}
    near = verdict == "discard" and chance.random() < 0.05
    for k in range(2 if near else 1):
        yield {"event": "started", "n": n, "k": k, "seed": 2 * n + k, "mark": ""}
        yield {"event": "measured", "n": n, "k": k, "result": _result(n, k, verdict, score, chance, texts)}
    value = {"value": score, "value_n": 1} if verdict == "keep" else {"value": None, "value_n": 0}
    yield {"event": "decided", "n": n, "verdict": verdict, "reason": f"because {texts}", "val_bpb": score, **value} | {
        "near_miss": near
    }


def _result(n: int, k: int, verdict: str, score: float | None, chance: random.Random, texts: str) -> dict[str, Any]:
    curve = [[(i + 1) / 100, 7 * math.exp(-i / 20) + 2 + chance.gauss(0, 0.02)] for i in range(100)]
    return {
        "status": "ok" if score is not None else verdict,
        "reason": "" if score is not None else f"RuntimeError: shapes do not fit {texts}",
        "suspect": f"the machine slept {texts}" if chance.random() < 0.02 else "",
        "val_bpb": None if score is None else score + (k and chance.gauss(0, SPREAD)),
        "train_seconds": 300.0,
        "total_seconds": 330.0 + chance.random(),
        "steps": 950,
        "tokens": 10**7,
        "tokens_per_second": chance.gauss(33_000, 300),
        "num_params": 11_500_000,
        "peak_memory_bytes": 3 * 2**30,
        "seed": 2 * n + k,
        "comparability_key": "key",
        "source_hash": f"s{n}",
        "probe_before": chance.gauss(4e11, 5e9),
        "loss_curve": curve if score is not None else curve[:30],
        "log_tail": "".join(f"step {i} loss {chance.random():.4f} {texts}\n" for i in range(40)),
    }


def main() -> None:
    for count in [int(argument) for argument in sys.argv[1:]] or [700, 5000]:
        with tempfile.TemporaryDirectory() as name:
            folder = build(Path(name) / "lab", count)
            start = time.perf_counter()
            saved = load(folder)
            read = time.perf_counter()
            path = page.write(saved, saved.folder)
            written = time.perf_counter()
            plot.png(of_run(saved))
            end = time.perf_counter()
            size = path.stat().st_size / 1e6
        print(
            f"{count} experiments: {end - start:.2f} s: journal {read - start:.2f}, page {written - read:.2f} "
            f"({size:.1f} MB), picture {end - written:.2f}; {1000 * (end - start) / count:.2f} s a thousand; "
            f"{(end - start) / (read - start):.1f} times the reading of the journal"
        )


if __name__ == "__main__":
    main()
