"""What a person sees while a search runs: a live panel on a terminal, plain and rate-limited lines elsewhere."""

from __future__ import annotations

import os
from typing import TextIO

from rich.console import Console

from autoresearch.core.view import View
from autoresearch.report.live import LiveView
from autoresearch.report.plain import PlainView


def make_view(stream: TextIO, verbose: bool = False) -> View:
    """The live view where `stream` is a terminal that can move its cursor, else the plain one."""
    console = Console(file=stream)
    # Continuous integration often offers a terminal, and keeps every frame that is drawn on it.
    live = console.is_terminal and not console.is_dumb_terminal and not os.environ.get("CI")
    return LiveView(console, verbose) if live else PlainView(stream, verbose)
