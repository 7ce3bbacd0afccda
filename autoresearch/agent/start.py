"""From options to a search: the backend, the workspace, the data, the run. Each choice is said with its reason."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from difflib import unified_diff
from importlib.resources import files
from pathlib import Path
from typing import Any

from autoresearch.agent.context import context_of
from autoresearch.agent.lab import Run
from autoresearch.agent.proposer import Proposer
from autoresearch.core import measure, noise, registry
from autoresearch.core.constants import constants, set_constants
from autoresearch.core.contract import DeviceInfo
from autoresearch.core.dataset import Dataset
from autoresearch.core.errors import BackendUnavailable, UsageError, did_you_mean
from autoresearch.core.executor import LocalExecutor
from autoresearch.core.history import History, Record
from autoresearch.core.journal import Journal
from autoresearch.core.task import Settings, fitting_preset, load_settings, parse_toml
from autoresearch.core.view import View
from autoresearch.core.workspace import Workspace
from autoresearch.prepare.build import cache_root, prepare

SETTINGS = "autoresearch.toml"
PROGRAM = "program.md"
LAB = "autoresearch-lab"
FINAL_REASONS = ("the target of ", "the baseline failed")
"""Starts of the stop reasons after which a run isn't taken up again by default."""


def key_of(settings: Settings, dataset: Dataset, device: DeviceInfo) -> str:
    """Comparability key: task fingerprint, machine class, version of the measurement."""
    return f"{settings.task.fingerprint(dataset.key)}/{device.machine_class()}/v{measure.VERSION}"


# Backend


def probe(executor: LocalExecutor, device: str = "auto") -> dict[str, DeviceInfo | BackendUnavailable]:
    """What each backend that a search may choose by itself finds here, in order of preference."""
    ranked = sorted((rank, name) for name in registry.names() if (rank := registry.facts(name).RANK) is not None)
    found: dict[str, DeviceInfo | BackendUnavailable] = {}
    for _, name in ranked:
        try:
            found[name] = executor.describe(name, device)
        except BackendUnavailable as error:
            found[name] = error
    return found


def choose_backend(executor: LocalExecutor, device: str) -> tuple[str, str, str]:
    """The best backend usable here, the device to ask it for, and the reason.

    Raises:
        BackendUnavailable: none is usable, not even on the CPU.
    """
    missing: dict[str, BackendUnavailable] = {}
    for asked in dict.fromkeys((device, "cpu")):
        for name, found in probe(executor, asked).items():
            if isinstance(found, DeviceInfo):
                title = registry.facts(name).TITLE
                why = (
                    "the first backend with a device here" if asked == "auto" else "no backend has an accelerator here"
                )
                return (
                    name,
                    asked,
                    f"backend {name} ({title}) on {found.name}: {why if device == 'auto' else 'as asked'}",
                )
            missing.setdefault(name, found)
    name, error = next(iter(missing.items()))
    raise BackendUnavailable(f"no backend is usable here; {name}: {error.message}", error.hint)


# Workspace


def workspace_files(settings: Settings) -> dict[str, str]:
    """The files of a new workspace."""
    source = registry.facts(settings.backend).BASELINE.read_text(encoding="utf-8")
    toml = (
        "# Settings of this workspace. They override the preset; options of the command line override them.\n"
        f"preset = {json.dumps(settings.preset)}\n"
        f"backend = {json.dumps(settings.backend)}\n"
        f"device = {json.dumps(settings.device)}\n"
        + (f"source = {json.dumps(settings.source)}\n" if settings.source else "")
        + '# agent = "optimizer"      # who proposes: optimizer, random, script:DIR\n'
        "\n# [task]\n"
        f"# train_seconds = {settings.task.train_seconds:g}    # training time of one experiment\n"
        "\n# [stop]\n"
        "# max_experiments = 100\n"
        "# max_hours = 8\n"
    )
    return {
        "train.py": set_constants(source, settings.hyperparameters),
        PROGRAM: (files("autoresearch") / PROGRAM).read_text(encoding="utf-8"),
        SETTINGS: toml,
        ".gitignore": "__pycache__/\n",
    }


def create_workspace(directory: Path, settings: Settings, own_repository: bool = False) -> Workspace:
    """Make a workspace with the preset's train.py.

    Raises:
        UsageError: the folder holds files of these names already.
    """
    if _is_original(directory):
        raise _original(directory)
    return Workspace.create(directory, workspace_files(settings), own_repository=own_repository)


def find_workspace(directory: Path) -> Path:
    """Where the main job's workspace is, or is to be made: `directory`, or a folder in it that is ours.

    Raises:
        UsageError: `directory` holds the original autoresearch, or isn't a folder.
    """
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is not a folder", "name one: --workspace DIR")
    if (directory / SETTINGS).is_file():
        return directory
    if _is_original(directory):
        raise _original(directory)
    entries = {entry.name for entry in directory.iterdir()} if directory.is_dir() else set()
    return directory / LAB if entries - {".git", ".gitignore"} else directory


