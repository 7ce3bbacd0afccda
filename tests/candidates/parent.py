"""Measure a candidate; print the child's process id once it trains, and the result: a parent for tests to kill.

python parent.py CANDIDATE DATASET MARK [STEPS]
"""

import json
import sys
from pathlib import Path

from autoresearch.core.dataset import open_dataset
from autoresearch.core.executor import LocalExecutor, Request
from autoresearch.core.task import Limits, Task


def main() -> None:
    dataset = open_dataset(Path(sys.argv[2]))
    executor = LocalExecutor()
    steps = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    task = Task(seq_len=dataset.seq_len, vocab_size=dataset.vocab_size, train_seconds=60, train_steps=steps)
    request = Request(
        source=Path(sys.argv[1]).read_text(),
        source_hash="",
        device=executor.describe("null", "auto"),
        task=task,
        limits=Limits(probe_seconds=0),
        seed=1,
        comparability_key="key",
        mark=sys.argv[3],
    )
    pids = []

    def tell(event: dict) -> None:
        if event["event"] == "started":
            pids.append(event["pid"])
        if event["event"] == "clock_start":
            print(pids[-1], flush=True)

    result = executor.measure(request, dataset, Path(sys.argv[1]).with_name("log"), tell).result
    print(json.dumps(result.to_json()), flush=True)


if __name__ == "__main__":
    main()
