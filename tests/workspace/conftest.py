"""git as a fresh user has it, and a repository; makes the helpers of this folder importable."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from git_harness import make_repository


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """git as a fresh user has it, apart from a name; the user's global configuration, for tests to extend."""
    for name in [name for name in os.environ if name.startswith("GIT_") or name == "EMAIL"]:
        monkeypatch.delenv(name)
    path = tmp_path / "gitconfig"
    path.write_text("[user]\n\tname = Zoë\n\temail = zoe@example.org\n[init]\n\tdefaultBranch = trunk\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "a folder with späces")
