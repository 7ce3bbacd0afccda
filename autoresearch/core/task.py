"""Presets and settings: TOML → frozen dataclasses, and the fingerprint of a task.

Three layers, each overriding the one before: the preset in `autoresearch/configs`, the workspace's
`autoresearch.toml`, the options of the command line. An unknown key is an error that names the nearest one.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import time
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

from autoresearch.core.agent_settings import (
    MEND,
    MOST_SECONDS,
    MOST_USD,
    Caps,
    Claude,
    Command,
    Outages,
    Reviewer,
    check_numbers,
)
from autoresearch.core.errors import UsageError, did_you_mean
from autoresearch.core.sandbox import check_setting

T = TypeVar("T")

SETTINGS = "autoresearch.toml"
"""The file that makes a folder a workspace."""
LAB = "autoresearch-lab"
"""The workspace that the main job makes in a folder which holds other things."""


def workspace_folder(directory: Path) -> Path:
    """The workspace that a folder is, or the one that the main job made, or would make, in it."""
    return directory if (directory / SETTINGS).is_file() else directory / LAB


@dataclass(frozen=True)
class Task:
    """What is measured. Frozen: everything here is part of the fingerprint."""

    data: str = "tinystories"
    """A data set of the hub ("tinystories", "climbmix"), "sample", "stories", or the name given to local files."""
    seq_len: int = 256
    """T, tokens of context."""
    vocab_size: int = 2048
    """V, special tokens included."""
    split_pattern: str = "gpt4-digits2"
    """Name of the regular expression that splits text before BPE."""
    document_chars: int = 0
    """Longer documents are cut into passages of at most this many characters; 0 leaves them whole."""
    train_tokens: int = 0
    """Tokens of the train split that are prepared; 0 is all that the source has."""
    val_tokens: int = 98_304
    """Targets of the validation rows, a multiple of seq_len; fewer where the split is smaller."""
    train_seconds: float = 300.0
    """Training time of one measurement."""
    train_steps: int = 0
    """When set, a measurement ends after this many steps and progress counts steps; `train_seconds` still limits it."""
    eval_rows: int = 16
    """Rows of the one static shape in which everything is scored."""

    def __post_init__(self) -> None:
        check_numbers("task", self, "seq_len", "vocab_size", "val_tokens", "eval_rows")
        check_numbers("task", self, "train_seconds", most=MOST_SECONDS)
        check_numbers("task", self, "document_chars", "train_steps", positive=False)
        check_numbers("task", self, "train_tokens", positive=False, most=10**15)
        if self.vocab_size < 264 or self.vocab_size > 2**20:
            raise UsageError(
                f"[task] vocab_size must be 264 (bytes and special tokens) to {2**20}, received {self.vocab_size}",
                MEND,
            )

    def fingerprint(self, dataset_key: str) -> str:
        """12 hex digits of everything that shapes the score but the machine.

        Args:
            dataset_key: the content key of the prepared data set, which covers text, splits and tokenizer.
        """
        content = json.dumps({"task": asdict(self), "dataset": dataset_key}, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Limits:
    """What a child process may use before it is killed. Not part of the fingerprint."""

    setup_seconds: float = 600.0
    """From the start of the process to the first real batch, compiling included."""
    eval_seconds: float = 300.0
    """Scoring, its compiling included."""
    memory_fraction: float = 0.75
    """Share of the machine's memory that the process tree may hold."""
    probe_seconds: float = 0.5
    """Time of each of the two device probes, before and after training; 0 leaves them out."""

    def __post_init__(self) -> None:
        check_numbers("limits", self, "setup_seconds", "eval_seconds", most=MOST_SECONDS)
        check_numbers("limits", self, "memory_fraction", most=1)
        if not 0 <= self.probe_seconds <= 10:
            raise UsageError(f"[limits] probe_seconds must be 0 (none) to 10, received {self.probe_seconds!r}")


