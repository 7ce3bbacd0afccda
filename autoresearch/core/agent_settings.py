"""The tables of autoresearch.toml that say how proposers work and what they may cost."""

from __future__ import annotations

from dataclasses import dataclass

from autoresearch.core.errors import UsageError

MOST_SECONDS = 366 * 86_400
"""Of any duration: what is longer is a mistake, and the system's clocks can't wait for it."""
MOST_COUNT = 10**9
MOST_USD = 1e6
"""Of one call, or as a cap: what is more is no amount of dollars."""
MOST_OUTPUT_MB = 1_000
MEND = "change it in autoresearch.toml, or the option that sets it"


def check_numbers(table: str, settings: object, *names: str, positive: bool = True, most: float = MOST_COUNT) -> None:
    """Whether these settings of a table are in their range.

    Args:
        positive: 0 is too little.
        most: the largest that is allowed.

    Raises:
        UsageError: one isn't.
    """
    for name in names:
        value = getattr(settings, name)
        if not (value > 0 if positive else value >= 0):
            raise UsageError(
                f"[{table}] {name} must be {'positive' if positive else '0 or more'}, received {value!r}", MEND
            )
        if not value <= most:
            raise UsageError(f"[{table}] {name} must be at most {most:,.0f}, received {str(value)[:20]}", MEND)


@dataclass(frozen=True)
class Caps:
    """What calls of models and commands may cost, in US dollars; 0 is no cap. `--max-cost` caps the run."""

    call_usd: float = 0.0
    """Of one proposal, its tool rounds and repairs included."""
    day_usd: float = 0.0
    """Of one calendar day, local time, over all runs of the workspace."""

    def __post_init__(self) -> None:
        check_numbers("caps", self, "call_usd", "day_usd", positive=False, most=MOST_USD)


@dataclass(frozen=True)
class Outages:
    """What is done when a proposer can't be reached."""

    retries: int = 4
    """Of one request, with back-off."""
    base_seconds: float = 2.0
    """Before the first retry; doubled for each further one, with jitter, or as long as the server asks for."""
    max_seconds: float = 300.0
    """The longest wait between two retries or probes."""
    rounds: int = 5
    """Failed rounds in a row after which the search stops, to be resumed."""
    pause_seconds: float = 60.0
    """Between two failed rounds; doubled for each further one."""

    def __post_init__(self) -> None:
        check_numbers("outages", self, "retries", positive=False)
        check_numbers("outages", self, "rounds")
        seconds = ("base_seconds", "max_seconds", "pause_seconds")
        check_numbers("outages", self, *seconds, positive=False, most=MOST_SECONDS)


@dataclass(frozen=True)
class Claude:
    """The proposer `claude`."""

    model: str = "claude-sonnet-5-5"
    max_tokens: int = 16_000
    """Of one answer."""
    tool_rounds: int = 12
    """Answers in one conversation before it must have submitted."""
    repairs: int = 3
    """Failed edits or submissions that are given back with what was wrong."""
    timeout_seconds: float = 600.0
    """Of one request."""
    prices: str = ""
    """A TOML file of prices that overrides the package's; relative to the workspace."""

    def __post_init__(self) -> None:
        check_numbers("claude", self, "max_tokens", "tool_rounds")
        check_numbers("claude", self, "repairs", positive=False)
        check_numbers("claude", self, "timeout_seconds", most=MOST_SECONDS)


@dataclass(frozen=True)
class Command:
    """The proposer `command:CMD`."""

    estimate_usd: float = 0.0
    """Dollars of one call at most: reserved before it, and charged where its tool doesn't report the cost."""
    silence_seconds: float = 600.0
    """Without a line of output or a change of the file."""
    timeout_seconds: float = 1200.0
    output_mb: float = 10.0
    """Of output that is kept; a flood beyond it ends the call."""

    def __post_init__(self) -> None:
        check_numbers("command", self, "estimate_usd", positive=False, most=MOST_USD)
        check_numbers("command", self, "silence_seconds", "timeout_seconds", most=MOST_SECONDS)
        check_numbers("command", self, "output_mb", most=MOST_OUTPUT_MB)


@dataclass(frozen=True)
class Reviewer:
    """Reads a proposal before it is trained, and may veto it."""

    model: str = ""
    """"" is no reviewer."""
    max_tokens: int = 2_000

    def __post_init__(self) -> None:
        check_numbers("reviewer", self, "max_tokens")
