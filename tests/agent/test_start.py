"""From options to a run: which backend, which folder, which tag, and what may be resumed."""

import json
import re
import sys
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from autoresearch.agent import folder, start
from autoresearch.core import registry
from autoresearch.core.contract import DeviceInfo
from autoresearch.core.dataset import Dataset
from autoresearch.core.errors import BackendUnavailable, UsageError
from autoresearch.core.history import History
from autoresearch.core.journal import Journal
from autoresearch.core.task import Rules, Settings, Task, load_preset, overlay, preset_names

CPU = DeviceInfo("cuda", "cpu", "a processor", 1, "torch 2", "float32", "sdpa", False, None, 2**34)


class Probe:
    """Stands in for the executor: what backends can be asked for; where "auto" finds no accelerator, "auto: cpu"."""

    def __init__(self, **found: tuple[str, ...]) -> None:
        self._found = found

    def describe(self, backend: str, device: str, budget_seconds: float | None = None) -> DeviceInfo:
        if device not in self._found.get(backend, ()):
            raise BackendUnavailable(f"{backend} finds no {device}", f"install {backend}")
        return replace(CPU, backend=backend, platform="cpu" if device == "cpu" else "cuda")


def test_the_best_backend_here(listener):
    assert start.choose_backend(Probe(cuda=("auto", "cpu")), "auto")[:2] == ("cuda", "auto")
    name, device, reason = start.choose_backend(Probe(cuda=("cpu",), null=("auto", "cpu")), "auto")
    assert (name, device) == ("cuda", "cpu"), "null is never chosen"
    assert "no backend has an accelerator here" in reason
    falls_back = ("auto: cpu", "cpu")
    assert start.choose_backend(Probe(cuda=("cpu",), mlx=falls_back), "auto")[:2] == ("cuda", "cpu"), "by rank"
    assert start.choose_backend(Probe(mlx=falls_back), "auto")[:2] == ("mlx", "cpu")
    assert start.choose_backend(Probe(cuda=("cpu",), mlx=("auto",)), "auto")[:2] == ("mlx", "auto")
    with pytest.raises(BackendUnavailable, match="no backend is usable here; cuda: cuda finds no auto") as caught:
        start.choose_backend(Probe(null=("auto",)), "auto")
    assert caught.value.hint == "install cuda"


def test_settings_say_what_they_choose(tmp_path, listener):
    settings, device = start.settings_for(tmp_path, {}, Probe(cuda=("cpu",)), listener)
    assert (settings.backend, settings.device, settings.preset) == ("cuda", "cpu", "tinystories/cpu")
    assert device.platform == "cpu"
    assert len(listener.notes) == 2
    listener.notes.clear()
    given = {"backend": "cuda", "device": "cpu", "preset": "tinystories/smoke", "task": {"train_seconds": 7.0}}
    settings, _ = start.settings_for(tmp_path, given, Probe(cuda=("cpu",)), listener)
    assert (settings.preset, settings.task.train_seconds) == ("tinystories/smoke", 7.0)
    assert listener.notes == []


def test_a_workspace_overrides_the_preset_and_options_the_workspace(tmp_path, listener):
    (tmp_path / "autoresearch.toml").write_text(
        'preset = "tinystories/smoke"\nbackend = "null"\n[task]\ntrain_seconds = 3\neval_rows = 8\n'
    )
    probe = Probe(null=("auto",))
    settings, _ = start.settings_for(tmp_path, {"task": {"train_seconds": 5.0}}, probe, listener)
    assert (settings.task.train_seconds, settings.task.eval_rows, settings.task.seq_len) == (5.0, 8, 64)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], "."),
        ([".git/"], "."),
        ([".git/", ".gitignore"], "."),
        (["notes.md"], "autoresearch-lab"),
        (["train.py"], "autoresearch-lab"),
        (["train.py", "autoresearch.toml", "prepare.py"], "."),
    ],
)
def test_where_the_workspace_is(entries, expected, tmp_path):
    for entry in entries:
        (tmp_path / entry).mkdir() if entry.endswith("/") else (tmp_path / entry).touch()
    assert folder.find_workspace(tmp_path) == (tmp_path / expected).resolve()


def test_a_new_workspace(tmp_path):
    settings = Settings("tinystories/smoke", backend="null", source="stories", hyperparameters={"LEARNING_RATE": 0.5})
    made = folder.create_workspace(tmp_path / "lab", settings)
    assert {path.name for path in made.directory.iterdir()} == {
        ".git",
        ".gitignore",
        "autoresearch.toml",
        "program.md",
        "train.py",
    }
    assert "\nLEARNING_RATE = 0.5  # search" in made.train_path.read_text()
    expected = registry.facts("null").BASELINE.read_text().replace("LEARNING_RATE = 0.3", "LEARNING_RATE = 0.5")
    assert made.train_path.read_text() == expected, "only the preset's values differ from the backend's train.py"
    loaded = start.load_settings("", made.directory / "autoresearch.toml")
    assert (loaded.preset, loaded.backend, loaded.source) == ("tinystories/smoke", "null", "stories")


