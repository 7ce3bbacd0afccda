"""Who proposes: the agents that `--agent` names, alone or mixed, and what each needs before a search begins."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from autoresearch.agent.command_line import command_line
from autoresearch.agent.ledger import Ledger
from autoresearch.agent.prices import load_prices
from autoresearch.agent.proposer import Proposal, Proposer
from autoresearch.agent.reader import Reader
from autoresearch.agent.replay_of import ReplayOf, run_to_replay
from autoresearch.agent.scripted import Scripted
from autoresearch.agent.stop import Stops
from autoresearch.core.agent_settings import Caps
from autoresearch.core.errors import UsageError, did_you_mean
from autoresearch.core.extras import install_hint
from autoresearch.core.process import without_secrets
from autoresearch.core.task import Settings

NAMES = ("auto", "claude", "command:CMD", "optimizer", "random", "replay:RUN", "script:DIR")
COMMANDS = ("claude", "codex")
"""Coding agents that `command:` knows how to call."""
CREDENTIALS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL")
"""Any of them in the environment, and `auto` is Claude; a server of one's own may need no key."""
_MORE_CREDENTIALS = ("ANTHROPIC_PROFILE", "ANTHROPIC_FEDERATION_RULE_ID")
INSTALL = install_hint("claude")
_KINDS = frozenset(name.partition(":")[0] for name in NAMES)
_ARGUMENTS = ("command", "replay", "script")
"""Kinds that are followed by a colon and more."""
_NOT_REVIEWED = ("optimizer", "random", "replay")
# A command, a run and a folder may hold commas, so theirs ends where another agent's name follows.
_BETWEEN = re.compile(r",(?=(?:auto|claude|optimizer|random)(?:@|,|$)|command:|replay:|script:)")
_SHARE = re.compile(r"@(\d+(?:\.\d+)?)$")


class Part(NamedTuple):
    """One agent of a mix, or the only one."""

    kind: str
    argument: str = ""
    share: float = 1.0


def parts_of(agent: str) -> tuple[Part, ...]:
    """The agents that a name stands for: `claude`, `command:CMD`, or a mix such as `optimizer@2,claude@1`.

    Raises:
        UsageError: there is none of that name; the hint names the nearest.
    """
    texts = _BETWEEN.split(agent) if any(f"{kind}:" in agent for kind in _ARGUMENTS) else agent.split(",")
    parts = tuple(_part(text, agent, mixed=len(texts) > 1) for text in texts)
    if len(parts) > 1 and any(part.kind == "auto" for part in parts):
        raise UsageError(f"--agent {agent}: auto is no part of a mix", "name the agents, e.g. optimizer@2,claude@1")
    if len({part[:2] for part in parts}) < len(parts):
        raise UsageError(f"--agent {agent}: the same agent twice", "give it a share instead, e.g. optimizer@2,claude@1")
    return parts


def _part(text: str, agent: str, mixed: bool) -> Part:
    text, share = text.strip(), 1.0
    if mixed and (found := _SHARE.search(text)):
        text, share = text[: found.start()], float(found[1])
        if share <= 0:
            raise UsageError(f"--agent {agent}: the share of {text} must be positive", "e.g. optimizer@2,claude@1")
    kind, _, argument = text.partition(":")
    if kind not in _KINDS or bool(argument.strip()) != (kind in _ARGUMENTS):
        raise UsageError(f"no agent {text!r}", did_you_mean(kind, NAMES))
    return Part(kind, argument, share)


def check_agent(agent: str) -> None:
    """Whether there is an agent of this name.

    Raises:
        UsageError: there is none; the hint names the nearest.
    """
    parts_of(agent)


def has_sdk() -> bool:
    """Whether the anthropic SDK is installed; it isn't loaded."""
    return importlib.util.find_spec("anthropic") is not None


def has_key() -> bool:
    return any(os.environ.get(name) for name in (*CREDENTIALS, *_MORE_CREDENTIALS))


