"""The stream of training rows: epoch after epoch, each in its own order, decided by the seed alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from numpy.typing import NDArray

from autoresearch.core.errors import DataError


class RowStream:
    """An endless permuted stream of rows.

    Epoch e visits every row once, in the order that NumPy's PCG64 draws from (seed, e). The stream is the same
    whatever the sizes of the takes, so that a candidate's batch shape doesn't change the data it sees.
    Not thread-safe: one thread takes at a time.
    """

    def __init__(self, rows: NDArray[Any], seed: int) -> None:
        """Args:
            rows: (N, T + 1) integers, typically memory-mapped; only gathered from, never copied whole.
            seed: 0 or more.

        Raises:
            DataError: there are no rows.
        """
        if rows.ndim != 2 or len(rows) == 0:
            raise DataError(
                f"the train split has no rows: its array is {rows.shape}",
                "prepare more text, or a task with a shorter seq_len",
            )
        self._rows = rows
        self._seed = seed
        self._epoch = 0
        self._position = 0
        self._order = self._permutation()

    def _permutation(self) -> NDArray[np.int64]:
        return Generator(PCG64(SeedSequence((self._seed, self._epoch)))).permutation(len(self._rows))

    def take(self, n: int) -> NDArray[np.int32]:
        """The next n rows of the stream: (n, T + 1) int32, a fresh array."""
        taken = np.empty((n, self._rows.shape[1]), dtype=np.int32)
        filled = 0
        while filled < n:
            if self._position == len(self._order):
                self._epoch += 1
                self._position = 0
                self._order = self._permutation()
            chosen = self._order[self._position : self._position + n - filled]
            taken[filled : filled + len(chosen)] = self._rows[chosen]
            self._position += len(chosen)
            filled += len(chosen)
        return taken
