"""What is told from the text of a train.py: lint, identity, size."""

import ast
import difflib
from pathlib import Path

import pytest

from autoresearch.core import candidate, registry
from autoresearch.core.candidate import (
    MAX_BYTES,
    code_size,
    diff_lines,
    lint,
    normalized_hash,
    sameness,
    source_hash,
)
from autoresearch.core.errors import CandidateFailure
from autoresearch.core.seeds import without_seeds

ALLOWED = frozenset({"torch", "numpy", "jax", "mlx"})
IMPORTS = """
from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import mlx.core as mx
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from autoresearch.backends.cuda_torch.device import attention
from autoresearch.core.contract import Experiment, Trained
"""
HONEST = (
    IMPORTS
    + '''

@dataclass
class Config:
    seed: int
    depth: int = 4


class Model(nn.Module):
    __slots__ = ()

    def __init__(self, config):
        super().__init__()
        self.name = self.__class__.__name__
        self.config = config

    def __call__(self, x):
        return self.forward(x)


def start(model, seed):
    """Draws the weights."""
    generator = torch.Generator().manual_seed(seed + 1)
    np.random.default_rng([seed, 7])
    return generator


def train(experiment: Experiment) -> Trained:
    torch.manual_seed(experiment.seed)
    mx.random.seed(experiment.seed)
    key, other = jax.random.split(jax.random.key(experiment.seed))
    config = Config(seed=experiment.seed)
    torch.cuda.manual_seed_all(config.seed)
    base = experiment.seed * 2
    jax.random.PRNGKey(base)
    start(Model(config), base)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch._dynamo.config.cache_size_limit = 64
    step = torch.compile(F.relu)
    table = {"a": 1}
    for key in table:
        print(key, len(table), getattr(config, "depth"))
    return Trained(step, Model(config))


if __name__ == "__main__":
    from autoresearch.cli import main

    main(["experiment"])
'''
)
TRAIN = "def train(experiment):\n    pass\n"


def refusal(source):
    with pytest.raises(CandidateFailure) as raised:
        lint(source, ALLOWED)
    assert raised.value.status == "invalid"
    return raised.value.reason


def test_honest_code_passes():
    lint(HONEST, ALLOWED)


