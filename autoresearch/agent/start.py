"""From options to a search: the backend, the data, the run. Each choice is said with its reason."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autoresearch.agent.agents import check_agent, check_ready
from autoresearch.agent.folder import PROGRAM, create_workspace, find_workspace
from autoresearch.agent.isolation import changed, choose_sandbox
from autoresearch.agent.lab import Run
from autoresearch.core import measure, noise, registry
from autoresearch.core.amounts import dollars, flops
from autoresearch.core.contract import DeviceInfo
from autoresearch.core.dataset import Dataset
from autoresearch.core.errors import BackendUnavailable, UsageError
from autoresearch.core.executor import LocalExecutor
from autoresearch.core.history import History
from autoresearch.core.runs import history_of
from autoresearch.core.scratch import sweep
from autoresearch.core.task import SETTINGS, Settings, fitting_preset, load_preset, load_settings, read_toml
from autoresearch.core.view import View, gain_text, show_command
from autoresearch.core.workspace import Workspace
from autoresearch.prepare.build import cache_root, prepare
from autoresearch.prepare.sources import resolve_source

FINAL_REASONS = ("the target of ", "the baseline failed")
"""Starts of the stop reasons after which a run isn't taken up again by default."""


def key_of(settings: Settings, dataset: Dataset, device: DeviceInfo) -> str:
    """Comparability key: task fingerprint, machine class, version of the measurement."""
    return f"{settings.task.fingerprint(dataset.key)}/{device.machine_class()}/v{measure.VERSION}"


# Backend


def choose_backend(executor: LocalExecutor, device: str) -> tuple[str, str, str]:
    """The best backend usable here, the device to ask it for, and the reason.

    Raises:
        BackendUnavailable: none is usable, not even on the CPU.
    """
    ranked = sorted((rank, name) for name in registry.names() if (rank := registry.facts(name).RANK) is not None)
    missing: dict[str, BackendUnavailable] = {}
    for asked in dict.fromkeys((device, "cpu")):
        for _, name in ranked:
            try:
                found = executor.describe(name, asked)
            except BackendUnavailable as error:
                missing.setdefault(name, error)
                continue
            if asked == "auto" and found.platform == "cpu":
                continue  # not an accelerator: the backends that run on a processor are ranked in the next round
            if device != "auto":
                why = "as asked"
            elif asked == "auto":
                why = "the first backend with a device here"
            else:
                why = "no backend has an accelerator here"
            return name, asked, f"backend {name} ({registry.facts(name).TITLE}) on {found.name}: {why}"
    name, first = next(iter(missing.items()))
    raise BackendUnavailable(f"no backend is usable here; {name}: {first.message}", first.hint)


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
    present = read_toml(toml) if toml.is_file() else {}
    chosen = {**present, **options}
    # A backend that is asked for by name means its accelerator, whatever device was chosen before.
    named = "backend" in options and "device" not in options
    backend, device = str(chosen.get("backend", "")), "auto" if named else str(chosen.get("device", "auto"))
    reason = ""
    if not backend:
        backend, device, reason = choose_backend(executor, device)
    # What is misspelt is an error before anything is started.
    registry.facts(backend)
    check_agent(str(chosen.get("agent", "auto")))
    preset = str(chosen.get("preset", ""))
    budget = _budget(preset, toml, options)
    info = executor.describe(backend, device, budget)
    if reason:
        view.note(reason)
    if not preset:
        preset = fitting_preset(info.platform, info.memory_bytes)
        view.note(f"preset {preset}: made for the platform {info.platform}")
        if budget is None:
            # Whether compiling pays depends on the budget, which is known only now.
            info = executor.describe(backend, device, _budget(preset, toml, options))
    if info.fetch and fetched(info.fetch, view):
        info = executor.describe(backend, device, _budget(preset, toml, options))
    if why := info.reasons.get("platform"):
        view.note(why)
    for name, why in info.reasons.items():
        value = flops(info.peak_flops) if name == "peak_flops" else getattr(info, name, "")
        view.detail(f"{name.replace('_', ' ')} {value}: {why}")
    settings = load_settings(preset, toml, {**options, "preset": preset, "backend": backend, "device": device})
    return settings, info


def fetched(command: Sequence[str], view: View) -> bool:
    """Run a backend's command that fetches what it loads offline later; whether that went well is said."""
    view.note(f"fetching for this device: {shlex.join(command)}")
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    last = [line for line in (done.stderr if done.returncode else done.stdout).splitlines() if line.strip()][-1:]
    view.note(f"  {'could not be fetched, going on without it' if done.returncode else 'fetched'}: {''.join(last)}")
    return done.returncode == 0


def _budget(preset: str, toml: Path, options: Mapping[str, Any]) -> float | None:
    return load_settings(preset, toml, options).task.train_seconds if preset else None


def data_for(settings: Settings, view: View) -> Dataset:
    """The prepared and verified data set of a task; made where it is missing.

    Raises:
        DataError: the source is missing, damaged or too small.
    """
    corpus = resolve_source(settings.task, settings.source, cache_root())
    if corpus.notice:
        view.note(corpus.notice)
    dataset = prepare(settings.task, corpus.name, cache_root(), view.stage)
    train, val = dataset.splits["train"], dataset.splits["val"]
    view.note(
        f"data: {dataset.source}, {train.tokens / 1e6:.2f} M training tokens, "
        f"{val.rows} validation rows of {dataset.seq_len}"
    )
    return dataset


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


