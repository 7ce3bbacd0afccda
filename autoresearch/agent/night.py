"""The main job: set up, search, and the last words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoresearch.agent import start
from autoresearch.agent.agents import make_proposer
from autoresearch.agent.lab import Lab, Run
from autoresearch.agent.ledger import Ledger
from autoresearch.agent.loop import search
from autoresearch.agent.reader import RunReader
from autoresearch.agent.stop import Stops
from autoresearch.core.amounts import dollars
from autoresearch.core.errors import AutoresearchError
from autoresearch.core.process import kill_marked
from autoresearch.core.progress import recorded
from autoresearch.core.runs import charges_elsewhere
from autoresearch.core.view import View


def run(directory: Path, tag: str, options: Mapping[str, Any], program: Path | None, view: View) -> int:
    """Search until it ends, and say how it ended; the exit code.

    Args:
        directory, tag, options, program, view: see `start.open_run`.

    Raises:
        AutoresearchError: see `search`; also where the proposer failed too often in a row.
        KeyboardInterrupt: after the stop was recorded and the last words were said.
    """
    with (
        start.open_run(directory, tag, options, program, view, agents=True) as opened,
        recorded(view, opened.folder) as view,
    ):
        lab = Lab(opened, opened.executor(), view)
        for call in lab.history.open_calls.values():
            view.note(f"a call of {call.agent} was cut off while it ran: perhaps billed, {dollars(call.usd)} charged")
        ledger = ledger_of(opened, lab)
        stops, reader = Stops(opened.settings.stop, lab.history, view.note), RunReader(lab.history, opened.workspace)
        proposer, notes = make_proposer(opened.settings, opened.workspace.directory, ledger, reader, lab.problem, stops)
        for note in notes:
            view.note(note)
        try:
            ending = search(lab, proposer, view, ledger, stops)
        except KeyboardInterrupt:
            start.say_closing(opened, lab.history, view)
            raise
        start.say_closing(opened, lab.history, view)
    if ending.exit_code == AutoresearchError.exit_code:
        raise AutoresearchError(ending.reason, ending.hint)
    if ending.hint:
        view.note(ending.hint)
    return ending.exit_code


def ledger_of(run: Run, lab: Lab) -> Ledger:
    """Where this run's calls are charged, those of the workspace's other runs counted towards the day.

    A command that outlived the search which had called it is ended: nobody waits for it any more.
    """
    settings = run.settings
    for call in lab.history.open_calls:
        kill_marked(call)
    elsewhere = charges_elsewhere(run.workspace, run.tag) if settings.caps.day_usd else []
    return Ledger(lab.log, lab.history, settings.caps, settings.stop.max_cost, elsewhere)