@pytest.mark.parametrize("backend", registry.names())
def test_every_baseline_passes(backend):
    facts = registry.facts(backend)
    lint(facts.BASELINE.read_text(encoding="utf-8"), facts.ALLOWED_IMPORTS)


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("import os", "os"),
        ("import torch, os", "os"),
        ("import os.path as p", "os.path"),
        ("from subprocess import run", "subprocess.run"),
        ("import random", "random"),
        ("import time", "time"),
        ("import importlib", "importlib"),
        ("from torch import os", "torch.os"),
        ("from torch import *", "star import from torch"),
        ("from . import prepare", "relative import"),
        ("import autoresearch", "autoresearch"),
        ("import autoresearch.core.contract", "autoresearch.core.contract"),
        ("from autoresearch.core import measure", "autoresearch.core.measure"),
        ("from autoresearch.backends.cuda_torch import train", "cuda_torch.train"),
        ("if experiment:\n    from autoresearch.cli import main", "autoresearch.cli.main"),
        ("x = __import__('os')", "__import__"),
        ("x = eval('1')", "eval"),
        ("exec('1')", "exec"),
        ("f = open", "open"),
        ("x = compile('1', '', 'exec')", "compile"),
        ("globals()['x'] = 1", "globals"),
        ("input()", "input"),
        ("breakpoint()", "breakpoint"),
        ("x = __builtins__", "__builtins__"),
        ("x = train.__globals__", ".__globals__"),
        ("x = train.__code__", ".__code__"),
        ("x = ().__class__.__base__", ".__base__"),
        ("x = object.__subclasses__()", ".__subclasses__"),
        ("x = torch.__dict__", "torch.__dict__"),
        ("x = getattr(torch, '__loader__')", "'__loader__'"),
        ("x = (lambda: 1).gi_frame", ".gi_frame"),
        ("torch.os.system('x')", "torch.os"),
        ("import gc\ngc.get_objects()", "gc.get_objects"),
        ("torch.manual_seed(42)", "torch.manual_seed"),
        ("torch.seed()", "torch.seed"),
        ("np.random.seed(0)", "numpy.random.seed"),
        ("mx.random.seed(0)", "mlx.core.random.seed"),
        ("np.random.default_rng()", "numpy.random.default_rng"),
        ("from numpy.random import default_rng as rng\nx = rng(3)", "numpy.random.default_rng"),
        ("g = torch.Generator().manual_seed(7)", "manual_seed"),
        ("jax.random.PRNGKey(0)", "jax.random.PRNGKey"),
        ("import jax.random as jr\nk = jr.key(1)", "jax.random.key"),
        ("SEED = 42\ntorch.manual_seed(SEED + 1)", "torch.manual_seed"),
        ("class Config:\n    seed = 42\ntorch.manual_seed(Config.seed)", "torch.manual_seed"),
        ("def draw(seed):\n    torch.manual_seed(seed)\ndraw(42)", "draw"),
        ("def draw(seed):\n    torch.manual_seed(seed)\ndraw(seed=42)", "draw"),
        ("torch.Tensor.backward = None", "torch.Tensor.backward"),
        ("nn.Module.forward += 1", "torch.nn.Module.forward"),
        ("F.cross_entropy: object = None", "torch.nn.functional.cross_entropy"),
        ("Trained.logits = None", "autoresearch.core.contract.Trained.logits"),
        ("setattr(torch, 'compile', None)", "setattr on torch"),
        ("del torch.compile", "torch.compile"),
        ("x = torch.library.Library('aten', 'IMPL')", "torch.library"),
        ("x = F.torch.library", "torch.library"),
        ("from torch.library import Library", "torch.library.Library"),
        ("import torch._library.custom_ops", "torch._library.custom_ops"),
        ("torch._C._dispatch_library('IMPL', 'aten', '')", "torch._C"),
        ("torch.ops.aten.logsumexp.default.py_impl(1)", "torch.ops.aten.logsumexp.default.py_impl"),
        ("from jax.interpreters import mlir", "jax.interpreters.mlir"),
        ("import jax.extend as more", "jax.extend"),
        ("from jax._src.lax import lax", "jax._src.lax.lax"),
        ("x = jax.interpreters.mlir", "jax.interpreters"),
        ("experiment.x.register_lowering(1, 2)", ".register_lowering"),
        ("x = getattr(experiment, 'register_lowering')", "'register_lowering'"),
    ],
)
def test_what_reaches_around_the_harness_is_refused_with_its_line(statement, named):
    line = IMPORTS.count("\n") + 1 + statement.count("\n")
    reason = refusal(IMPORTS + statement + "\n\n" + TRAIN)
    assert f"line {line}: " in reason
    assert named in reason


@pytest.mark.parametrize(
    "source",
    [
        "import torch\n",
        "async def train(experiment):\n    pass\n",
        "class A:\n    def train(self):\n        pass\n",
        "def train():\n    pass\n",
        "def train(experiment, other):\n    pass\n",
        "def train(experiment, *, other):\n    pass\n",
        "def train(*experiment):\n    pass\n",
    ],
)
def test_the_entry_point_must_take_one_positional_argument(source):
    assert "train(experiment)" in refusal(source)


@pytest.mark.parametrize(
    "signature", ["experiment", "e, /", "experiment, depth=4", "experiment, *rest, depth=4, **more"]
)
def test_entry_points_that_can_be_called(signature):
    lint(f"def train({signature}):\n    pass\n", ALLOWED)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x = 1\ndef train(experiment:\n", "line 2: syntax error"),
        ("x = 1\ny = '\0'\n", "line 2: train.py holds a NUL"),
        ("x = 1\ny = '\udcff'\n", "line 2: train.py is not UTF-8"),
        (TRAIN + "#" * MAX_BYTES, "bytes long"),
        (TRAIN + "x = " + "-" * 50_000 + "1\n", "line 1: train.py is nested too deeply"),
    ],
)
def test_text_that_is_no_candidate(source, reason):
    assert reason in refusal(source)