def _is_original(directory: Path) -> bool:
    train = directory / "train.py"
    return train.is_file() and (directory / "prepare.py").is_file() and not (directory / SETTINGS).is_file()


def _original(directory: Path) -> UsageError:
    return UsageError(
        f"{directory} holds a train.py of the original autoresearch: a script, not a function train(experiment)",
        f"make a workspace beside it (autoresearch init {LAB}) and carry your changes over into its train.py",
    )


# The run


def settings_for(
    directory: Path, options: Mapping[str, Any], executor: LocalExecutor, view: View
) -> tuple[Settings, DeviceInfo]:
    """The three layers of settings, with the backend and the preset chosen where nothing names them.

    Args:
        directory: the workspace; its autoresearch.toml is read where it exists.
        options: of the command line, in the shape of the TOML.

    Raises:
        UsageError: settings that can't be used.
        BackendUnavailable: the backend can't run here.
    """
    toml = directory / SETTINGS
    present = parse_toml(toml.read_text(encoding="utf-8"), SETTINGS) if toml.is_file() else {}
    chosen = {**present, **options}
    backend, device = str(chosen.get("backend", "")), str(chosen.get("device", "auto"))
    reason = ""
    if not backend:
        backend, device, reason = choose_backend(executor, device)
    registry.facts(backend)  # an unknown name is an error before anything is started
    preset = str(chosen.get("preset", ""))
    budget = _budget(preset, toml, options)
    info = executor.describe(backend, device, budget)
    if reason:
        view.note(reason)
    if not preset:
        preset = fitting_preset(info.platform, info.memory_bytes)
        view.note(f"preset {preset}: made for {info.platform}")
        if budget is None:
            # Whether compiling pays depends on the budget, which is known only now.
            info = executor.describe(backend, device, _budget(preset, toml, options))
    settings = load_settings(preset, toml, {**options, "preset": preset, "backend": backend, "device": device})
    return settings, info


def _budget(preset: str, toml: Path, options: Mapping[str, Any]) -> float | None:
    return load_settings(preset, toml, options).task.train_seconds if preset else None


def data_for(settings: Settings, view: View) -> Dataset:
    """The prepared and verified data set of a task; made where it is missing.

    Raises:
        DataError: the source is missing, damaged or too small.
    """
    dataset = prepare(settings.task, settings.source, cache_root(), view.stage)
    train, val = dataset.splits["train"], dataset.splits["val"]
    view.note(
        f"data: {dataset.source}, {train.tokens / 1e6:.2f} M training tokens, "
        f"{val.rows} validation rows of {dataset.seq_len}"
    )
    return dataset


def history_of(workspace: Workspace, tag: str) -> History:
    """What the journal of a run adds up to; empty where there is no such run."""
    journal = Journal(workspace.directory / ".autoresearch" / tag / "journal.jsonl")
    return History.from_events(journal.read(), str(journal.path))


def latest_tag(workspace: Workspace) -> str:
    """The run written to last; "" where there is none."""
    tags = workspace.tags()
    return tags[-1] if tags else ""


def choose_tag(workspace: Workspace, tag: str) -> str:
    """The run that is asked for, or the latest unfinished one, or a new one named by the date."""
    if tag:
        workspace.check_tag(tag)
        return tag
    latest = latest_tag(workspace)
    if latest and not history_of(workspace, latest).stop_reason.startswith(FINAL_REASONS):
        return latest
    return workspace.new_tag()


def check_resumable(history: History, settings: Settings, tag: str) -> None:
    """Whether a run that exists may go on under these settings.

    Raises:
        UsageError: task, preset or backend are others than the run's.
    """
    if not history.run:
        return
    was = history.settings
    now = json.loads(json.dumps(asdict(settings)))
    changed = [name for name in ("backend", "preset") if was.get(name) != now[name]]
    changed += [f"[task] {name}" for name, value in now["task"].items() if was.get("task", {}).get(name) != value]
    if changed:
        raise UsageError(
            f"run {tag!r} was started with another {', '.join(changed)}: its scores would not be comparable",
            "start a new run with --tag NAME, or leave the option out to go on with this one",
        )


