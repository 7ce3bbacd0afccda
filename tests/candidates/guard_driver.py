"""Run the attacks of one group under a guard that sees, or a blind one: prints {name: [gained, violation]}.

python guard_driver.py GROUP seeing|blind FOLDER
"""

import importlib.util
import json
import os
import shutil
import sys
import threading
import types
from contextlib import suppress
from pathlib import Path

import numpy as np

from autoresearch.backends.null import device
from autoresearch.core import channel, clock, measure
from autoresearch.core.errors import CandidateFailure
from autoresearch.core.guard import Guard

USED = (channel, clock, measure, device)
ADDED = ((measure.Evaluator, "__getattribute__"), (clock, "max"))
"""What attacks add where nothing was."""


def main() -> None:
    group, mode, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    scratch, cache = folder / "scratch", folder / "cache"
    scratch.mkdir()
    cache.mkdir()
    os.chdir(scratch)
    files = {
        "rows": folder / "val.rows.npy",
        "journal": folder / "journal.jsonl",
        "home": folder / "home.txt",
        "victim": folder / "victim.txt",
        "tree": folder / "tree",
        "cached": cache / "left.txt",
        "cache": cache,
        "shm": Path("/dev/shm") / f"autoresearch-test-{os.getpid()}",
    }
    np.save(files["rows"], np.ones((3, 5), np.uint16))
    files["tree"].mkdir()
    candidate = scratch / "train.py"
    shutil.copy(Path(__file__).with_name("attacks.py"), candidate)
    lib = folder / "lib"
    for package in ("corpus", "framework"):
        (lib / package).mkdir(parents=True)
    (lib / "corpus" / "text.txt").write_text("a secret")
    (lib / "corpus" / "__init__.py").write_text(
        "from pathlib import Path\n\n\ndef text():\n    return Path(__file__).with_name('text.txt').read_text()\n"
    )
    shutil.copy(Path(__file__).with_name("framework.py"), lib / "framework" / "__init__.py")
    (lib / "framework" / "table.txt").write_text("data of its own")
    files |= {"text": lib / "corpus" / "text.txt", "own": lib / "framework" / "table.txt"}
    sys.path.append(str(lib))
    spec = importlib.util.spec_from_file_location("train", candidate)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.FILES.update({name: str(path) for name, path in files.items()})
    guard = Guard(scratch, cache)
    originals = {name: value for name, value in guard._originals.items() if "core.guard" not in name}
    if mode == "blind":
        Guard._judge = lambda self, event, args: ""
        Guard._thread_of_candidate = lambda self: ""
        guard._originals = {}
    told = {}
    for name, attack in module.attacks(getattr(module, group)).items():
        for kind in ("journal", "home", "victim", "cached"):
            files[kind].write_text("secret")
        guard.arm()
        guard.violation = ""
        try:
            gained = repr(attack())[:60]
        except BaseException as error:
            gained = "" if isinstance(error, CandidateFailure) else f"failed: {error!r}"
        guard.disarm()
        with suppress(CandidateFailure):
            guard.check()
        told[name] = [gained, guard.violation]
        restore(originals)
        if group == "Threads":
            module.STOP.set()
            for thread in threading.enumerate():
                if thread is not threading.current_thread():
                    thread.join(timeout=0.2)
            module.STOP.clear()
    files["shm"].unlink(missing_ok=True)
    print(json.dumps(told))


def restore(originals: dict) -> None:
    """Undo what the group Patches did."""
    for name, value in originals.items():
        owner, attribute = owner_of(name)
        if callable(owner) and not isinstance(owner, type):
            function = owner if isinstance(owner, types.FunctionType) else owner.__wrapped__
            if getattr(function, attribute) is not value:
                setattr(function, attribute, value)
        elif owner is not None and vars(owner).get(attribute, value) is not value:
            setattr(owner, attribute, value)
    for owner, attribute in ADDED:
        if attribute in vars(owner):
            delattr(owner, attribute)


def owner_of(name: str) -> tuple:
    """The module or class that holds the name of an entry, and the last part of it."""
    *parts, attribute = name.split(".")
    for size in range(len(parts), 0, -1):
        if (owner := sys.modules.get(".".join(parts[:size]))) is not None:
            for part in parts[size:]:
                owner = vars(owner).get(part)
                if not callable(owner):
                    return None, attribute
            return owner, attribute
    return None, attribute


main()
