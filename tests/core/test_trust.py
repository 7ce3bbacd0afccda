"""Cheats, measured end to end: none becomes a score. Each gate is also shown to be what stops it.

The probes of the evaluation have their own tests in test_measure.py, the events of the guard in test_guard.py.
"""

import json
import os
import re

import pytest

from autoresearch.core import executor, process
from autoresearch.core.executor import LocalExecutor, child_environment

# ---------------------------------------------------------------------------------------------------------------------
# Forgeries


FORGED = """
import json, os, struct
def forge(**message):
    data = json.dumps({"seal": "", "message": message, "arrays": {}}).encode()
    for fd in range(3, 20):
        try:
            os.write(fd, struct.pack(">Q", len(data)) + data)
        except OSError:
            pass
"""
RESULT = """
forge(event="clock_stop", steps=1)
forge(event="result", val_bpb=0.1, val_bytes=1, val_tokens=1, train_seconds=0.0, audit={})
"""


def test_a_printed_score_is_only_printed(lab, candidate):
    printed = 'print("---\\nval_bpb: 0.1\\nval_bpb:          0.100000", flush=True)'
    honest = lab.result(candidate())
    result = lab.result(candidate(top=printed, step=printed, end=printed))
    assert (result.status, result.val_bpb) == ("ok", honest.val_bpb)
    assert "val_bpb: 0.1" in result.log_tail
    lab.fails(candidate(end=printed + "\n1 / 0"), "crash", "^ZeroDivisionError")


@pytest.mark.parametrize("place", ["top", "setup", "step", "end", "logits"])
def test_a_forged_frame_is_no_score(lab, candidate, place):
    fault = FORGED + RESULT if place == "top" else RESULT
    lab.fails(
        candidate(**{"top": FORGED, place: fault}),
        "invalid",
        "^the result pipe was tampered with: a frame without the seal$",
    )


def test_without_the_seal_it_would_be_one(lab, candidate, monkeypatch):
    monkeypatch.setattr(process.secrets, "token_hex", lambda n: "")
    result = lab.result(candidate(top=FORGED, step=RESULT + "\nimport time; time.sleep(0.5)"))
    assert (result.status, result.val_bpb) == ("ok", 0.1)


@pytest.mark.parametrize("garbage", ["b'val_bpb: 0.1'", "bytes(100)", "b'\\xff' * 10**5"])
def test_garbage_in_the_pipe_is_no_score(lab, candidate, garbage, quick):
    step = f"import os\nfor fd in range(3, 20):\n    try: os.write(fd, {garbage})\n    except OSError: pass"
    result = lab.result(candidate(step=step), train_seconds=0.5)
    assert result.status in ("invalid", "timeout", "crash")
    assert result.val_bpb is None


def test_closed_pipes_are_no_score(lab, candidate, quick):
    result = lab.fails(candidate(step="import os; os.closerange(3, 50)"), "crash", "ended with exit code")
    result = lab.result(candidate(step="import os; os.closerange(3, 50)\nwhile True: pass"))
    assert result.status in ("invalid", "crash")


# `experiment` has no attribute that leads to the harness; the cells of its functions do.
REACH = "run = next(c.cell_contents for c in type(experiment).log.__closure__)\nclock = run._clock\n"
TRAINED_LONG = "while sum(_ for _ in range(1000)) and clock.elapsed < 2.0: pass\n"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (
            "clock.seconds = 10.0\nclock.max_steps = 3\n" + TRAINED_LONG,
            r"^training took \d\.\d s, the budget is 0\.5 s$",
        ),
        (TRAINED_LONG + "clock._start += 1.8\n", r"^the child counted 0\.\d s of training, the parent \d\.\d s$"),
    ],
    ids=["a longer budget", "a later start"],
)
def test_a_clock_that_the_candidate_reached_is_not_believed(lab, candidate, fault, reason):
    source = candidate(step=REACH + fault)
    lab.fails(source, "invalid", reason, train_seconds=0.5, train_steps=0)


