"""The command that `command:CMD` names: a known coding agent by its name, or a command line of the user's own."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autoresearch.core.errors import UsageError
from autoresearch.core.process import without_secrets

# The prompt is their standard input. Each may edit files in its current directory and asks nobody; neither may run
# programs of its own outside a sandbox. Events line by line, so that one who works isn't taken for one who hangs.
_CLAUDE = (
    "claude -p --output-format stream-json --verbose --permission-mode acceptEdits --tools Read,Edit,Write,Glob,Grep "
    "--strict-mcp-config --no-session-persistence"
)
_CODEX = "codex exec --json --skip-git-repo-check --ephemeral --sandbox workspace-write -o {output} -"

_KEY_OPTION = re.compile(r"([\w-]*(?:key|token|secret|passw|credential)[\w-]*(?:=|\s+))\S+", re.IGNORECASE)


@dataclass(frozen=True)
class CommandLine:
    """A command with placeholders: {prompt} and {output}, two files, and {dir}, its current directory."""

    words: tuple[str, ...]
    budget: tuple[str, ...] = ()
    """Words that are added where a cap on cost is set, with {budget}, in dollars."""

    @property
    def name(self) -> str:
        """Of the program."""
        return Path(self.words[0]).name

    def filled(self, values: Mapping[str, str], with_budget: bool) -> list[str]:
        """The command for one call; braces that name no placeholder stay as they are."""
        words = [*self.words, *(self.budget if with_budget else ())]
        for name, value in values.items():
            words = [word.replace(f"{{{name}}}", value) for word in words]
        return words


def command_line(argument: str) -> CommandLine:
    """Read what follows `command:`.

    `claude` and `codex` alone stand for a headless call; options after them are added to it, e.g. `claude --model
    opus`. A line that asks for a headless call itself (`claude -p …`, `codex exec …`), and any other one, is taken word
    by word, without a shell.

    Raises:
        UsageError: it can't be read, or its program isn't here.
    """
    try:
        words = shlex.split(argument)
    except ValueError as error:
        raise UsageError(f"command:{argument} can't be read: {error}", "quote it as in a shell") from error
    if not words:
        raise UsageError("command: names no command", "e.g. --agent command:claude, or 'command:my-agent {prompt}'")
    budget: tuple[str, ...] = ()
    own = words[1:]
    if words[0] == "claude" and not {"-p", "--print"} & set(own):
        words, budget = [*shlex.split(_CLAUDE), *own], ("--max-budget-usd", "{budget}")
    elif words[0] == "codex" and not {"exec", "e"} & set(own):
        template = shlex.split(_CODEX)
        words = [*template[:-1], *own, template[-1]]
    return CommandLine((_program(words[0]), *words[1:]), budget)


def recorded(agent: str) -> str:
    """`--agent` as the journal keeps it: without keys, and without what follows an option that is named like one."""
    return _KEY_OPTION.sub(r"\1…", without_secrets(agent))


def _program(word: str) -> str:
    """Its absolute path, as the command runs in another directory.

    Raises:
        UsageError: there is no such program.
    """
    found = shutil.which(word)
    if found is None:
        raise UsageError(f"command: there is no program {word!r} here", "install it, or give its path")
    return str(Path(found).absolute())
