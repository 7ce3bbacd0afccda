"""The tables of autoresearch.toml that say how proposers work and what they may cost."""

from __future__ import annotations

from dataclasses import dataclass

from autoresearch.core.errors import UsageError


def _positive(table: str, settings: object, *names: str) -> None:
    for name in names:
        if not (value := getattr(settings, name)) > 0:
            raise UsageError(f"[{table}] {name} must be positive, received {value!r}")


def _not_negative(table: str, settings: object, *names: str) -> None:
    for name in names:
        if (value := getattr(settings, name)) < 0:
            raise UsageError(f"[{table}] {name} must be 0 or more, received {value!r}")


@dataclass(frozen=True)
class Caps:
    """What calls of models and commands may cost, in US dollars; 0 is no cap. `--max-cost` caps the run."""

    call_usd: float = 0.0
    """Of one proposal, its tool rounds and repairs included."""
    day_usd: float = 0.0
    """Of one calendar day, local time, over all runs of the workspace."""

    def __post_init__(self) -> None:
        _not_negative("caps", self, "call_usd", "day_usd")


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
        _not_negative("outages", self, "retries", "base_seconds", "max_seconds", "pause_seconds")
        _positive("outages", self, "rounds")


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
        _positive("claude", self, "max_tokens", "tool_rounds", "timeout_seconds")
        _not_negative("claude", self, "repairs")


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
        _not_negative("command", self, "estimate_usd")
        _positive("command", self, "silence_seconds", "timeout_seconds", "output_mb")


@dataclass(frozen=True)
class Reviewer:
    """Reads a proposal before it is trained, and may veto it."""

    model: str = ""
    """"" is no reviewer."""
    max_tokens: int = 2_000

    def __post_init__(self) -> None:
        _positive("reviewer", self, "max_tokens")