def test_without_the_clock_of_the_parent_it_would_be(lab, candidate, monkeypatch):
    monkeypatch.setattr(executor._Attempt, "_wrong_clock", lambda *args: "")
    source = candidate(step=REACH + TRAINED_LONG + "clock._start += 1.8\n" + "clock.max_steps = 1\n")
    result = lab.result(source, train_seconds=0.5, train_steps=0)
    assert (result.status, result.steps) == ("ok", 1)


def test_a_giant_step_overruns_the_budget(lab, candidate):
    step = "start = clock()\nwhile clock() - start < 1.5: pass"
    lab.fails(
        candidate(top="from time import monotonic as clock", step=step),
        "invalid",
        r"^training took 1\.\d+ s, \d\.\d+ s beyond the budget and its tolerance$",
        train_seconds=0.5,
    )


def test_training_after_the_last_batch_overruns_too(lab, candidate):
    end = "start = clock()\nwhile clock() - start < 1.0: counts += 0.0"
    lab.fails(
        candidate(top="from time import monotonic as clock", end=end),
        "invalid",
        "beyond the budget and its tolerance",
        train_seconds=0.3,
    )


@pytest.mark.parametrize(
    ("patch", "name"),
    [
        ("import time\ntime.monotonic = time.perf_counter = lambda: 0.0", "time.monotonic"),
        ("import sys\nsys.modules['autoresearch.core.clock']._now = lambda: 0.0", "autoresearch.core.clock._now"),
        ("import sys\nsys.modules['autoresearch.core.measure'].Evaluator.score = lambda *a: 0", "Evaluator.score"),
        ("np.log = lambda x, np_log=np.log: np_log(x) * 0.5", "numpy.log"),
    ],
    ids=lambda value: value[-24:],
)
@pytest.mark.parametrize("place", ["top", "step", "end", "logits"])
def test_a_patched_harness_is_invalid(lab, candidate, patch, name, place):
    lab.fails(candidate(**{place: patch}), "invalid", f"^guard: .*{re.escape(name)} was replaced$")


# ---------------------------------------------------------------------------------------------------------------------
# Cheats of the evaluation: each probe by itself is tested in test_measure.py


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        ({"logits": "for t in range(0, 63, 5): out[np.arange(len(tokens)), t, tokens[:, t + 1]] += 3.0"}, "^causality"),
        ({"logits": "out[..., 256:] += tokens.mean(axis=0)[None, :, None] / 512"}, "^isolation"),
        ({"top": "calls = []", "logits": "calls.append(0)\nout = out * (1 + 0.01 * len(calls))"}, "^no memory"),
        ({"logits": "out = out[..., :-1]"}, "logits have the shape"),
        (
            {
                "top": "from time import monotonic as now\nlate = [None]",
                "logits": "start = now()\nwhile late and now() - start < 2.5: pass\nlate.clear()",
            },
            "^call time: the first call",
        ),
        (
            {
                "top": "from time import monotonic as now\ncalls = []",
                "logits": "calls.append(0)\nstart = now()\nwhile len(calls) == 3 and now() - start < 2.5: pass",
            },
            "^call time: a later call",
        ),
        ({"logits": "out[4:] = 1e9"}, "^spot check: logits so large"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_cheat_of_the_evaluation(lab, candidate, faults, reason):
    lab.fails(candidate(**faults), "invalid", reason)


# ---------------------------------------------------------------------------------------------------------------------
# What a candidate may touch: each event by itself is tested in test_guard.py


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("np.load({rows!r}, mmap_mode='r')", r"guard: reading .*val\.rows\.npy is not allowed"),
        ("open({journal!r}).read()", r"guard: reading .*journal\.jsonl is not allowed"),
        ("open('/etc/passwd').read()", "guard: reading /etc/passwd is not allowed"),
        ("import pathlib, pwd\nopen(pwd.getpwuid(0).pw_dir + '/.netrc')", r"guard: reading .*/\.netrc is not allowed"),
        ("open({journal!r}, 'w')", r"guard: writing .*journal\.jsonl is not allowed"),
        ("import os\nos.remove({journal!r})", r"guard: writing .*journal\.jsonl is not allowed"),
        ("import socket\nsocket.create_connection(('127.0.0.1', 9))", r"guard: socket\.\w+ is not allowed"),
        ("import subprocess\nsubprocess.run(['true'])", r"guard: subprocess\.Popen is not allowed"),
        ("import os\nos.fork() or os._exit(0)", r"guard: os\.fork is not allowed"),
        ("import ctypes\nctypes.string_at(0)", r"guard: ctypes\.\w+ is not allowed"),
        ("import gc\ngc.get_objects()", r"guard: gc\.get_objects is not allowed"),
    ],
    ids=lambda value: value[:40],
)
@pytest.mark.parametrize("caught", [False, True])
def test_the_guard_makes_it_invalid(lab, candidate, dataset, fault, reason, caught):
    journal = lab.folder / "journal.jsonl"
    journal.write_text("the only truth")
    fault = fault.format(rows=str(dataset.path / "val.rows.npy"), journal=str(journal))
    if caught:
        fault = "try:\n" + "".join(f"    {line}\n" for line in fault.splitlines()) + "except BaseException: pass"
    for place in ("setup", "logits") if caught else ("step",):
        lab.fails(candidate(**{place: fault}), "invalid", reason)
    assert journal.read_text() == "the only truth"