def resumed(history: History, options: Mapping[str, Any], tag: str) -> dict[str, Any]:
    """The options to go on with a run that exists: its own task, backend and seed, under what was given now.

    A strict run stays strict.

    Raises:
        UsageError: an option asks for another task, backend or seed than the run's.
    """
    if not history.run:
        return dict(options)
    was = history.settings
    fixed = {name: was[name] for name in ("backend", "device", "preset", "seed")}
    changed = [f"--{name}" for name in ("backend", "preset", "seed") if options.get(name, was[name]) != was[name]]
    given = options.get("task", {})
    changed += ["--budget" for name, value in given.items() if was["task"].get(name) != value]
    if changed:
        # A misspelt name is told first.
        registry.facts(options.get("backend", was["backend"]))
        load_preset(options.get("preset", was["preset"]))
        raise UsageError(
            f"run {tag!r} was started with another {', '.join(changed)}: its scores would not be comparable",
            "start a new run with --tag NAME, or leave the option out to go on with this one",
        )
    if "backend" in options:
        del fixed["device"]  # see `settings_for`
    source = {} if options.get("source") else {"source": history.run["source"]}
    strict = {"rules": {"strict": True}} if history.rules.strict else {}
    return {**fixed, **strict, **options, "task": was["task"], **source}


@contextmanager
def open_run(
    directory: Path,
    tag: str,
    options: Mapping[str, Any],
    program: Path | None,
    view: View,
    agents: bool = False,
) -> Iterator[Run]:
    """Set up what is missing, and hold the workspace's lock while the run is used.

    Args:
        directory: the current directory, or what `--workspace` names.
        tag: "" chooses.
        options: of the command line, in the shape of autoresearch.toml.
        program: another program.md than the workspace's.
        view: told of every choice.
        agents: whether they are going to be asked, so that what they lack is an error before anything is made.

    Raises:
        AutoresearchError: see the errors of each part.
    """
    place = find_workspace(directory)
    history, chosen = existing(place, tag)
    settings, device = settings_for(place, resumed(history, options, chosen), LocalExecutor(), view)
    if agents:
        check_ready(settings, place, chosen)
    if (place / SETTINGS).is_file():
        workspace = Workspace(place)
    else:
        workspace = create_workspace(place, settings)
        view.note(f"workspace: {workspace.directory}, a git repository with train.py, {PROGRAM} and {SETTINGS}")
    text = read_program(workspace.directory, program)
    with workspace.lock():
        workspace.exclude()
        sweep()
        chosen = chosen or choose_tag(workspace, tag)
        view.note(what(settings, device))
        if busy := _busy():
            view.note(busy)
        dataset = data_for(settings, view)
        if history.run and history.run["dataset"] != dataset.key:
            raise UsageError(
                f"run {chosen!r} was started with other data ({history.run['source']}) than {dataset.source} holds",
                "start a new run with --tag NAME, or leave --source out to go on with this one",
            )
        key = key_of(settings, dataset, device)
        view.note(f"run {chosen}: {'resumed' if history.run else 'new'}, comparability key {key}")
        if note := workspace.link_results(chosen):
            view.note(note)
        sandbox = choose_sandbox(settings, device, view)
        if note := changed(history, sandbox):
            view.note(note)
        yield Run(
            workspace, chosen, settings, device, dataset, key, text, sandbox, program or workspace.directory / PROGRAM
        )


def existing(place: Path, tag: str) -> tuple[History, str]:
    """The run that would be taken up, and its tag; an empty history and "" where there is no workspace yet."""
    if not (place / SETTINGS).is_file():
        return History(), tag
    workspace = Workspace(place)
    chosen = choose_tag(workspace, tag)
    return history_of(workspace, chosen), chosen


def _busy() -> str:
    """A warning where other programs use the processor: a budget in seconds then buys fewer steps."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < 0.5 * cores:
        return ""
    return (
        f"other programs keep this machine busy (load {load:.1f} on {cores} cores): scores come out worse than on an "
        "idle machine, and noisier; leave it alone while a search runs"
    )


def what(settings: Settings, device: DeviceInfo) -> str:
    """The task and the device, in one line."""
    task, title = settings.task, registry.facts(settings.backend).TITLE
    budget = f"{task.train_steps} steps" if task.train_steps else f"{task.train_seconds:g} s"
    return f"task {settings.preset}: {budget} of training an experiment; {title} on {device.name}, {device.dtype}"


def say_closing(run: Run, history: History, view: View) -> None:
    """The last words of a search: why it ended, what it gained, and how to get the best train.py."""
    best, counts = history.incumbent, history.counts
    view.note(f"stopped: {history.stop_reason}")
    if best is not None:
        view.note(
            f"experiments: {counts.experiments} ({counts.kept} kept, {counts.discarded} discarded, {counts.failed} "
            f"failed); {gain_text(history)}, spread between seeds {noise.spread_of(history, run.settings.rules)}"
            + (f"; calls cost {dollars(history.cost_usd)}" if history.charges or history.open_calls else "")
        )
        if best.number:
            view.note("what was found: autoresearch report; the kept changes as a branch: autoresearch finalize")
        which = f"experiment {best.number}" if best.number else "the baseline"
        view.note(
            f"the best train.py is {which}, branch autoresearch/{run.tag}; to get it: "
            f"{show_command(run.workspace.directory, best.commit)}"
        )


def read_program(directory: Path, program: Path | None) -> str:
    path = program or directory / PROGRAM
    if program is None and not path.is_file():
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}", "name a text file: --program FILE") from error