def test_several_problems_are_told_at_once_in_the_order_of_the_file():
    reason = refusal("import os\nimport sys\nimport time\nimport re\n" + TRAIN)
    assert [reason.index(f"line {line}") for line in (1, 2, 3)] == sorted(reason.index(f"line {n}") for n in (1, 2, 3))
    assert reason.endswith("and 1 more")


def test_escapes_that_python_only_warns_about_are_no_error():
    lint(TRAIN + "x = '\\d'\n", ALLOWED)


def test_hashes_tell_the_text_and_the_program_apart():
    plain = 'def f(a):\n    """Adds."""\n    return a + 1\nX = 0.5\n'
    rewritten = "# a comment\ndef f( a ):\n\n    return (a+1)  # more\nX = .50\n"
    assert source_hash(plain) != source_hash(rewritten)
    assert normalized_hash(plain) == normalized_hash(rewritten)
    for other in (plain.replace("+ 1", "+ 2"), plain.replace("X", "Y"), plain.replace("0.5", "0.51")):
        assert normalized_hash(other) != normalized_hash(plain)
    assert normalized_hash('x = "text"\n') != normalized_hash("x = 1\n")
    assert normalized_hash("def (") != normalized_hash("def )"), "what can't be parsed is its own class"
    assert len(source_hash("")) == len(normalized_hash("")) == 64


def test_sizes():
    assert diff_lines("a\nb\nc\n", "a\nB\nc\nd\n") == 3
    assert diff_lines("a\n", "a\n") == 0
    short = "def f(a):\n    return a + 1\n"
    long = '"""Text."""\n\n# note\n\ndef f(\n    a,\n):\n    """Adds."""\n    return (\n        a + 1\n    )\n'
    assert code_size(short) == code_size(long) == 2
    assert code_size("def (\nx\n") == 2


@pytest.mark.parametrize(
    "line",
    [
        'torch.save(1, "x")',
        "torch.hub.list('x')",
        "torch.utils.cpp_extension.load_inline('x', '')",
        "torch.ops.load_library('x.so')",
        "numpy.memmap('x')",
    ],
)
def test_ways_to_files_and_native_code_are_refused(line):
    source = f"import numpy\nimport torch\n\n\ndef train(experiment):\n    {line}\n"
    with pytest.raises(CandidateFailure, match="line 6"):
        lint(source, frozenset({"numpy", "torch"}))


def test_an_own_method_of_such_a_name_is_fine():
    lint("def train(experiment):\n    experiment.load()\n", frozenset())


@pytest.mark.parametrize(
    "code",
    [
        "def forward(input):\n    return input + 1",
        "def attend(query, key, value):\n    return query\n\n\nattend(1, 2, 3)",
        "def setup(exp):\n    torch.manual_seed(exp.seed)",
    ],
)
def test_idioms_of_honest_code_pass(code):
    lint(f"import torch\n\n\n{code}\n\n\ndef train(experiment):\n    return 1\n", frozenset({"torch"}))


@pytest.mark.parametrize("name", ["or", "ror", "ior", "and", "xor", "invert", "lshift", "rshift", "pos", "index"])
def test_operators_of_a_class_of_its_own_are_fine(name):
    lint(f"class A:\n    def __{name}__(self, *other):\n        return self\n\n\n{TRAIN}", frozenset())


@pytest.mark.parametrize("name", ["reduce", "reduce_ex", "import", "build_class", "getattribute", "instancecheck"])
def test_other_dunders_are_not(name):
    assert f"__{name}__" in refusal(f"x = object.__{name}__\n{TRAIN}")


# ---------------------------------------------------------------------------------------------------------------------
# Seeds

PROGRAM = """
import jax
import numpy as np
import torch

SHIFT = {shift}
WIDTH = 0.5


def noise(key, shape):
    other = jax.random.fold_in(key, {fold})
    third = jax.random.split(key)[{split}]
    return jax.random.normal(other, shape) * {scale} + jax.random.normal(third, shape)


def attend(query, key, value):
    return query @ (key * {keys}) @ value


def train(experiment):
    torch.manual_seed(experiment.seed{added})
    base = jax.random.PRNGKey(experiment.seed)
    generator = torch.Generator().manual_seed(experiment.seed * 2 + SHIFT)
    entropy = np.random.default_rng([experiment.seed, {entropy}])
    return noise(base, WIDTH), attend(generator, entropy, experiment.max_rows + {rows}), (experiment.seed, {told})
"""
PLAIN = {"told": 3, "shift": 1, "fold": 1, "split": 0, "scale": 1.0, "keys": 2, "added": "", "entropy": 7, "rows": 1}


