"""What tests of the whole project share: prepared data, small candidates, and real measurements of them."""

import hashlib
import importlib.util
import os
import re
import signal
import sys
import textwrap
import time
import uuid
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autoresearch.core import executor, registry
from autoresearch.core.executor import LocalExecutor, Request
from autoresearch.core.task import Limits, Task
from autoresearch.prepare.build import prepare

# Background jobs of a shell ignore it, and so would all that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

CANDIDATES = Path(__file__).parent / "candidates"


@pytest.fixture(scope="session")
def task() -> Task:
    """Twenty steps of a quarter of a second at most: the same losses on every machine."""
    return Task(
        data="stories", seq_len=64, vocab_size=512, val_tokens=4_096, train_seconds=20, train_steps=20, eval_rows=16
    )


@pytest.fixture(scope="session")
def dataset(task, tmp_path_factory):
    """0.3 MB of stories: train, val and test rows of 65 tokens."""
    return prepare(task, "stories:0.3", tmp_path_factory.mktemp("cache"), lambda what, share: None, workers=1)


@pytest.fixture(scope="session")
def device():
    return LocalExecutor().describe("null", "auto")


@pytest.fixture(scope="session")
def candidate():
    """Build a train.py for the null backend: `candidate(step="…", logits="…")` inserts code at the named places."""

    def build(file: str = "bigram.py", **faults: str) -> str:
        lines = []
        for line in (CANDIDATES / file).read_text().splitlines():
            place = line.strip().removeprefix("# <").removesuffix(">")
            code = faults.pop(place, None) if line.strip() == f"# <{place}>" else None
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(line if code is None else textwrap.indent(textwrap.dedent(code).strip("\n"), indent))
        assert not faults, f"no such place: {sorted(faults)}"
        return "\n".join(lines) + "\n"

    return build


class Lab:
    """Measures candidates, and sees to it that nothing is left of them."""

    def __init__(self, folder: Path, task: Task, dataset, device) -> None:
        self.folder = folder
        self.log = folder / "logs" / "1.log"
        self.events: list[dict] = []
        self.executor = LocalExecutor()
        self.dataset = dataset
        self.mark = ""
        """Of the latest measurement."""
        self._task, self._device = task, device

    def measure(
        self, source: str, *, seed=1, limits: Limits | None = None, probe=0.0, on_event=None, leftovers=False, **task
    ):
        """One measurement; keyword arguments replace fields of the task. `leftovers`: don't look for any.

        `probe`: seconds of each device probe; two of half a second would take longer than the rest.
        """
        self.mark = uuid.uuid4().hex
        self.events.clear()

        def note(event: dict) -> None:
            self.events.append(event)
            if on_event is not None:
                on_event(event)

        request = Request(
            source=source,
            source_hash=hashlib.sha256(source.encode()).hexdigest(),
            device=self._device,
            task=replace(self._task, **task),
            limits=replace(limits or Limits(setup_seconds=60, eval_seconds=60), probe_seconds=probe),
            seed=seed,
            comparability_key="key",
            mark=self.mark,
        )
        fds = psutil.Process().num_fds()
        measured = self.executor.measure(request, self.dataset, self.log, note)
        if leftovers:
            return measured
        assert not processes_with(lambda process: process.environ().get("AUTORESEARCH_CHILD") == self.mark)
        assert not processes_with(lambda p: p.ppid() == os.getpid() and "autoresearch.core.child" in p.cmdline())
        assert not list(self.folder.glob("autoresearch-*")), "a scratch directory is left"
        wait_until(lambda: psutil.Process().num_fds() <= fds)
        return measured

    def result(self, source: str, **options):
        return self.measure(source, **options).result

    def fails(self, source: str, status: str, reason: str, **options):
        """The result of a measurement that must end with a status, and a reason that matches."""
        result = self.result(source, **options)
        assert (result.status, result.val_bpb) == (status, None), result.reason
        assert re.search(reason, result.reason), result.reason
        return result


def processes_with(wanted) -> list[psutil.Process]:
    """Processes that run, of which `wanted` is true."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and wanted(process):
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until(condition) -> None:
    """Fail where `condition` isn't met within a generous time."""
    for _ in range(200):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("the condition was not met within 4 s")


@pytest.fixture
def lab(tmp_path, monkeypatch, task, dataset, device):
    """Real measurements in child processes, their scratch directories in tmp_path."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return Lab(tmp_path, task, dataset, device)


@pytest.fixture(scope="session")
def find_processes():
    return processes_with


@pytest.fixture
def quick(monkeypatch):
    """A child that doesn't stop its clock is given up half a second after its budget."""
    monkeypatch.setattr(executor, "GRACE_SECONDS", 0.5)


@pytest.fixture
def plug_in(tmp_path, monkeypatch):
    """Install a backend `broken`, whose device.py is given, the way that packages of others do it."""

    def install(device_py: str) -> None:
        site = tmp_path / "site"
        (site / "broken").mkdir(parents=True)
        (site / "broken" / "__init__.py").write_text(
            "from autoresearch.backends.null import *\nINSTALL_HINT = 'pip install broken-framework'\n"
        )
        (site / "broken" / "device.py").write_text(device_py)
        (site / "broken-1.0.dist-info").mkdir()
        (site / "broken-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
        (site / "broken-1.0.dist-info" / "entry_points.txt").write_text("[autoresearch.backends]\nbroken = broken\n")
        monkeypatch.syspath_prepend(site)
        monkeypatch.setenv("PYTHONPATH", str(site))
        registry._packages.cache_clear()

    yield install
    registry._packages.cache_clear()
    sys.modules.pop("broken", None)


@pytest.fixture(scope="session")
def api():
    """The module tests/agent/messages_server.py: what scripts of the local Messages API are made of."""
    path = Path(__file__).parent / "agent" / "messages_server.py"
    spec = importlib.util.spec_from_file_location("messages_server", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def serve(api, monkeypatch):
    """Start a local Messages API: `serve(api.answer(…), api.DROP, …)`; this process is told its address."""
    servers = []

    def start(*script):
        server = api.MessagesServer(*script)
        servers.append(server)
        for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        return server

    yield start
    for server in servers:
        server.close()
