"""The training budget of one measurement.

Monotonic, and blind to a candidate that patches the `time` module: the function is taken when this module loads,
which is before any candidate does.
"""

from __future__ import annotations

import math
from statistics import median
from time import monotonic as _now

TOLERANCE = 0.1
"""Most that a measurement may pass its budget by, as a share of it, however long its steps are."""
LATENCY_SECONDS = 0.25
"""Never held against a candidate: on a busy machine a process can wait as long as this."""
RECENT_STEPS = 21
DRIFT_STEPS = 30
DRIFT_SECONDS = 3.0
"""Fewer steps, or a shorter training, say nothing about a drift: one hiccup of the system would decide."""


class Clock:
    """Counts a budget in seconds, or in steps where `steps` is set; seconds limit it in both cases.

    Args:
        seconds: the budget; the last step must end within it.
        steps: end after this many steps instead, and count progress in them; 0 for none.
    """

    def __init__(self, seconds: float, steps: int = 0) -> None:
        self.seconds = seconds
        self.max_steps = steps
        self.steps = 0
        self.progress = 0.0
        self._start: float | None = None
        self._end: float | None = None
        self._last_draw: float | None = None
        self._expected = 0.0
        self._durations: list[float] = []

    @property
    def started(self) -> bool:
        return self._start is not None

    @property
    def elapsed(self) -> float:
        """Seconds since the first draw, up to `stop` once that was called."""
        if self._start is None:
            return 0.0
        return (_now() if self._end is None else self._end) - self._start

    @property
    def step_seconds(self) -> float:
        """Median duration of the recent steps; 0 before the second draw."""
        return median(self._durations[-RECENT_STEPS:]) if self._durations else 0.0

    def drift(self) -> float | None:
        """How much slower steps became: the median duration of a later third of them over that of the first third.

        Of the middle and the last third the one that is further off, so that a slow middle shows as well. Medians leave
        out steps that cost more once in a while. None below DRIFT_STEPS or DRIFT_SECONDS.
        """
        third = len(self._durations) // 3
        if len(self._durations) < DRIFT_STEPS or math.fsum(self._durations) < DRIFT_SECONDS:
            return None
        first, *later = (max(1e-9, median(self._durations[i * third : (i + 1) * third])) for i in range(3))
        return max((value / first for value in later), key=lambda ratio: abs(math.log(ratio)))

    def near_end(self) -> bool:
        """Whether the next few steps decide how many fit, so that the estimate should be exact."""
        return self.seconds - self.elapsed < 4 * self.step_seconds

    def draw(self) -> bool:
        """Begin the next step, if one more fits; the first call starts the clock."""
        now = _now()
        if self._start is None:
            self._start = now
        elif self._last_draw is not None:
            self._durations.append(now - self._last_draw)
        if self.max_steps and self.steps >= self.max_steps:
            self.progress = 1.0
            return False
        elapsed = now - self._start
        if elapsed + self.step_seconds > self.seconds:
            return False
        self.progress = self.steps / self.max_steps if self.max_steps else elapsed / self.seconds
        self._last_draw = now
        self._expected = self.step_seconds
        self.steps += 1
        return True

    def stop(self) -> None:
        """The trained parameters are computed."""
        self._end = _now()

    def overshoot(self) -> float:
        """Seconds beyond the budget and its tolerance of 2 % or two median steps; 0 where it was kept.

        The median is that of the last draw: a giant last step doesn't excuse itself.
        """
        steps = min(2 * self._expected, TOLERANCE * self.seconds)
        return max(0.0, self.elapsed - self.seconds - max(0.02 * self.seconds, steps, LATENCY_SECONDS))