def survey() -> dict[str, Any]:
    """What there is on this machine for agents: the SDK, which variable holds a key (never its value), commands."""
    version = importlib.metadata.version("anthropic") if has_sdk() else None
    return {
        "anthropic": version,
        "key": next((name for name in (*CREDENTIALS, *_MORE_CREDENTIALS) if os.environ.get(name)), None),
        "commands": [name for name in COMMANDS if shutil.which(name)],
        "auto": choose("auto")[1],
    }


def choose(agent: str) -> tuple[tuple[Part, ...], list[str]]:
    """The agents that are asked for, `auto` replaced by what is at hand here, and what to say about that choice."""
    parts = parts_of(agent)
    if parts[0].kind != "auto":
        return parts, []
    key = next((name for name in CREDENTIALS if os.environ.get(name)), "")
    if key and has_sdk():
        return (Part("claude"),), [f"proposals: claude, since {key} is set"]
    why = f"{key} is set, but the anthropic SDK isn't installed ({INSTALL})" if key else "no key for Claude is set"
    notes = [f"proposals: optimizer, Optuna's TPE over the constants of train.py: {why}"]
    if found := [name for name in COMMANDS if shutil.which(name)]:
        options = " or ".join(f"--agent command:{name}" for name in found)
        notes.append(f"{' and '.join(found)} found on this machine: {options} would let it propose")
    return (Part("optimizer"),), notes


def check_ready(settings: Settings, directory: Path, tag: str = "") -> None:
    """What the agents need before anything is started: a key, the SDK, and under a cap on cost a known price.

    Args:
        directory: the workspace, to which the file of prices is relative.
        tag: of the run; "" for a new one.

    Raises:
        UsageError: something is missing; the hint says how to get it.
        DataError: the journal of a run to replay is damaged.
    """
    parts, _ = choose(settings.agent)
    kinds, reviewer = {part.kind for part in parts}, settings.reviewer.model
    for asked in [name for name, used in (("--agent claude", "claude" in kinds), ("--reviewer", reviewer)) if used]:
        if not has_sdk():
            raise UsageError(f"{asked} needs the anthropic SDK, which isn't installed", INSTALL)
        if not has_key():
            raise UsageError(
                f"{asked} needs a key, and none is set",
                "set ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL for a server of your own; --agent optimizer needs none",
            )
        for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
            if re.search(r"[^\x21-\x7e]", os.environ.get(name, "")):
                raise UsageError(
                    f"{name} holds blanks, control characters or letters with accents, which no key has",
                    "set it to the key alone, in one line",
                )
    for part in parts:
        if part.kind == "command":
            _check_command(part.argument)
        if part.kind == "script":
            Scripted(Path(part.argument))
    check_replayed(settings, directory, tag)
    check_prices(settings, directory)


def check_replayed(settings: Settings, directory: Path, tag: str) -> None:
    """Whether every run that is to be replayed is there, and is another one; see `run_to_replay`."""
    for part in choose(settings.agent)[0]:
        if part.kind == "replay":
            run_to_replay(part.argument, directory, tag)


def _check_command(argument: str) -> None:
    if without_secrets(argument) != argument:
        raise UsageError(
            f"the command holds a key: command:{without_secrets(argument)}; every user of this machine could read it "
            "in the list of processes",
            "leave it out: the command has your environment, and can read the variable itself; where it must be an "
            "argument, put it into a script of yours and name that",
        )
    command_line(argument)


def check_prices(settings: Settings, directory: Path) -> None:
    """Under a cap on cost, every price must be known.

    Raises:
        UsageError: one isn't; a file of prices that can't be read.
    """
    prices, reviewer = load_prices(settings.claude.prices, directory), settings.reviewer.model
    if not capped(settings.caps, settings.stop.max_cost):
        return
    kinds = {part.kind for part in choose(settings.agent)[0]}
    for model in [settings.claude.model] * ("claude" in kinds) + [reviewer] * bool(reviewer):
        prices.check(model)
    if "command" in kinds and not settings.command.estimate_usd:
        raise UsageError(
            "a cap on cost is set, and what a call of the command costs isn't known",
            "say what one costs at most: [command] estimate_usd = 0.5 in autoresearch.toml",
        )


