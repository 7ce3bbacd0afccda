"""Presets, the three layers of settings, and the fingerprint of a task."""

from dataclasses import fields, replace

import pytest

from autoresearch.core.errors import UsageError
from autoresearch.core.task import (
    Limits,
    Rules,
    Settings,
    Task,
    fitting_preset,
    load_preset,
    load_settings,
    overlay,
    preset_names,
)

BASE = Settings("none")


def test_every_preset_loads():
    assert {"tinystories/cpu", "tinystories/macbook", "tinystories/rtx", "climbmix/h100", "climbmix/original"} <= set(
        preset_names()
    )
    for name in preset_names():
        settings = load_preset(name)
        assert settings.preset == name
        assert settings.task.val_tokens % settings.task.seq_len == 0


@pytest.mark.parametrize("field", fields(Task), ids=lambda field: field.name)
def test_the_fingerprint_changes_with_each_field_of_the_task(field):
    value = {
        str: lambda v: v + "x",
        int: lambda v: v + 1,
        float: lambda v: v + 0.5,
    }[type(getattr(Task(), field.name))](getattr(Task(), field.name))
    assert replace(Task(), **{field.name: value}).fingerprint("data") != Task().fingerprint("data")


def test_the_fingerprint_is_that_of_task_and_data_alone():
    print_of = Task().fingerprint("data")
    assert len(print_of) == 12
    assert print_of == Task().fingerprint("data")
    assert print_of != Task().fingerprint("other data")
    changed = overlay(BASE, {"limits": {"setup_seconds": 1}, "rules": {"keep_z": 9}, "seed": 4}, "test")
    assert changed.task.fingerprint("data") == print_of
    whole, decimal = ({"task": {"train_seconds": seconds}} for seconds in (40, 40.0))
    assert overlay(BASE, whole, "test").task.fingerprint("x") == overlay(BASE, decimal, "test").task.fingerprint("x")


def test_layers(tmp_path):
    toml = tmp_path / "autoresearch.toml"
    toml.write_text(
        'preset = "tinystories/smoke"\nagent = "random"\n[task]\neval_rows = 3\ntrain_seconds = 2\n'
        "[stop]\nmax_hours = 1\n"
    )
    settings = load_settings("", toml, {"task": {"train_seconds": 1.5}, "stop": {"max_experiments": 4}})
    assert settings.task.seq_len == load_preset("tinystories/smoke").task.seq_len
    assert (settings.task.eval_rows, settings.agent) == (3, "random")
    assert settings.task.train_seconds == 1.5
    assert (settings.stop.max_hours, settings.stop.max_experiments) == (1.0, 4)
    assert load_settings("tinystories/cpu", toml).preset == "tinystories/cpu"
    assert load_settings("tinystories/cpu", toml).task.eval_rows == 3, "the workspace still overrides it"
    assert load_settings("tinystories/cpu", tmp_path / "none.toml") == load_preset("tinystories/cpu")
    with pytest.raises(UsageError, match="no preset is chosen"):
        load_settings("")


