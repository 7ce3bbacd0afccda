"""What people tell the agents: program.md, and beside it knowledge.md; read anew before each proposal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

KNOWLEDGE = "knowledge.md"
KNOWLEDGE_CHARACTERS = 20_000
"""Of knowledge.md; what is longer is cut, as all of it is sent with each call."""


class Instructions:
    """The two texts. A file that can't be read for once is no reason to end a search: what was read last counts.

    Args:
        program: text of program.md, and `program_path`, where it is read again; None is never.
        knowledge_path: an optional file.
        note: takes what a person should know, each thing once.
    """

    def __init__(
        self, program: str, program_path: Path | None, knowledge_path: Path, note: Callable[[str], None]
    ) -> None:
        self._texts = {} if program_path is None else {program_path: program}
        self._program, self._program_path, self._knowledge_path = program, program_path, knowledge_path
        self._note = note
        self._said: set[str] = set()

    @property
    def program(self) -> str:
        return self._program if self._program_path is None else self._read(self._program_path)

    @property
    def knowledge(self) -> str:
        if not self._knowledge_path.exists():
            return ""
        text = self._read(self._knowledge_path)
        if len(text) > KNOWLEDGE_CHARACTERS:
            self._say(f"{KNOWLEDGE} has more than {KNOWLEDGE_CHARACTERS} characters: agents are told its beginning")
        return text[:KNOWLEDGE_CHARACTERS]

    def _read(self, path: Path) -> str:
        try:
            if path.exists() and not path.is_file():  # a pipe would be waited for
                raise OSError(f"{path.name} is no plain file")
            self._texts[path] = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            if self._texts.get(path):
                self._say(f"{path.name} is gone: agents are told what it said before")
        except (OSError, UnicodeDecodeError) as error:
            self._say(f"{path.name} can't be read: {error}; agents are told what it said before")
        return self._texts.get(path, "")

    def _say(self, problem: str) -> None:
        if problem not in self._said:
            self._said.add(problem)
            self._note(problem)