def make_proposer(agent: str) -> tuple[Proposer, str]:
    """A proposer by the name that `--agent` takes, and what to say about the choice.

    Raises:
        UsageError: no such agent.
    """
    from autoresearch.agent.optimizer import Optimizer, RandomSearch
    from autoresearch.agent.scripted import Scripted

    kind, _, argument = agent.partition(":")
    makers: dict[str, Callable[[], Proposer]] = {
        "auto": Optimizer,
        "optimizer": Optimizer,
        "random": RandomSearch,
        "script": lambda: Scripted(Path(argument)),
    }
    if kind not in makers or bool(argument) != (kind == "script"):
        raise UsageError(f"no agent {agent!r}", did_you_mean(agent, ["auto", "optimizer", "random", "script:DIR"]))
    note = "proposals: optimizer, Optuna's TPE over the constants of train.py" if kind == "auto" else ""
    return makers[kind](), note


@contextmanager
def open_run(directory: Path, tag: str, options: Mapping[str, Any], program: Path | None, view: View) -> Iterator[Run]:
    """Set up what is missing, and hold the workspace's lock while the run is used.

    Args:
        directory: the current directory, or what `--workspace` names.
        tag: "" chooses.
        options: of the command line, in the shape of autoresearch.toml.
        program: another program.md than the workspace's.
        view: told of every choice.

    Raises:
        AutoresearchError: see the errors of each part.
    """
    place = find_workspace(directory)
    settings, device = settings_for(place, options, LocalExecutor(), view)
    if (place / SETTINGS).is_file():
        workspace = Workspace(place)
    else:
        workspace = create_workspace(place, settings, own_repository=place != directory)
        view.note(f"workspace: {workspace.directory}, a git repository with train.py, {PROGRAM} and {SETTINGS}")
    text = read_program(workspace.directory, program)
    with workspace.lock():
        workspace.exclude()
        chosen = choose_tag(workspace, tag)
        history = history_of(workspace, chosen)
        if history.run:
            # The text of a run stays the same, also where the hub can be reached by now.
            settings = replace(settings, source=history.run.get("source", settings.source))
        check_resumable(history, settings, chosen)
        dataset = data_for(settings, view)
        key = key_of(settings, dataset, device)
        view.note(f"run {chosen}: {'resumed' if history.run else 'new'}, comparability key {key}")
        if note := workspace.link_results(chosen):
            view.note(note)
        yield Run(workspace, chosen, settings, device, dataset, key, text)


def dry_run(directory: Path, options: Mapping[str, Any], program: Path | None, view: View) -> None:
    """Say what a search would do, with its first proposal; nothing is trained or written.

    Raises:
        AutoresearchError: what would end the search before its first experiment.
    """
    place = find_workspace(directory)
    settings, device = settings_for(place, options, LocalExecutor(), view)
    proposer, note = make_proposer(settings.agent)
    text = read_program(place, program)
    there = (place / SETTINGS).is_file()
    source = (place / "train.py").read_text(encoding="utf-8") if there else workspace_files(settings)["train.py"]
    values = {name: constant.value for name, constant in constants(source).items()}
    baseline = Record(
        number=0,
        blob="",
        hypothesis="baseline",
        category="baseline",
        proposer="",
        origin="",
        source_hash="",
        normalized_hash="",
        constants=values,
        diff_lines=0,
        parent=None,
        verdict="keep",
    )
    proposal = proposer.propose(context_of(History(), baseline, source, settings, device, text))
    view.note(f"workspace: {place}" + ("" if there else " (would be made)"))
    view.note(f"backend {settings.backend} on {device.name}, {device.dtype}; preset {settings.preset}")
    view.note(f"one experiment: {settings.task.train_seconds:g} s of training")
    if note:
        view.note(note)
    if proposal is None:
        view.note("first proposal: none")
        return
    view.note(f"first proposal after the baseline: {proposal.hypothesis}")
    before, after = source.splitlines(), proposal.source.splitlines()
    for line in unified_diff(before, after, "train.py", "train.py", lineterm="", n=1):
        view.note(f"  {line}")


def closing_lines(run: Run, history: History, reason: str) -> list[str]:
    """The last words of a search: why it ended, what it gained, and how to get the best train.py."""
    baseline, best, counts = history.baseline, history.incumbent, history.counts
    lines = [f"stopped: {reason}"]
    if baseline is not None and best is not None and baseline.value is not None and best.value is not None:
        spread = noise.spread_of(history, run.settings.rules)
        lines.append(
            f"{counts.experiments} experiments: {counts.kept} kept, {counts.discarded} discarded, "
            f"{counts.failed} failed; {baseline.value:.4f} → {best.value:.4f} bpb, spread between seeds {spread}"
        )
        where = f"git -C {shlex.quote(str(run.workspace.directory))}"
        lines.append(
            f"the best train.py is experiment {best.number}, branch autoresearch/{run.tag}; to get it: "
            f"{where} show autoresearch/{run.tag}:./train.py"
        )
    return lines


def read_program(directory: Path, program: Path | None) -> str:
    path = program or directory / PROGRAM
    if program is None and not path.is_file():
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}", "name a text file: --program FILE") from error
