"""What a search would do next, without doing it: nothing is trained, sent or written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Any

from autoresearch.agent import start
from autoresearch.agent.agents import check_prices, check_replayed, choose, make_proposer
from autoresearch.agent.claude import Claude
from autoresearch.agent.command import Command
from autoresearch.agent.context import context_of
from autoresearch.agent.estimate import command_text, estimate_text
from autoresearch.agent.folder import find_workspace, workspace_files
from autoresearch.agent.instructions import KNOWLEDGE, Instructions
from autoresearch.agent.ledger import Ledger
from autoresearch.agent.prices import load_prices
from autoresearch.agent.proposer import Context, Proposer
from autoresearch.agent.reader import RunReader
from autoresearch.core.constants import constants
from autoresearch.core.executor import LocalExecutor
from autoresearch.core.records import Record
from autoresearch.core.task import SETTINGS
from autoresearch.core.view import View
from autoresearch.core.workspace import TRAIN, Workspace


def dry_run(directory: Path, tag: str, options: Mapping[str, Any], program: Path | None, view: View) -> None:
    """Say what a search would do, with its next proposal, or the prompt that asks for it and what a night costs.

    Raises:
        AutoresearchError: what would end the search before its first experiment, a missing key apart.
    """
    place = find_workspace(directory)
    history, chosen = start.existing(place, tag)
    settings, device = start.settings_for(place, start.resumed(history, options, chosen), LocalExecutor(), view)
    check_prices(settings, place)
    check_replayed(settings, place, chosen)
    text = start.read_program(place, program)
    reader = None
    if (place / SETTINGS).is_file():
        workspace, best = Workspace(place), history.incumbent
        reader = RunReader(history, workspace)
        source = workspace.read(best.commit) if best else workspace.train_path.read_text(encoding="utf-8")
        view.note(f"run {chosen} in {place}: would be {'resumed' if history.run else 'new'}")
    else:
        source = workspace_files(settings)[TRAIN]
        view.note(f"workspace: {place} (would be made)")
    view.note(start.what(settings, device))
    ledger = Ledger(lambda event, **data: None, history, settings.caps, settings.stop.max_cost)
    proposer, notes = make_proposer(settings, place, ledger, reader)
    for note in notes:
        view.note(note)
    knowledge = Instructions(text, None, place / KNOWLEDGE, view.note).knowledge
    incumbent = history.incumbent or _to_be(source)
    context = context_of(
        history, incumbent, source, settings, device, text, findings=knowledge, budget_usd=ledger.room()
    )
    shares = [part.share for part in choose(settings.agent)[0]]
    parts = getattr(proposer, "parts", (proposer,))
    for made, share in zip(parts, shares, strict=True):
        part = getattr(made, "writer", made)  # of a reviewed one
        part_of_all = share / sum(shares)
        part = getattr(part, "writer", part)  # nothing is sent, so nothing is reviewed
        if isinstance(part, Claude):
            request = {"model": settings.claude.model, "max_tokens": settings.claude.max_tokens, **part.prompt(context)}
            for line in prompt_lines(request):
                view.note(line)
            view.note(
                estimate_text(settings, history, request, load_prices(settings.claude.prices, place), part_of_all)
            )
        elif isinstance(part, Command):
            view.note(f"--- prompt of {part.name} ---\n{part.prompt(context)}--- end of the prompt ---")
            view.note(command_text(settings, history, part.name, part_of_all))
        else:
            _propose(part, context, bool(history.incumbent), view)


def _propose(proposer: Proposer, context: Context, resumed: bool, view: View) -> None:
    proposal = proposer.propose(context)
    if proposal is None:
        view.note(f"next proposal ({proposer.name}): none")
        return
    view.note(f"next proposal{'' if resumed else ', after the baseline'}: {proposal.hypothesis}")
    before, after = context.incumbent_source.splitlines(), proposal.source.splitlines()
    for line in unified_diff(before, after, TRAIN, TRAIN, lineterm="", n=1):
        view.note(f"  {line}")


def prompt_lines(request: Mapping[str, Any]) -> Iterator[str]:
    """A request to a model as a person reads it: each text as it is sent, under a line that says what it is."""
    rest = {name: value for name, value in request.items() if name not in ("system", "tools", "messages")}
    yield f"--- request: {json.dumps(rest)} ---"
    for tool in request.get("tools", ()):
        yield f"--- tool {tool['name']} ---"
        yield json.dumps(tool, ensure_ascii=False)
    yield from _texts("system", request.get("system", ""))
    for message in request["messages"]:
        yield from _texts(message["role"], message["content"])
    yield "--- end of the request ---"


def _texts(name: str, content: Any) -> Iterator[str]:
    for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        marks = {key: value for key, value in block.items() if key not in ("type", "text")}
        yield f"--- {name}{' ' + json.dumps(marks) if marks else ''} ---"
        yield block.get("text", json.dumps(block, ensure_ascii=False))


def _to_be(source: str) -> Record:
    """The baseline as it will be recorded, for a proposal before there is one."""
    return Record(
        number=0,
        blob="",
        hypothesis="baseline",
        category="baseline",
        proposer="",
        origin="",
        source_hash="",
        normalized_hash="",
        constants={name: constant.value for name, constant in constants(source).items()},
        diff_lines=0,
        parent=None,
        verdict="keep",
    )