def capped(caps: Caps, max_cost: float) -> bool:
    """Whether any cap on cost is set."""
    return bool(max_cost or caps.call_usd or caps.day_usd)


def make_proposer(
    settings: Settings,
    directory: Path,
    ledger: Ledger,
    reader: Reader | None,
    problem: Callable[[Proposal], str] = lambda proposal: proposal.problem,
    stops: Stops | None = None,
) -> tuple[Proposer, list[str]]:
    """The proposer that `settings.agent` names, and what to say about the choice.

    Args:
        directory: the workspace.
        ledger: where calls are charged.
        reader: looks earlier experiments up; None where there are none.
        problem: why a proposal would be refused anyway, so that no reviewer has to read it.
        stops: of the search, which end also a wait for a server; None where nothing is sent.

    Raises:
        UsageError: no such agent, or one that can't be used as given.
    """
    parts, notes = choose(settings.agent)
    notes += _unknown_prices(settings, parts, directory)
    read = settings.reviewer.model and [part for part in parts if part.kind not in _NOT_REVIEWED]
    if settings.reviewer.model and not read:
        notes.append("the reviewer has nothing to do: neither values of constants alone nor replays are reviewed")
    made = []
    for part in parts:
        proposer = _make(part, settings, directory, ledger, reader, stops)
        notes += [proposer.about] if isinstance(proposer, ReplayOf) else []
        if read and part in read:
            proposer = _reviewed(proposer, settings, directory, ledger, problem, stops)
        made.append((proposer, part.share))
    if len(made) == 1:
        return made[0][0], notes
    from autoresearch.agent.hybrid import Hybrid

    return Hybrid(made), notes


def _reviewed(
    writer: Proposer,
    settings: Settings,
    directory: Path,
    ledger: Ledger,
    problem: Callable[[Proposal], str],
    stops: Stops | None,
) -> Proposer:
    from autoresearch.agent.reviewer import Reviewed

    prices = load_prices(settings.claude.prices, directory)
    return Reviewed(writer, settings.reviewer, ledger, settings.outages, prices, problem, **_waits(stops))


def _waits(stops: Stops | None) -> dict[str, Any]:
    return {} if stops is None else {"wait": stops.wait}


def _make(
    part: Part, settings: Settings, directory: Path, ledger: Ledger, reader: Reader | None, stops: Stops | None
) -> Proposer:
    if part.kind == "claude":
        from autoresearch.agent.claude import Claude

        prices = load_prices(settings.claude.prices, directory)
        return Claude(settings.claude, ledger, settings.outages, prices, reader, **_waits(stops))
    if part.kind == "command":
        from autoresearch.agent.command import Command

        return Command(part.argument, settings.command, ledger, hidden=directory)
    if part.kind == "script":
        return Scripted(Path(part.argument))
    if part.kind == "replay":
        return ReplayOf(run_to_replay(part.argument, directory))
    from autoresearch.agent.optimizer import Optimizer, RandomSearch

    return RandomSearch() if part.kind == "random" else Optimizer()


def _unknown_prices(settings: Settings, parts: tuple[Part, ...], directory: Path) -> list[str]:
    """What to say of calls whose cost isn't known; where a cap is set, `check_ready` has refused them."""
    used = [settings.claude.model] * any(part.kind == "claude" for part in parts) + [settings.reviewer.model]
    prices = load_prices(settings.claude.prices, directory)
    unknown = [
        f"no price is known for the model {model!r}: its calls are counted as 0 dollars ([claude] prices)"
        for model in dict.fromkeys(used)
        if model and prices.of(model) is None
    ]
    if any(part.kind == "command" for part in parts) and not settings.command.estimate_usd:
        unknown.append(
            "what the command's calls cost counts as 0 dollars where it doesn't tell ([command] estimate_usd says it)"
        )
    return unknown
