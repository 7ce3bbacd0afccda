"""Measure a candidate, and print the child's process id once it trains: a parent for tests to kill.

python parent.py CANDIDATE DATASET MARK
"""

import sys
from pathlib import Path

from autoresearch.core.dataset import open_dataset
from autoresearch.core.executor import LocalExecutor, Request
from autoresearch.core.task import Limits, Task


def main() -> None:
    dataset = open_dataset(Path(sys.argv[2]))
    executor = LocalExecutor()
    task = Task(seq_len=dataset.seq_len, vocab_size=dataset.vocab_size, train_seconds=60)
    request = Request(
        source=Path(sys.argv[1]).read_text(),
        source_hash="",
        device=executor.describe("null", "auto"),
        task=task,
        limits=Limits(),
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

    executor.measure(request, dataset, Path(sys.argv[1]).with_name("log"), tell)


if __name__ == "__main__":
    main()