@dataclass(frozen=True)
class Rules:
    """Thresholds of `decide`; the design says how they are used."""

    spread: float = 0.01
    """The stated prior for the standard deviation of val_bpb between seeds on such a machine."""
    spread_dof: float = 4.0
    """Weight of that prior, in measurements."""
    keep_z: float = 0.75
    """A first score this clear is kept at once."""
    retest_z: float = 0.5
    """A first score this good is measured once more."""
    fresh_within: int = 8
    """After so many experiments a keep without a fresh measurement gets one; sooner where the next is unclear."""
    strict: bool = False
    """Keep nothing for its first score: every gain must be confirmed by `strict_retests` fresh measurements."""
    strict_retests: int = 2
    strict_z: float = 1.5
    """Which the mean of these fresh measurements must reach."""

    def __post_init__(self) -> None:
        check_numbers("rules", self, "fresh_within", "strict_retests")
        check_numbers("rules", self, "strict_z", positive=False)
        if not 1e-9 <= self.spread <= 1e3:
            raise UsageError(f"[rules] spread must be 1e-9 to 1000 bits per byte, received {self.spread!r}")
        if self.spread_dof <= 0:
            raise UsageError(f"[rules] spread_dof must be positive, received {self.spread_dof!r}")
        if not 0 <= self.retest_z <= self.keep_z:
            raise UsageError(
                f"[rules] 0 <= retest_z <= keep_z must hold, received {self.retest_z!r} and {self.keep_z!r}"
            )


@dataclass(frozen=True)
class Stop:
    """Stop conditions; 0 or "" is none."""

    max_experiments: int = 0
    max_hours: float = 0.0
    until: str = ""
    max_cost: float = 0.0
    target: float = 0.0

    def __post_init__(self) -> None:
        check_numbers("stop", self, "max_experiments", "target", positive=False)
        check_numbers("stop", self, "max_hours", positive=False, most=MOST_SECONDS / 3600)
        check_numbers("stop", self, "max_cost", positive=False, most=MOST_USD)
        if self.until:
            time_of_day(self.until)


def time_of_day(until: str) -> time:
    """The time that `--until HH:MM` names.

    Raises:
        UsageError: not a time of day.
    """
    try:
        hours, minutes = until.split(":")
        return time(int(hours), int(minutes))
    except ValueError as error:
        raise UsageError(f"--until must be HH:MM, received {until!r}", "for example --until 07:30") from error


@dataclass(frozen=True)
class Machine:
    """For which machine a preset is made."""

    platforms: tuple[str, ...] = ()
    """Values of DeviceInfo.platform."""
    min_memory_gb: float = 0.0


@dataclass(frozen=True)
class Settings:
    """Everything that a run is started with."""

    preset: str
    task: Task = field(default_factory=Task)
    limits: Limits = field(default_factory=Limits)
    rules: Rules = field(default_factory=Rules)
    stop: Stop = field(default_factory=Stop)
    machine: Machine = field(default_factory=Machine)
    caps: Caps = field(default_factory=Caps)
    outages: Outages = field(default_factory=Outages)
    claude: Claude = field(default_factory=Claude)
    command: Command = field(default_factory=Command)
    reviewer: Reviewer = field(default_factory=Reviewer)
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    """Constants of train.py that the preset sets when a workspace is made."""
    backend: str = ""
    """"" is the best one usable here."""
    device: str = "auto"
    agent: str = "auto"
    seed: int = 0
    source: str = ""
    """What `prepare` reads; "" is the task's data set."""
    sandbox: str = "auto"
    """"auto" uses the system's where it works, "on" insists on it, "off" uses none."""

    def __post_init__(self) -> None:
        check_setting(self.sandbox)


_TABLES: dict[str, type[Any]] = {
    "task": Task,
    "limits": Limits,
    "rules": Rules,
    "stop": Stop,
    "machine": Machine,
    "caps": Caps,
    "outages": Outages,
    "claude": Claude,
    "command": Command,
    "reviewer": Reviewer,
}
_SCALARS: dict[str, type[Any]] = {
    "preset": str,
    "backend": str,
    "device": str,
    "agent": str,
    "seed": int,
    "source": str,
    "sandbox": str,
}


