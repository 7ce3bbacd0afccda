"""Scratch folders: gone with the block, and after a kill with the next start; those in use are left alone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from autoresearch.core import scratch
from autoresearch.core.process import kill_inside, orphans_killed
from autoresearch.core.scratch import PREFIX, scratch_folder, sweep

HOLDER = """
import subprocess, sys, time
from autoresearch.core.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "train.py").write_text("a = 1")
    if len(sys.argv) > 1:
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], cwd=folder, env={},
                                start_new_session=True)
        print(left.pid, flush=True)
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """The system's folder for temporary files, of this test alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


@pytest.fixture
def holder(temporary):
    """Start a process that works in a scratch folder: `holder("leaves")` leaves a child there; lines of its output."""
    running = []

    def start(*args):
        process = subprocess.Popen([sys.executable, "-c", HOLDER, *args], stdout=subprocess.PIPE, text=True)
        running.append(process)
        said = []
        while (line := process.stdout.readline().strip()) != "ready":
            said.append(line)
        return process, said

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()


def folders(temporary: Path) -> list[Path]:
    return sorted(temporary.glob(f"{PREFIX}*"))


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_folder_is_removed_also_after_an_error(temporary):
    with pytest.raises(ValueError, match="planned"), scratch_folder() as folder:
        (folder / "deep").mkdir()
        assert folders(temporary) == [folder]
        assert folder.stat().st_mode & 0o777 == 0o700
        raise ValueError("planned")
    assert folders(temporary) == []


def test_what_a_killed_process_left_is_removed_and_what_is_in_use_stays(temporary, holder):
    dead, _ = holder()
    alive, _ = holder()
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    with scratch_folder() as own:
        assert len(folders(temporary)) == 3
        sweep()
        assert own in folders(temporary)
        assert len(folders(temporary)) == 2, "the one of the process that lives stays"
    assert alive.poll() is None


def test_without_the_lock_a_folder_in_use_would_go(temporary, holder, monkeypatch):
    holder()
    monkeypatch.setattr(scratch.fcntl, "flock", lambda *args: None)
    sweep()
    assert folders(temporary) == []


def test_what_still_works_in_a_dead_folder_is_ended(temporary, holder):
    process, (pid,) = holder("leaves")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not gone(int(pid)), "it has a session of its own and no mark"
    sweep()
    assert gone(int(pid))
    assert folders(temporary) == []


def test_only_folders_of_ours_are_taken(temporary):
    elsewhere = temporary / "precious"
    elsewhere.mkdir()
    (temporary / "autoresearch-notes").mkdir()
    (temporary / f"{PREFIX}link").symlink_to(elsewhere)
    (temporary / f"{PREFIX}file").write_text("")
    sweep()
    assert {path.name for path in temporary.iterdir()} == {
        "precious", "autoresearch-notes", f"{PREFIX}link", f"{PREFIX}file"
    }  # fmt: skip


def test_a_folder_that_is_swept_before_its_lock_is_made_anew(temporary, monkeypatch):
    flock, swept = scratch.fcntl.flock, []

    def steal(lock, how):
        if not swept:
            swept.extend(folders(temporary))
            swept[0].rmdir()
        flock(lock, how)

    monkeypatch.setattr(scratch.fcntl, "flock", steal)
    with scratch_folder() as folder:
        assert folder.is_dir()
        assert folder != swept[0]


def test_processes_of_other_folders_stay(tmp_path):
    inside, beside = tmp_path / "in", tmp_path / "in-2"
    for folder in (inside, beside):
        folder.mkdir()
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    here, there = (subprocess.Popen(sleep, cwd=folder, start_new_session=True) for folder in (inside, beside))
    try:
        kill_inside(inside, since=time.time() + 60)
        assert here.poll() is None, "it was there before"
        kill_inside(inside)
        assert here.wait(timeout=20) == -signal.SIGKILL
        assert there.poll() is None
    finally:
        for process in (here, there):
            process.kill()
            process.wait()


ESCAPES = """
import os, subprocess, sys
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL, cwd="/", env={}, start_new_session=True)
print(left.pid, flush=True)
os._exit(0)
"""


def escaped() -> int:
    """A process that left session, environment, folder and parent."""
    return int(subprocess.run([sys.executable, "-c", ESCAPES], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process doesn't adopt its orphans")
def test_orphans_are_adopted_and_killed():
    before = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with orphans_killed():
            pid = escaped()
            assert not gone(pid)
        assert not psutil.pid_exists(pid), "not even a zombie"
        assert before.poll() is None, "what ran before stays"
        pid = escaped()
        assert not gone(pid), "outside of the block nothing is adopted"
        os.kill(pid, signal.SIGKILL)
    finally:
        before.kill()
        before.wait()