@pytest.mark.parametrize(
    "edit",
    [
        {"added": " + 1"},
        {"added": " ^ 0x55"},
        {"added": " * 3 + SHIFT"},
        {"shift": 2},
        {"shift": -1},
        {"fold": 2},
        {"split": 1},
        {"entropy": 8},
    ],
    ids=str,
)
def test_an_edit_of_seeds_alone_is_told_by_name(edit):
    before, after = PROGRAM.format(**PLAIN), PROGRAM.format(**{**PLAIN, **edit})
    assert normalized_hash(before) == normalized_hash(after)
    assert sameness(before, after) == "a seed-only edit"


@pytest.mark.parametrize("edit", [{"scale": 2.0}, {"keys": 3}, {"rows": 2}, {"told": 4}], ids=str)
def test_an_edit_of_the_program_is_not_one_of_seeds(edit):
    """`key` may be that of an attention."""
    assert normalized_hash(PROGRAM.format(**PLAIN)) != normalized_hash(PROGRAM.format(**{**PLAIN, **edit}))


def test_without_folding_seeds_such_an_edit_is_a_new_program(monkeypatch):
    monkeypatch.setattr(candidate, "without_seeds", lambda tree: tree)
    before, after = PROGRAM.format(**PLAIN), PROGRAM.format(**{**PLAIN, "added": " + 1"})
    assert normalized_hash(before) != normalized_hash(after)