def test_hyperparameters_are_merged():
    once = overlay(BASE, {"hyperparameters": {"DEPTH": 4, "WIDTH": 8}}, "test")
    assert overlay(once, {"hyperparameters": {"DEPTH": 2}}, "test").hyperparameters == {"DEPTH": 2, "WIDTH": 8}


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        ({"task": {"train_second": 3}}, r"\[task\] has no key 'train_second'", "train_seconds"),
        ({"rule": {}}, "unknown key 'rule'", "rules"),
        ({"limits": {"memory": 1}}, r"\[limits\] has no key 'memory'", "memory_fraction"),
        ({"task": 3}, r"\[task\] must be a table, received 3", ""),
        ({"hyperparameters": []}, r"\[hyperparameters\] must be a table", ""),
        ({"seed": "x"}, "seed must be int, received 'x'", ""),
        ({"seed": True}, "seed must be int, received True", ""),
        ({"seed": 1.5}, "seed must be int, received 1.5", ""),
        ({"backend": 3}, "backend must be str, received 3", ""),
        ({"task": {"train_seconds": True}}, "train_seconds must be float, received True", ""),
        ({"task": {"train_seconds": 0}}, "train_seconds must be positive, received 0.0", ""),
        ({"task": {"train_seconds": float("nan")}}, "must be a finite number, received nan", ""),
        ({"task": {"train_steps": -1}}, "train_steps must be 0 or more, received -1", ""),
        ({"task": {"vocab_size": 100}}, "vocab_size must be 264", ""),
        ({"stop": {"max_hours": 1e300}}, r"\[stop\] max_hours must be at most 8,784, received 1e\+300", "option"),
        ({"stop": {"max_cost": 1e300}}, "max_cost must be at most 1,000,000, received 1e", ""),
        ({"task": {"train_seconds": 1e300}}, "train_seconds must be at most 31,622,400, received 1e", ""),
        ({"command": {"timeout_seconds": 1e300}}, "timeout_seconds must be at most 31,622,400", "autoresearch.toml"),
        ({"command": {"output_mb": 1e300}}, "output_mb must be at most 1,000", ""),
        ({"command": {"estimate_usd": 1e7}}, "estimate_usd must be at most 1,000,000", ""),
        ({"outages": {"pause_seconds": 1e10}}, "pause_seconds must be at most", ""),
        ({"outages": {"retries": 10**10}}, "retries must be at most", ""),
        ({"claude": {"timeout_seconds": float("inf")}}, "timeout_seconds must be a finite number, received inf", ""),
        ({"claude": {"timeout_seconds": float("nan")}}, "timeout_seconds must be a finite number, received nan", ""),
        ({"limits": {"eval_seconds": 10**400}}, "eval_seconds must be a finite number, received 1000", ""),
        ({"reviewer": {"max_tokens": 10**12}}, "max_tokens must be at most", ""),
        ({"stop": {"max_hours": -1}}, "max_hours must be 0 or more, received -1.0", ""),
        ({"stop": {"until": "soon"}}, "--until must be HH:MM, received 'soon'", "07:30"),
    ],
)
def test_wrong_settings(data, message, hint):
    with pytest.raises(UsageError, match=message) as caught:
        overlay(BASE, data, "autoresearch.toml")
    assert hint in caught.value.hint
    assert caught.value.hint


def test_values_keep_their_types():
    settings = overlay(BASE, {"task": {"train_seconds": 3}, "machine": {"platforms": ["cpu", "mps"]}}, "test")
    assert isinstance(settings.task.train_seconds, float)
    assert settings.machine.platforms == ("cpu", "mps")
    assert (settings.limits, settings.rules) == (Limits(), Rules())


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(UsageError, match="no preset 'climbmix/h10'") as caught:
        load_preset("climbmix/h10")
    assert caught.value.hint == "did you mean 'climbmix/h100'?"


def test_the_preset_that_fits_the_machine():
    assert fitting_preset("cpu", 2 * 10**9) == "tinystories/cpu"
    assert fitting_preset("null", 0) == "tinystories/smoke"
    demands = {name: load_preset(name).machine for name in preset_names()}
    largest = max((m.min_memory_gb, name) for name, m in demands.items() if "cuda" in m.platforms)
    assert fitting_preset("cuda", 2**40) == largest[1]
    with pytest.raises(UsageError, match="no preset for the platform 'abacus'"):
        fitting_preset("abacus", 2**40)


@pytest.mark.parametrize(
    "table",
    [
        {"rules": {"spread": 0.0}},
        {"rules": {"spread": 1e300}},
        {"rules": {"spread_dof": 0.0}},
        {"rules": {"keep_z": -10.0}},
        {"rules": {"fresh_within": 0}},
        {"rules": {"strict_retests": 0}},
        {"rules": {"strict_z": -1.0}},
        {"limits": {"eval_seconds": 0.0}},
        {"limits": {"memory_fraction": -1.0}},
    ],
)
def test_thresholds_and_limits_that_can_t_be_meant_are_refused(table):
    name = next(iter(table))
    with pytest.raises(UsageError, match=rf"\[{name}\]"):
        overlay(Settings("tinystories/cpu"), table, "autoresearch.toml")
