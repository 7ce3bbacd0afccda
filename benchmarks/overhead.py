"""What an experiment costs besides its training.

    python benchmarks/overhead.py null     a whole search of 10 experiments of the null backend
    python benchmarks/overhead.py cpu      one experiment of the reference model with the preset tinystories/cpu

Prints seconds outside training: all of a search beside its training clocks for `null` (aim: 8 s or less), and start,
imports, set-up and evaluation as a share of the training budget for `cpu` (aim: 25 % or less).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

EXPERIMENTS = 10


def _autoresearch(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "autoresearch", *arguments, "--workspace", str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def null() -> None:
    """A search of EXPERIMENTS experiments, data prepared before."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "lab"
        _autoresearch(folder, "prepare", "--backend", "null")
        start = time.monotonic()
        _autoresearch(folder, "run", "--backend", "null", "--agent", "optimizer", "--max-experiments", str(EXPERIMENTS))
        wall = time.monotonic() - start
        (journal,) = folder.glob(".autoresearch/*/journal.jsonl")
        events = [json.loads(line) for line in journal.read_text().splitlines()]
    training = [e["result"]["train_seconds"] for e in events if e["event"] == "measured"]
    outside = wall - sum(training)
    print(
        f"null: {EXPERIMENTS} experiments and the baseline, {len(training)} measurements: {wall:.2f} s, "
        f"{outside:.2f} s outside training, {outside / len(training):.2f} s a measurement"
    )


def cpu() -> None:
    """One measurement of the baseline, data prepared before."""
    options = ("--backend", "cuda", "--device", "cpu", "--preset", "tinystories/cpu")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "lab"
        _autoresearch(Path(name), "init", str(folder), *options)
        _autoresearch(folder, "prepare", "--source", "sample")
        result: dict[str, Any] = json.loads(_autoresearch(folder, "experiment", "--json", "--source", "sample"))
    outside = result["total_seconds"] - result["train_seconds"]
    print(
        f"cpu: {result['train_seconds']:.1f} s of training, {outside:.1f} s outside it (start and set-up "
        f"{result['setup_seconds']:.1f} s, evaluation {result['eval_seconds']:.1f} s): "
        f"{outside / result['train_seconds']:.1%} of the budget; {result['tokens_per_second']:,.0f} tokens/s, "
        f"val_bpb {result['val_bpb']:.4f}"
    )


if __name__ == "__main__":
    {"null": null, "cpu": cpu}[sys.argv[1]]()
