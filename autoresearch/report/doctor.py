"""Per backend: usable on this machine or not, why, and what it would choose."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from autoresearch.core import registry, sandbox
from autoresearch.core.contract import DeviceInfo
from autoresearch.core.errors import AutoresearchError
from autoresearch.core.executor import LocalExecutor
from autoresearch.core.task import fitting_preset, load_preset


def examine(device: str) -> dict[str, Any]:
    """Ask every registered backend, each in a process of its own.

    Args:
        device: "auto", or a platform such as "cpu".

    Returns:
        By backend: `usable`, and `preset` and `device` (the fields of DeviceInfo) or `problem` and `hint`. For the
        sandbox: `usable`, `name` and `reason`, or `problem` and `hint`.
    """
    found: dict[str, Any] = {}
    for name in registry.names():
        try:
            info, preset = _describe(LocalExecutor(), name, device)
            found[name] = {"usable": True, "preset": preset, "device": asdict(info)}
        except AutoresearchError as error:
            found[name] = {"usable": False, "problem": error.message, "hint": error.hint}
    return {"asked": device, "backends": found, "sandbox": _sandbox()}


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
        title = registry.facts(name).TITLE
        if not entry["usable"]:
            lines += [f"{name} ({title}): not usable: {entry['problem']}", f"  hint: {entry['hint']}"]
            continue
        device = DeviceInfo(**entry["device"])
        count = f" x {device.count}" if device.count > 1 else ""
        lines.append(f"{name} ({title}): usable, on {device.name}{count} ({device.platform}), {device.framework}")
        if why := device.reasons.get("platform"):
            lines.append(f"  {why}")
        peak = f"{device.peak_flops / 1e12:.3g} TFLOP/s" if device.peak_flops else "unknown"
        choices = {
            "dtype": device.dtype,
            "attention": device.attention,
            "compile": "yes" if device.compile else "no",
            "peak_flops": peak,
        }
        for field, value in choices.items():
            lines.append(f"  {field.replace('_', ' '):<10s} {value}: {device.reasons.get(field, 'no reason given')}")
        lines.append(f"  preset     {entry['preset']}")
        lines.append(f"  memory     {device.memory_bytes / 1e9:.1f} GB")
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


def _agents(found: dict[str, Any]) -> list[str]:
    """What there is for agents, and which one a search would ask."""
    sdk = (
        f"installed, {found['anthropic']}"
        if found["anthropic"]
        else "not installed: pip install 'autoresearch[claude]'"
    )
    return [
        "agents:",
        f"  anthropic SDK  {sdk}",
        f"  key            {found['key'] + ' is set' if found['key'] else 'none set (ANTHROPIC_API_KEY)'}",
        f"  commands       {', '.join(found['commands']) or 'neither claude nor codex found'}",
        *(f"  {line}" for line in found["auto"]),
    ]
