"""Per backend: usable on this machine or not, why, and what it would choose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from autoresearch.core import registry, sandbox
from autoresearch.core.amounts import flops
from autoresearch.core.contract import DeviceInfo
from autoresearch.core.errors import AutoresearchError
from autoresearch.core.executor import LocalExecutor
from autoresearch.core.extras import install_hint
from autoresearch.core.task import fitting_preset, load_preset


def examine(device: str) -> dict[str, Any]:
    """Ask every registered backend, each in a process of its own.

    Args:
        device: "auto", or a platform such as "cpu".

    Returns:
        By backend: `usable`, and `preset` and `device` (the fields of DeviceInfo) or `problem` and `hint`; with these
        also `on_processor`, the preset and the device of `--device cpu`, where that works. For the sandbox: `usable`,
        `name` and `reason`, or `problem` and `hint`.
    """
    found: dict[str, Any] = {}
    for name in registry.names():
        try:
            info, preset = _describe(LocalExecutor(), name, device)
            found[name] = {"usable": True, "preset": preset, "device": asdict(info)}
        except AutoresearchError as error:
            found[name] = {"usable": False, "problem": error.message, "hint": error.hint}
            if device == "auto" and (on_processor := _on_processor(name)):
                found[name]["on_processor"] = on_processor
    return {"asked": device, "backends": found, "sandbox": _sandbox()}


def _on_processor(name: str) -> dict[str, Any]:
    """Preset and device of a backend that has no accelerator here; empty where it can't run at all."""
    try:
        info, preset = _describe(LocalExecutor(), name, "cpu")
    except AutoresearchError:
        return {}
    return {"preset": preset, "device": asdict(info)}


def _sandbox() -> dict[str, Any]:
    found = sandbox.find()
    if found.sandbox is None:
        return {"usable": False, "problem": found.reason, "hint": found.hint}
    return {"usable": True, "name": found.sandbox.name, "reason": found.reason}


def _describe(executor: LocalExecutor, name: str, device: str) -> tuple[DeviceInfo, str]:
    """What a search would choose here: with the preset that fits, since its budget decides whether compiling pays."""
    info = executor.describe(name, device)
    preset = fitting_preset(info.platform, info.memory_bytes)
    return executor.describe(name, device, load_preset(preset).task.train_seconds), preset


def text(found: dict[str, Any]) -> str:
    """The same for a person."""
    lines = []
    for name, entry in found["backends"].items():
        title = f"{name} ({registry.facts(name).TITLE})"
        if entry["usable"]:
            device = DeviceInfo(**entry["device"])
            lines += [f"{title}: usable, {_on(device)}", *_choices(device, entry["preset"])]
        elif on_processor := entry.get("on_processor"):
            device = DeviceInfo(**on_processor["device"])
            lines += [
                f"{title}: usable on the processor only: {entry['problem']}",
                f"  {_on(device)}",
                *_choices(device, on_processor["preset"]),
                f"  hint: {entry['hint']}",
            ]
        else:
            lines += [f"{title}: not usable: {entry['problem']}", f"  hint: {entry['hint']}"]
    if agents := found.get("agents"):
        lines += _agents(agents)
    if search := found.get("search"):
        lines.append(f"a search would use: {search['reason']}")
    sandbox = found["sandbox"]
    if sandbox["usable"]:
        lines.append(f"sandbox: usable: {sandbox['reason']}")
    else:
        lines.append(f"sandbox: not usable: {sandbox['problem']}; candidates are guarded in their process alone")
        lines += [f"  hint: {sandbox['hint']}"] if sandbox["hint"] else []
    return "\n".join(lines)


def _on(device: DeviceInfo) -> str:
    count = f" x {device.count}" if device.count > 1 else ""
    return f"on {device.name}{count} ({device.platform}), {device.framework}"


def _choices(device: DeviceInfo, preset: str) -> Iterator[str]:
    """What a search on this device would choose, and why."""
    if why := device.reasons.get("platform"):
        yield f"  {why}"
    choices = {
        "dtype": device.dtype,
        "attention": device.attention,
        "compile": "yes" if device.compile else "no",
        "peak_flops": flops(device.peak_flops),
    }
    for field, value in choices.items():
        yield f"  {field.replace('_', ' '):<10s} {value}: {device.reasons.get(field, 'no reason given')}"
    yield f"  preset     {preset}"
    yield f"  memory     {device.memory_bytes / 1e9:.1f} GB"


def _agents(found: dict[str, Any]) -> list[str]:
    """What there is for agents, and which one a search would ask."""
    sdk = f"installed, {found['anthropic']}" if found["anthropic"] else f"not installed; {install_hint('claude')}"
    return [
        "agents:",
        f"  anthropic SDK  {sdk}",
        f"  key            {found['key'] + ' is set' if found['key'] else 'none set (ANTHROPIC_API_KEY)'}",
        f"  commands       {', '.join(found['commands']) or 'neither claude nor codex found'}",
        *(f"  {line}" for line in found["auto"]),
    ]