def test_nothing_secret_is_in_the_environment(lab, candidate, monkeypatch):
    secret = {
        "ANTHROPIC_API_KEY": "sk-1", "HF_TOKEN": "hf-2", "AWS_SECRET_ACCESS_KEY": "aws-3", "MY_API_KEY": "my-4",
        "TORCH_TOKEN": "t-5", "CUDA_SECRET": "c-6", "SSH_AUTH_SOCK": "/agent-7", "DATABASE_URL": "postgres://u:8@h",
    }  # fmt: skip
    for name, value in secret.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", "/somewhere/else")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert lab.result(candidate(top="import os, json\nprint('ENV', json.dumps(dict(os.environ)))")).status == "ok"
    found = json.loads(lab.log.read_text().split("ENV ", 1)[1])
    assert not secret.keys() & found.keys()
    assert not set(secret.values()) & set(found.values())
    assert found["PYTHONPATH"] == "/somewhere/else"
    assert found["CUDA_VISIBLE_DEVICES"] == "1"
    assert found["HF_HUB_OFFLINE"] == "1"
    assert found["HOME"] == found["TMPDIR"] != os.environ.get("HOME")
    allowed = child_environment("null", "auto", lab.folder, lab.folder).keys() | {"AUTORESEARCH_CHILD", "LC_CTYPE"}
    assert found.keys() <= allowed


def test_the_compile_cache_is_kept_for_the_run_and_its_folders_are_named(tmp_path, lab, candidate):
    lab.executor = LocalExecutor(tmp_path / "run")
    show = "import os\nprint(os.environ['TORCHINDUCTOR_CACHE_DIR'], os.environ['XDG_CACHE_HOME'])"
    assert lab.result(candidate(top=show)).status == "ok"
    assert lab.log.read_text().split() == [str(tmp_path / "run/compile/inductor"), str(tmp_path / "run/compile")]
    assert (tmp_path / "run/compile").is_dir()


def test_the_guard_watches_what_a_model_does_after_its_last_score(lab, candidate):
    """Counting parameters runs the candidate's code."""
    model = candidate(
        top="""
            class Model(dict):
                def values(self):
                    open("/etc/hostname")
                    return super().values()
        """,
        end="""
            return Trained(logits, Model(table=np.log(counts / counts.sum(-1, keepdims=True)).astype(np.float32)))
        """,
    )
    lab.fails(model, "invalid", "guard: reading .*hostname")


def test_a_model_that_is_thrown_away_runs_nothing_before_the_result_is_sent(lab, candidate):
    model = candidate(
        top="""
            class Model(dict):
                def __del__(self):
                    open("/etc/hostname")
        """,
        end="""
            return Trained(logits, Model(table=np.log(counts / counts.sum(-1, keepdims=True)).astype(np.float32)))
        """,
    )
    assert lab.result(model).status == "ok"