@pytest.mark.parametrize("preset", preset_names())
def test_what_the_new_settings_show_as_comments_is_valid_and_in_force(preset):
    settings = replace(load_preset(preset), backend="cuda")
    text = folder.workspace_files(settings)["autoresearch.toml"]
    shown = re.sub(r"^# (?=\[|[a-z_]+ = )", "", text, flags=re.MULTILINE)
    tables = tomllib.loads(shown)
    assert {"rules", "limits", "stop", "caps", "claude", "reviewer", "task"} <= set(tables)
    loaded = overlay(settings, {**tables, "agent": "auto"}, "shown")
    assert (loaded.rules, loaded.limits, loaded.task) == (settings.rules, settings.limits, settings.task)
    changed = overlay(settings, tomllib.loads(shown.replace("keep_z = ", "keep_z = 9")), "shown")
    assert changed.rules != settings.rules


def run_event(settings: Settings, **more) -> dict:
    return {"event": "run", "settings": json.loads(json.dumps(asdict(settings))), **more}


SETTINGS = Settings("tinystories/smoke", backend="null")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, None),
        ({"agent": "random", "stop": {"max_experiments": 5}}, None),
        ({"device": "cpu"}, None),
        ({"preset": "tinystories/smoke", "backend": "null", "task": {"train_seconds": 0.5}}, None),
        ({"task": {"train_seconds": 7.0}}, "--budget"),
        ({"preset": "tinystories/cpu"}, "--preset"),
        ({"backend": "cuda"}, "--backend"),
        ({"seed": 7}, "--seed"),
    ],
)
def test_what_may_be_resumed(options, named):
    own = replace(SETTINGS, task=replace(SETTINGS.task, train_seconds=0.5))
    history = History.from_events([run_event(own, source="stories")])
    if named is not None:
        with pytest.raises(UsageError, match=f"run 'nov30' was started with another {named}") as caught:
            start.resumed(history, options, "nov30")
        assert "--tag" in caught.value.hint
        return
    goes_on = start.resumed(history, options, "nov30")
    assert goes_on["task"]["train_seconds"] == 0.5, "the run's own budget, though no option says so"
    assert (goes_on["preset"], goes_on["source"]) == ("tinystories/smoke", "stories")
    assert goes_on.get("agent") == options.get("agent")


def test_a_new_run_takes_the_options_as_they_are():
    options = {"backend": "cuda", "task": {"train_seconds": 7.0}}
    assert start.resumed(History(), options, "nov30") == options


def test_a_backend_that_is_named_means_its_accelerator_again(place):
    history = History.from_events([run_event(replace(SETTINGS, device="cpu"), source="stories")])
    assert start.resumed(history, {}, "nov30")["device"] == "cpu"
    assert "device" not in start.resumed(history, {"backend": "null"}, "nov30")


@pytest.mark.parametrize(
    ("reason", "resumed"),
    [
        ("", True),
        ("interrupted", True),
        ("experiments done: 3 (--max-experiments)", True),
        ("no proposals are left (script)", True),
        ("the target of 1.0 bpb is reached (--target)", False),
        ("the baseline failed: crash: boom", False),
    ],
)
def test_the_latest_unfinished_run_goes_on(reason, resumed, place):
    journal = Journal(place.run_dir("mine") / "journal.jsonl")
    journal.append("run", settings={})
    if reason:
        journal.append("stopped", reason=reason)
    chosen = start.choose_tag(place, "")
    assert (chosen == "mine") is resumed
    assert start.choose_tag(place, "other") == "other"


def test_a_comparability_key_holds_task_machine_and_measurement():
    def key(settings: Settings = SETTINGS, device: DeviceInfo = CPU, data: str = "data") -> str:
        return start.key_of(settings, Dataset(Path(), data, "", 512, 64, 0, {}), device)

    others = {
        key(replace(SETTINGS, task=Task(train_seconds=7))),
        key(data="other data"),
        key(device=replace(CPU, framework="torch 3")),
        key(device=replace(CPU, name="another processor")),
        key(device=replace(CPU, count=2)),
        key(device=replace(CPU, dtype="bfloat16")),
    }
    assert len(others) == 6
    assert key() not in others
    assert key() == key(replace(SETTINGS, agent="random", seed=3))


@pytest.mark.parametrize(
    ("code", "went_well", "said"),
    [("print('kernel on disk')", True, "fetched: kernel on disk"), ("raise SystemExit('no hub')", False, "no hub")],
)
def test_what_a_device_wants_is_fetched_and_said(code, went_well, said, listener):
    assert start.fetched((sys.executable, "-c", code), listener) is went_well
    assert listener.notes[-1].endswith(said)


def test_program_md_tells_what_is_costly_on_the_hardware():
    text = folder.workspace_files(Settings("tinystories/cpu", backend="cuda"))[folder.PROGRAM]
    assert text.startswith("# The search")
    assert "## This hardware: PyTorch" in text
    assert (
        "## This hardware" not in folder.workspace_files(Settings("tinystories/smoke", backend="null"))[folder.PROGRAM]
    )


def test_a_strict_run_stays_strict():
    settings = asdict(replace(Settings("tinystories/smoke"), rules=Rules(strict=True)))
    history = History.from_events([{"event": "run", "settings": settings, "source": "s"}])
    assert start.resumed(history, {}, "nov30")["rules"] == {"strict": True}
    history.apply({"event": "resumed", "rules": asdict(Rules())})
    assert "rules" not in start.resumed(history, {}, "nov30")