def _typed(value: Any, default: Any, where: str) -> Any:
    """`value` where its type is that of `default`; int passes for float, a list for a tuple."""
    kind = type(default)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        # Nor is an integer of hundreds of digits a float.
        if not abs(value) <= sys.float_info.max:
            raise UsageError(f"{where} must be a finite number, received {str(value)[:20]}", MEND)
        return float(value)
    if kind is tuple and isinstance(value, list):
        return tuple(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UsageError(f"{where} must be {kind.__name__}, received {value!r}", f"for example: {json.dumps(default)}")
    return value


def _updated(current: T, table: Any, where: str) -> T:
    """A copy of the dataclass `current` with the keys of a TOML table."""
    if not isinstance(table, dict):
        raise UsageError(f"{where} must be a table, received {table!r}", MEND)
    known = {f.name for f in fields(current)}  # type: ignore[arg-type]
    for key in table:
        if key not in known:
            raise UsageError(f"{where} has no key {key!r}", did_you_mean(key, known))
    values = {key: _typed(value, getattr(current, key), f"{where} {key}") for key, value in table.items()}
    return replace(current, **values)  # type: ignore[type-var]


def overlay(settings: Settings, data: Mapping[str, Any], where: str) -> Settings:
    """`settings` with one more layer on top.

    Args:
        data: parsed TOML: tables `task`, `limits`, `rules`, `stop`, `machine`, `hyperparameters`, and scalars.
        where: the file or option that errors name.

    Raises:
        UsageError: an unknown key, a value of another type, or one out of its range.
    """
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key in _TABLES:
            values[key] = _updated(getattr(settings, key), value, f"{where}: [{key}]")
        elif key == "hyperparameters":
            if not isinstance(value, dict):
                raise UsageError(f"{where}: [hyperparameters] must be a table, received {value!r}", MEND)
            values[key] = {**settings.hyperparameters, **value}
        elif key in _SCALARS:
            values[key] = _typed(value, getattr(settings, key), f"{where}: {key}")
        else:
            valid = [*_TABLES, "hyperparameters", *_SCALARS]
            raise UsageError(f"{where}: unknown key {key!r}", did_you_mean(key, valid))
    return replace(settings, **values)


def read_toml(path: Path | Traversable) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        UsageError: it can't be read, or with the place of the syntax error.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path.name} can't be read: {error.strerror or error}", "check the file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path.name} is not UTF-8 text: {error}", "save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path.name} is not valid TOML: {error}", "mend that line") from error


def _configs() -> Traversable:
    return files("autoresearch") / "configs"


def preset_names() -> list[str]:
    """All presets, e.g. "tinystories/cpu", sorted."""
    return sorted(
        f"{folder.name}/{Path(entry.name).stem}"
        for folder in _configs().iterdir()
        if folder.is_dir()
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


def load_preset(name: str) -> Settings:
    """Settings of a preset.

    Raises:
        UsageError: no such preset; the hint names the nearest.
    """
    if name not in preset_names():
        raise UsageError(f"no preset {name!r}", did_you_mean(name, preset_names()))
    return overlay(Settings(preset=name), read_toml(_configs() / f"{name}.toml"), name)


def fitting_preset(platform: str, memory_bytes: int) -> str:
    """The preset made for a platform with the largest memory demand that the device meets.

    Raises:
        UsageError: no preset names the platform.
    """
    fitting = []
    for name in preset_names():
        machine = load_preset(name).machine
        if platform in machine.platforms and memory_bytes >= machine.min_memory_gb * 1e9:
            fitting.append((machine.min_memory_gb, name))
    if not fitting:
        raise UsageError(
            f"no preset for the platform {platform!r}", "choose one: --preset " + ", ".join(preset_names())
        )
    return max(fitting)[1]


def load_settings(
    preset: str, workspace_toml: Path | None = None, options: Mapping[str, Any] | None = None
) -> Settings:
    """The three layers put together.

    Args:
        preset: name of the preset; the workspace's own `preset` key where empty.
        workspace_toml: `autoresearch.toml`, read where it exists.
        options: what the command line gave, in the shape of the TOML.

    Raises:
        UsageError: see `overlay`, `load_preset`.
    """
    data = read_toml(workspace_toml) if workspace_toml is not None and workspace_toml.is_file() else {}
    name = preset or data.get("preset", "")
    if not name:
        raise UsageError("no preset is chosen", "--preset NAME, one of: " + ", ".join(preset_names()))
    settings = overlay(load_preset(str(name)), {**data, "preset": name}, SETTINGS)
    return overlay(settings, options or {}, "options")
