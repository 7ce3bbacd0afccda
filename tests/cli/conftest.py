"""The command line as people start it: a process of its own, in a folder of its own, on the null backend."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

# Eight steps instead of seconds: the same scores on every machine, and a measurement in 0.2 s.
TOML = """\
preset = "tinystories/smoke"
backend = "null"
source = "stories:0.3"

[task]
train_steps = 8
train_seconds = 30
val_tokens = 1024
"""


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
    """A user without a configuration of git, with prepared data that all tests share."""
    home = tmp_path_factory.mktemp("home")
    strange = ("GIT_", "EMAIL", "XDG_", "CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "PYTHON", "AUTORESEARCH")
    strange += ("ANTHROPIC_",)  # a key would make Claude the agent
    kept = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    return {
        **kept,
        "AUTORESEARCH_CACHE": str(home / "cache"),
        "HOME": str(home),
        "GIT_CONFIG_NOSYSTEM": "1",
        "HF_HUB_OFFLINE": "1",
        "LC_ALL": "C.UTF-8",
    }


@pytest.fixture(scope="session")
def autoresearch(environment) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line: `autoresearch("status", "--json", cwd=…, env={…})`."""

    def run(*args, cwd: Path, env: dict[str, str] | None = None, module: str = "autoresearch", **options):
        return subprocess.run(
            [sys.executable, "-m", module, *map(str, args)],
            cwd=cwd,
            env={**environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            **options,
        )

    return run


@pytest.fixture(scope="session")
def git(environment) -> Callable[..., str]:
    """Run git in a folder; its output without the last newline."""

    def run(folder: Path, *args: str) -> str:
        identity = ("-c", "user.name=Zoë", "-c", "user.email=zoe@example.org")
        done = subprocess.run(
            ["git", *identity, *args], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.removesuffix("\n")

    return run


@pytest.fixture(scope="session")
def _template(tmp_path_factory, autoresearch, git) -> Path:
    folder = tmp_path_factory.mktemp("template") / "lab"
    made = autoresearch("init", folder, "--backend", "null", cwd=folder.parent)
    assert made.returncode == 0, made.stderr
    (folder / "autoresearch.toml").write_text(TOML)
    git(folder, "commit", "--quiet", "--all", "-m", "eight steps")
    return folder


@pytest.fixture
def workspace(_template, tmp_path) -> Path:
    """A workspace on the branch main, without a run."""
    return Path(shutil.copytree(_template, tmp_path / "lab", symlinks=True))


@pytest.fixture(scope="session")
def null_source() -> str:
    from autoresearch.core.registry import facts

    return facts("null").BASELINE.read_text()


@pytest.fixture
def ideas(tmp_path, null_source) -> Callable[..., Path]:
    """A folder of candidates: `ideas(good=2.0, bad=0.01)`, each a learning rate or the text of a file."""

    def write(**candidates: float | str) -> Path:
        folder = tmp_path / "ideas"
        folder.mkdir(exist_ok=True)
        for name, content in candidates.items():
            if not isinstance(content, str):
                content = null_source.replace("LEARNING_RATE = 0.3", f"LEARNING_RATE = {content}")
                assert str(candidates[name]) in content
            path = folder / (name.replace("_patch", ".patch") if name.endswith("_patch") else f"{name}.py")
            path.write_text(content)
        return folder

    return write


@pytest.fixture(scope="session")
def journal() -> Callable[..., list[dict]]:
    """The events of the only run in a workspace, or of one by its tag."""

    def read(workspace: Path, tag: str = "*") -> list[dict]:
        (path,) = (workspace / ".autoresearch").glob(f"{tag}/journal.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    return read


@pytest.fixture(scope="session")
def left_over() -> Callable[[Path], list[str]]:
    """Command lines of the processes that a measurement of this workspace's journal has left behind."""

    def find(workspace: Path) -> list[str]:
        marks = set()
        for path in (workspace / ".autoresearch").glob("*/journal.jsonl"):
            events = [json.loads(line) for line in path.read_text().splitlines()]
            marks |= {event["mark"] for event in events if event["event"] == "started"}
        found = []
        for process in psutil.process_iter():
            try:
                mark = process.environ().get("AUTORESEARCH_CHILD")
                if mark in marks and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline()))
            except psutil.Error:
                continue
        return found

    return find
