"""The user's folder: found, or made with the preset's train.py."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from autoresearch.core import registry
from autoresearch.core.constants import set_constants
from autoresearch.core.errors import UsageError
from autoresearch.core.task import LAB, SETTINGS, Settings, load_preset, workspace_folder
from autoresearch.core.workspace import TRAIN, Workspace

PROGRAM = "program.md"
IGNORES = ".gitignore"
_AGENTS = """\
# agent = "claude"         # who proposes: auto, claude, command:CMD, optimizer, random, replay:RUN,
#                          # script:DIR, or a mix: optimizer@2,claude@1
"""
_TABLES = """
# [stop]
# max_experiments = 100
# max_hours = 8
# max_cost = 10.0          # of this run, US dollars: the search stops before its calls cost more

# [caps]
# call_usd = 0.5           # of one proposal
# day_usd = 20.0           # of one day, all runs of this workspace together

# [claude]
# model = "{model}"

# [reviewer]
# model = "claude-haiku-5-5"   # reads each proposal before it is trained, and may veto it

# [rules]                  # when a change is kept; the values are those of this preset
# strict = {strict}           # true: keep only what fresh seeds confirm (--strict)
# spread = {rules.spread}            # of val_bpb between seeds, bits per byte, until it is measured
# keep_z = {rules.keep_z}            # a first score that is better by so many spreads is kept at once
# retest_z = {rules.retest_z}           # one that is so much better is measured once more

# [limits]                 # of one measurement; what takes more is ended
# setup_seconds = {limits.setup_seconds}    # until the first batch, compiling included
# eval_seconds = {limits.eval_seconds}     # of scoring
# memory_fraction = {limits.memory_fraction}   # of the machine's memory
"""


def workspace_files(settings: Settings) -> dict[str, str]:
    """The files of a new workspace."""
    source = registry.facts(settings.backend).BASELINE.read_text(encoding="utf-8")
    toml = (
        "# Settings of this workspace. They override the preset; options of the command line override them.\n"
        f"preset = {json.dumps(settings.preset)}\n"
        f"backend = {json.dumps(settings.backend)}\n"
        f"device = {json.dumps(settings.device)}\n"
        + (f"source = {json.dumps(settings.source)}\n" if settings.source else "")
        + f"{_AGENTS}\n{_budget(settings)}{_more(settings)}"
    )
    return {
        TRAIN: set_constants(source, settings.hyperparameters),
        PROGRAM: _program(settings.backend),
        SETTINGS: toml,
        IGNORES: "__pycache__/\n",
    }


def _more(settings: Settings) -> str:
    """The other tables that people change, as comments with the values that are in force."""
    strict = str(settings.rules.strict).lower()
    return _TABLES.format(model=settings.claude.model, strict=strict, rules=settings.rules, limits=settings.limits)


def _budget(settings: Settings) -> str:
    """The table of the budget: in force where it isn't the preset's."""
    own = load_preset(settings.preset).task.train_seconds != settings.task.train_seconds
    mark = "" if own else "# "
    return f"{mark}[task]\n{mark}train_seconds = {settings.task.train_seconds!r}    # of one experiment\n"


def _program(backend: str) -> str:
    """What every search is told, and after it what is costly on the backend's hardware, where that is known."""
    text = (files("autoresearch") / PROGRAM).read_text(encoding="utf-8")
    own = registry.facts(backend).BASELINE.with_name(PROGRAM)
    return f"{text}\n{own.read_text(encoding='utf-8')}" if own.is_file() else text


def create_workspace(directory: Path, settings: Settings) -> Workspace:
    """Make a workspace with the preset's train.py, a repository of its own also inside another one's work tree.

    A .gitignore that is there stays as it is.

    Raises:
        UsageError: the folder holds files of the other names already.
    """
    if _is_original(directory):
        raise _original(directory)
    made = workspace_files(settings)
    if (directory / IGNORES).exists():
        del made[IGNORES]
    return Workspace.create(directory, made, own_repository=True)


def find_workspace(directory: Path) -> Path:
    """Where the main job's workspace is, or is to be made: `directory`, or a folder in it that is ours.

    Raises:
        UsageError: `directory` holds the original autoresearch.
    """
    directory = directory.resolve()
    if _is_original(directory):
        raise _original(directory)
    entries = {entry.name for entry in directory.iterdir()} if directory.is_dir() else set()
    return workspace_folder(directory) if entries - {".git", IGNORES} else directory


def open_workspace(directory: Path) -> Workspace:
    """The workspace that a folder is or holds.

    Raises:
        UsageError: there is none; it holds the original autoresearch.
    """
    place = find_workspace(directory)
    if not (place / SETTINGS).is_file():
        raise UsageError(f"no workspace in {directory.resolve()}", f"make one: autoresearch init {LAB}")
    return Workspace(place)


def _is_original(directory: Path) -> bool:
    train = directory / TRAIN
    return train.is_file() and (directory / "prepare.py").is_file() and not (directory / SETTINGS).is_file()


def _original(directory: Path) -> UsageError:
    return UsageError(
        f"{directory} holds a train.py of the original autoresearch: a script, not a function train(experiment)",
        f"make a workspace beside it (autoresearch init {LAB}) and carry your changes over into its train.py",
    )
