"""Run the attacks of one group under a guard that sees, or a blind one: prints {name: [gained, violation]}.

python guard_driver.py GROUP seeing|blind FOLDER
"""

import importlib.util
import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

from autoresearch.backends.null import device
from autoresearch.core import channel, clock, measure
from autoresearch.core.errors import CandidateFailure
from autoresearch.core.guard import Guard

USED = (channel, clock, measure, device)


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
    (folder / "lib").mkdir()
    shutil.copy(Path(__file__).with_name("framework.py"), folder / "lib")
    sys.path.append(str(folder / "lib"))
    spec = importlib.util.spec_from_file_location("train", candidate)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.FILES.update({name: str(path) for name, path in files.items()})
    guard = Guard(scratch, cache)
    originals = dict(guard._originals)
    if mode == "blind":
        Guard._judge = lambda self, event, args: ""
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
    files["shm"].unlink(missing_ok=True)
    print(json.dumps(told))


def restore(originals: dict) -> None:
    """Undo what the group Patches did."""
    for name, value in originals.items():
        owner, attribute = name.rsplit(".", 1)
        module, _, cls = owner.partition(".Evaluator")
        target = sys.modules[module] if module in sys.modules else None
        if cls == "" and "Evaluator" in owner:
            target = getattr(target, "Evaluator")
        if target is not None and vars(target).get(attribute) is not value:
            setattr(target, attribute, value)


main()