DRAWS = """
import jax
import mlx.core as mx
import numpy as np
import torch

SHIFT = 0.5


def train(experiment):
    torch.manual_seed(experiment.seed)
    rng = np.random.default_rng(experiment.seed)
    key = jax.random.PRNGKey(experiment.seed)
    generator = torch.Generator().manual_seed(experiment.seed)
    return model(rng, key, generator, SHIFT)
"""
TORCH, NUMPY, JAX, GENERATOR = DRAWS.splitlines()[10:14]
OTHER_DRAWS = [
    (NUMPY, "rng = np.random.default_rng(seed=experiment.seed + 1)"),
    (NUMPY, "rng = np.random.default_rng(np.random.SeedSequence(experiment.seed, spawn_key=(1,)))"),
    (NUMPY, "rng = np.random.default_rng(np.random.SeedSequence(experiment.seed).spawn(2)[1])"),
    (NUMPY, "rng = np.random.default_rng(experiment.seed).spawn(2)[1]"),
    (NUMPY, "rng = np.random.Generator(np.random.PCG64(experiment.seed + 1))"),
    (NUMPY, "rng = np.random.Generator(np.random.Philox(experiment.seed).jumped(3))"),
    (NUMPY, "from numpy.random import PCG64, Generator\n    rng = Generator(PCG64(experiment.seed))"),
    (NUMPY, "rng = np.random.default_rng(round(experiment.seed))"),
    (NUMPY, "rng = np.random.default_rng(divmod(experiment.seed, 3)[0])"),
    (NUMPY, "rng = np.random.default_rng(int(f'{experiment.seed}1'))"),
    (NUMPY, "rng = np.random.default_rng(experiment.seed + 1 if experiment.seed else 5)"),
    (NUMPY, "rng = np.random.default_rng(experiment.seed + 1 or 5)"),
    (NUMPY, "rng = np.random.default_rng((lambda s: s + 1)(experiment.seed))"),
    (NUMPY, "def shift(s):\n        return s + 1\n    rng = np.random.default_rng(shift(experiment.seed))"),
    (NUMPY, "rng = np.random.default_rng(sum([experiment.seed, 1]))"),
    (NUMPY, "rng = np.random.default_rng(abs(hash((experiment.seed, 1))))"),
    (NUMPY, "rng = np.random.default_rng(experiment.seed + experiment.vocab_size)"),
    (NUMPY, "rng = np.random.default_rng(experiment.seed + int(experiment.progress))"),
    (NUMPY, "s: int = experiment.seed + 1\n    rng = np.random.default_rng(s)"),
    (NUMPY, "s, t = experiment.seed, experiment.seed + 1\n    rng = np.random.default_rng(t)"),
    (NUMPY, "s = experiment.seed\n    s += 1\n    rng = np.random.default_rng(s)"),
    (NUMPY, "s = round(experiment.seed)\n    s += 1\n    rng = np.random.default_rng(s)"),
    (NUMPY, "rng = np.random.default_rng(s := experiment.seed + 1)"),
    (JAX, "key = jax.random.fold_in(jax.random.PRNGKey(experiment.seed), data=3)"),
    (JAX, "key = jax.random.fold_in(jax.random.key(experiment.seed), experiment.vocab_size)"),
    (JAX, "_, key = jax.random.split(jax.random.PRNGKey(experiment.seed))"),
    (JAX, "key = jax.random.PRNGKey(experiment.seed)\n    key, sub = jax.random.split(key)"),
    (JAX, "keys = jax.random.split(jax.random.PRNGKey(experiment.seed), 5)\n    key = keys[3]"),
    (JAX, "from jax import random as r\n    key = r.split(r.key(experiment.seed), num=3)[-1]"),
    (JAX, "key = jax.random.PRNGKey(experiment.seed, impl='rbg')"),
    (JAX, "key = mx.random.split(mx.random.key(experiment.seed))[1]"),
    (GENERATOR, "generator = torch.Generator().manual_seed(round(experiment.seed) + experiment.vocab_size)"),
    (GENERATOR, "generator = torch.Generator().manual_seed(seed=experiment.seed)"),
    (TORCH, "(s := experiment.seed + 1)\n    torch.manual_seed(s)"),
    (TORCH, "torch.manual_seed(seed=experiment.seed + 1)"),
    (TORCH, "_ = torch.manual_seed(experiment.seed + 1)"),
    (TORCH, "torch.random.manual_seed(round(experiment.seed) + experiment.vocab_size)"),
    (TORCH, "pass_on = experiment.seed + 1\n    torch.manual_seed(pass_on)"),
]


@pytest.mark.parametrize(("line", "other"), OTHER_DRAWS, ids=[other for _, other in OTHER_DRAWS])
def test_another_way_to_seed_is_a_seed_only_edit(line, other, monkeypatch):
    after = DRAWS.replace(line.strip(), other)
    lint(after, frozenset({"jax", "mlx", "numpy", "torch"}))
    assert normalized_hash(DRAWS) == normalized_hash(after)
    assert sameness(DRAWS, after) == "a seed-only edit"
    monkeypatch.setattr(candidate, "without_seeds", lambda tree: tree)
    assert normalized_hash(DRAWS) != normalized_hash(after), "without the gate it is another program"


def test_a_seed_that_the_framework_drew_is_refused_by_name():
    after = DRAWS.replace("torch.manual_seed(experiment.seed)", "torch.manual_seed(torch.initial_seed() + 1)")
    with pytest.raises(CandidateFailure, match=r"torch\.manual_seed with a seed that does not come from"):
        lint(after, frozenset({"jax", "mlx", "numpy", "torch"}))
    with pytest.raises(CandidateFailure, match=r"mlx\.core\.random\.key with a seed"):
        lint(DRAWS + "    mx.random.key(7)\n", frozenset({"jax", "mlx", "numpy", "torch"}))


