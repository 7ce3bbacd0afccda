"""Whether measurements run in a sandbox of the operating system: the choice, said with its reason."""

from __future__ import annotations

from autoresearch.core import sandbox
from autoresearch.core.contract import DeviceInfo
from autoresearch.core.errors import AutoresearchError, BackendUnavailable
from autoresearch.core.executor import LocalExecutor
from autoresearch.core.history import History
from autoresearch.core.sandbox import Sandbox
from autoresearch.core.task import Settings
from autoresearch.core.view import View


def choose_sandbox(settings: Settings, device: DeviceInfo, view: View) -> Sandbox | None:
    """The sandbox that `settings.sandbox` asks for, where the backend finds the same device in it.

    Raises:
        UsageError: an unknown setting.
        BackendUnavailable: it is "on", and there is none, or the device can't be used in it.
    """
    found = sandbox.choose(settings.sandbox)
    reason = found.reason
    if found.sandbox is not None:
        if not (problem := _problem(found.sandbox, settings, device)):
            view.detail(f"sandbox: {reason}")
            return found.sandbox
        if settings.sandbox == "on":
            raise BackendUnavailable(
                f"sandbox = on, but in {found.sandbox.name} {problem}", "sandbox = auto goes on without one"
            )
        reason = f"in {found.sandbox.name} {problem}"
    guarded = "candidates are guarded in their process alone (docs/threat-model.md)"
    if settings.sandbox == "off":
        view.detail(f"no sandbox: {reason}; {guarded}")
    else:
        view.note(f"no sandbox: {reason}; {guarded}")
        if found.hint:
            view.detail(found.hint)
    return None


def _problem(chosen: Sandbox, settings: Settings, device: DeviceInfo) -> str:
    """Why the device can't be used in it; "" where it can."""
    try:
        inside = LocalExecutor(sandbox=chosen).describe(settings.backend, settings.device, settings.task.train_seconds)
    except AutoresearchError as error:
        return f"backend {settings.backend} doesn't start: {error.message}"
    if (inside.platform, inside.name, inside.count) != (device.platform, device.name, device.count):
        return f"the device is {inside.name} x {inside.count} instead of {device.name} x {device.count}"
    return ""


def changed(history: History, chosen: Sandbox | None) -> str:
    """What to say where a run goes on with another isolation than it had; "" where it is the same."""
    results = [result for record in history.experiments.values() for result in record.results if result.guards]
    if not results or (was := sandbox.GATE in results[-1].guards) == (chosen is not None):
        return ""
    return (
        f"measurements before this one ran {'in a sandbox' if was else 'without a sandbox'}, those from now on "
        f"{'in one' if chosen else 'without one'}; scores stay comparable: it changes what is reachable, not the speed"
    )