HONEST_EDITS = [
    ("jnp.split(x, 2)[0]", "jnp.split(x, 2)[1]"),
    ("jnp.split(q, 2)[0]", "jnp.split(k, 2)[0]"),
    ("torch.split(x, 64, dim=-1)[0]", "torch.split(x, 32, dim=-1)[0]"),
    ("torch.split(x, WIDTH, dim=-1)[0]", "torch.split(y, WIDTH, dim=0)[1]"),
    ("x.split(WIDTH)[0]", "y.split(WIDTH)[0]"),
    ("x.split(WIDTH, dim=-1)[0]", "x.split(WIDTH, dim=-1)[1]"),
    ("mx.split(x, 2, axis=-1)[0]", "mx.split(x, 2, axis=-1)[1]"),
    ("self.fold_in(x, 0)", "self.fold_in(x, 1)"),
    ("self.seed", "cfg.seed"),
    ("self.seed * 2", "self.seed * 3"),
    ("abs(x)", "abs(y)"),
    ("seed * 2", "seed * 3"),
    ("Generator(key=seed, width=64)", "Generator(key=seed, width=32)"),
    ("jax.vmap(start)(jax.random.split(x, 4))", "jax.vmap(start)(jax.random.split(x, 8))"),
    ("[jax.random.fold_in(x, i) for i in y]", "[jax.random.fold_in(x, 0) for i in y]"),
    ("jax.random.split(x)[0]", "jax.random.split(y)[0]"),
    ("rng.normal(0, 1, (4,))", "rng.normal(0, 2, (4,))"),
    ("torch.Generator(device='cpu').manual_seed(seed)", "torch.Generator(device='cuda').manual_seed(seed)"),
]


@pytest.mark.parametrize(("before", "after"), HONEST_EDITS)
def test_an_honest_edit_that_looks_like_one_of_seeds_is_another_program(before, after):
    program = (
        "import jax\nimport jax.numpy as jnp\nimport mlx.core as mx\nimport torch\n\nWIDTH = 2\n\n\n"
        "class Generator:\n    pass\n\n\n"
        "def forward(self, cfg, x, y, q, k, seed, rng):\n    return {}\n\n\n"
        "def train(experiment):\n    return forward(experiment.seed)\n"
    )
    assert normalized_hash(program.format(before)) != normalized_hash(program.format(after))


@pytest.mark.parametrize("backend", ["cuda_torch", "jax_tpu", "mlx", "null"])
def test_a_baseline_is_the_same_program_with_another_seed_alone(backend):
    source = (Path(candidate.__file__).parents[1] / "backends" / backend / "train.py").read_text()
    shifted = source.replace("(experiment.seed)", "(experiment.seed + 1)")
    assert normalized_hash(source) == normalized_hash(shifted)
    folded = ast.unparse(ast.fix_missing_locations(without_seeds(ast.parse(source))))
    lines = difflib.ndiff(ast.unparse(ast.parse(source)).splitlines(), folded.splitlines())
    assert all("seed" in line or "rng" in line for line in lines if line.startswith("- "))


def test_nested_keys_take_no_long_time():
    key = "jax.random.key(0)"
    for _ in range(60):
        key = f"x.split({key})[0]"
    assert normalized_hash(f"import jax\ny = {key}\n")


def test_another_text_of_the_same_program_is_a_duplicate():
    before = PROGRAM.format(**PLAIN)
    assert sameness(before, "# note\n" + before) == "a duplicate"
    assert sameness("def (", "def )") == "a duplicate"


@pytest.mark.parametrize(
    ("calls", "passes"),
    [("draw(experiment.seed)", True), ("draw(42)", False), ("draw(experiment.seed)\n    draw(42)", False)],
)
def test_a_parameter_of_any_name_is_judged_by_what_callers_hand_over(calls, passes):
    source = f"import torch\n\n\ndef draw(s):\n    torch.manual_seed(s)\n\n\ndef train(experiment):\n    {calls}\n"
    if passes:
        lint(source, frozenset({"torch"}))
    else:
        with pytest.raises(CandidateFailure, match=r"line 5: torch\.manual_seed with a seed that does not come from"):
            lint(source, frozenset({"torch"}))


def test_a_log_and_kernels_of_its_own_may_be_imported():
    facts = registry.facts("cuda")
    source = "import logging\nimport triton\nimport triton.language as tl\n\n\ndef train(experiment):\n    return tl\n"
    lint(source, facts.ALLOWED_IMPORTS)
    with pytest.raises(CandidateFailure, match=r"use of logging\.os"):
        lint(source + "\n\nlogging.os.remove\n", facts.ALLOWED_IMPORTS)
