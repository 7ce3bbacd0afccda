"""The trusted side of the MLX backend, on a CPU."""

import shutil
import subprocess
import sys
import textwrap

import mlx_harness as harness
import numpy as np
import psutil
import pytest
import reference_numpy as reference

from autoresearch.backends import mlx as facts
from autoresearch.backends.mlx import blas, device
from autoresearch.core.contract import Trained
from autoresearch.core.errors import BackendUnavailable, CandidateFailure

mx = harness.mx

AT = np.array([[0, 5], [7, 1], [3, 3], [2, 6]], np.int32)
"""Positions of the logits that are asked for, in each of four rows."""


@pytest.fixture
def metal(monkeypatch):
    """Metal is there or not: `metal(True)`."""
    return lambda there: monkeypatch.setattr(device.mx.metal, "is_available", lambda: there)


def test_auto_takes_metal_and_else_says_that_a_processor_is_for_testing(metal):
    metal(True)
    assert device._platform("auto")[0] == device._platform("metal")[0] == "metal"
    assert device._platform("cpu")[0] == "cpu"
    metal(False)
    for asked in ("auto", "cpu"):
        platform, reason = device._platform(asked)
        assert platform == "cpu"
        assert "for testing" in reason


@pytest.mark.parametrize(("asked", "title"), [("metal", "Metal device"), ("tpu", "device 'tpu'")])
def test_a_missing_device_is_named_with_the_way_to_the_cpu(asked, title, metal):
    metal(False)
    with pytest.raises(BackendUnavailable, match=f"finds no {title}") as caught:
        device.describe(asked)
    assert "--device cpu" in caught.value.hint


def test_every_choice_on_a_cpu_has_a_reason():
    info = device.describe("cpu", 40.0)
    assert (info.backend, info.platform, info.count, info.attention) == ("mlx", "cpu", 1, "fast")
    assert not info.compile
    assert info.name.endswith(" cores")
    assert device.BLAS in info.framework, "scores with another BLAS are not comparable"
    assert info.peak_flops > 1e8
    assert info.memory_bytes > 2**28
    assert info.reasons.keys() == {"platform", "dtype", "attention", "compile", "peak_flops"}
    assert all(info.reasons.values())
    assert device.BLAS in info.reasons["peak_flops"]


def test_a_slow_blas_is_said_with_the_way_to_a_fast_one(monkeypatch):
    monkeypatch.setattr(device, "_fastest", lambda functions, repeats=8: [1.0] * len(functions))
    monkeypatch.setattr(device, "BLAS", blas.REFERENCE)
    assert "apt-get install libopenblas0-pthread" in device._peak_flops("cpu", "", 2, "float32")[1]
    monkeypatch.setattr(device, "BLAS", "OpenBLAS")
    assert "apt-get" not in device._peak_flops("cpu", "", 2, "float32")[1]


@pytest.mark.parametrize(("half", "chosen"), [(0.4, "bfloat16"), (0.95, "float32"), (100.0, "float32")])
def test_the_dtype_is_chosen_by_measured_speed(half, chosen, monkeypatch):
    """Emulated bfloat16 is slower than float32; a close call is float32 too."""
    monkeypatch.setattr(device, "_fastest", lambda functions: [1.0, half])
    assert device._dtype("cpu")[0] == chosen


def test_steps_are_compiled_on_metal():
    assert device._compile("metal")[0]
    assert not device._compile("cpu")[0]


@pytest.mark.parametrize(
    ("name", "cores", "flops"),
    [
        ("Apple M1", 8, 2.6e12),
        ("Apple M1 Max", 32, 10.4e12),
        ("Apple M2 Pro", 19, 6.84e12),
        ("Apple M1 Max", 0, None),
        ("Apple M4 Max", 40, None),
        ("Apple M10", 8, None),
    ],
)
def test_peak_flops_of_known_chips_and_a_measured_one_of_others(name, cores, flops, monkeypatch):
    monkeypatch.setattr(device, "_fastest", lambda functions, repeats: [0.5])
    found, reason = device._peak_flops("metal", name, cores, "bfloat16")
    assert found == pytest.approx(flops or 2 * 4096**3 / 0.5)
    assert ("measured" in reason) is (flops is None)


@pytest.mark.parametrize(
    ("printed", "cores"), [('  | {\n  |   "gpu-core-count" = 40\n', 40), ('  |   "model" = "Apple M9"\n', 0), (None, 0)]
)
def test_gpu_cores_are_part_of_the_name(printed, cores, monkeypatch):
    def run(command, **options):
        if printed is None:
            raise FileNotFoundError(command[0])
        return subprocess.CompletedProcess(command, 0, printed)

    monkeypatch.setattr(device.subprocess, "run", run)
    info = {"device_name": "Apple M9", "max_recommended_working_set_size": 2**34}
    monkeypatch.setattr(device, "_device_info", lambda: info)
    assert device._identity("metal") == ("Apple M9", cores, 2**34)


def test_memory_is_bounded_on_metal(metal, monkeypatch):
    limits = {}
    for kind in ("memory", "cache", "wired"):
        monkeypatch.setattr(device.mx, f"set_{kind}_limit", lambda limit, kind=kind: limits.update({kind: limit}))
    monkeypatch.setattr(device, "_device_info", lambda: {"max_recommended_working_set_size": 2**34})
    metal(False)
    device._use_device()
    assert limits == {}
    metal(True)
    device._use_device()
    assert limits == {"memory": 2**34, "cache": 2**32, "wired": 2**34}


def test_a_child_computes_where_its_environment_says(metal, monkeypatch):
    chosen = []
    monkeypatch.setattr(device.mx, "set_default_device", chosen.append)
    metal(False)
    device._use_device()
    monkeypatch.setenv(facts.DEVICE, facts.environment("cpu")[facts.DEVICE])
    device._use_device()
    assert chosen == [mx.cpu]
    assert facts.environment("auto") == {}


def test_put_copies():
    tokens = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    put = device.put(tokens, harness.device_info())
    tokens[:] = -1
    assert put.dtype == mx.int32
    np.testing.assert_array_equal(np.array(put), np.arange(24).reshape(2, 3, 4))


def test_put_takes_read_only_rows():
    tokens = np.zeros((2, 4), np.int32)
    tokens.flags.writeable = False
    assert device.put(tokens, harness.device_info()).shape == (2, 4)


def score(logits, targets):
    targets = mx.array(targets.astype(np.int32))
    return device.nats(Trained(lambda params, tokens: params, mx.array(logits)), targets, targets)


@pytest.mark.parametrize("logits", [np.zeros((2, 8)), np.zeros((2, 7, 50)), np.zeros((2, 8, 50, 1))])
def test_logits_of_another_shape_are_invalid(logits):
    with pytest.raises(CandidateFailure, match="logits are") as caught:
        score(logits, np.zeros((2, 8)))
    assert caught.value.status == "invalid"


def test_logits_for_too_few_tokens_are_invalid():
    with pytest.raises(CandidateFailure, match="logits for 50 tokens; a target is 50"):
        score(np.zeros((2, 8, 50)), np.full((2, 8), 50))


def test_a_subclass_is_no_logits():
    """Its methods would see the targets where the loss is computed."""

    class Spy(mx.array):
        pass

    trained = Trained(lambda params, tokens: Spy(np.zeros((2, 8, 50), np.float32)), None)
    with pytest.raises(CandidateFailure, match="logits are Spy"):
        device.nats(trained, mx.zeros((2, 8), mx.int32), mx.zeros((2, 8), mx.int32))


def test_a_patched_mlx_sees_no_targets(monkeypatch):
    targets = mx.array(np.arange(16, dtype=np.int32).reshape(2, 8))
    trained = Trained(lambda params, tokens: mx.zeros((2, 8, 50)), None)
    seen = []

    def spy(owner, name):
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **options: seen.extend(args) or original(*args, **options))

    for name in ("logsumexp", "take_along_axis", "take", "subtract", "expand_dims", "max"):
        spy(mx, name)
    for name in ("astype", "max", "item", "__getitem__", "__sub__", "__int__", "tolist"):
        spy(mx.array, name)
    device.nats(trained, mx.zeros((2, 8), mx.int32), targets)
    assert not any(value is targets for value in seen)
    monkeypatch.setattr(device, "_take", mx.take_along_axis)
    monkeypatch.setattr(device, "_expand", mx.expand_dims)
    device.nats(trained, mx.zeros((2, 8), mx.int32), targets)
    assert any(value is targets for value in seen), "a backend that looks its functions up is seen through"


def test_logits_and_nats_of_a_model_agree_in_evaluation_mode():
    gpt = harness.model(harness.load())
    modes = []

    def run(params, tokens):
        modes.append(params.training)
        return params(tokens)

    tokens = np.random.default_rng(0).integers(0, harness.VOCAB, (4, harness.SEQ_LEN)).astype(np.int32)
    trained, targets = Trained(run, gpt), tokens[:, ::-1].copy()
    logits = device.logits(trained, mx.array(tokens), AT)
    assert logits.shape == (*AT.shape, harness.VOCAB)
    assert logits.dtype == np.float32
    nats = device.nats(trained, mx.array(tokens), mx.array(targets))
    want = reference.nats(logits.astype(np.float64), np.take_along_axis(targets, AT, 1))
    np.testing.assert_allclose(np.take_along_axis(nats, AT, 1), want, atol=1e-5)
    assert modes == [False, False]


def test_count_takes_modules_and_trees():
    module = harness.load()
    gpt = harness.model(module)
    assert device.count(gpt) == sum(p.size for p in harness.arrays(gpt).values()), "the rotary tables don't count"
    shared = mx.zeros((2, 3))
    assert device.count({"a": shared, "b": [mx.zeros(5), (mx.zeros(()), None)], "c": shared}) == 12


def test_wait_computes_all_that_is_lazy():
    """Computed arrays keep no graph, and so not the arrays they were made of."""
    size, held = 2**24, mx.get_active_memory()
    lazy = {"a": [mx.ones(size).sum()], "b": (mx.ones(size).max(), None)}
    device.wait(lazy)
    mx.reset_peak_memory()
    assert (float(lazy["a"][0]), float(lazy["b"][0])) == (size, 1)
    assert mx.get_peak_memory() - held < size, "computed twice"
    device.wait(harness.model(harness.load()))
    device.wait(1.0)


@pytest.mark.parametrize(
    "message",
    [
        "[metal::malloc] Attempting to allocate 9 bytes which is greater than the maximum allowed buffer size.",
        "[malloc] Unable to allocate 9 bytes.",
        "[METAL] Command buffer execution failed: Insufficient Memory (00000008)",
    ],
)
def test_out_of_memory_is_told_from_other_errors(message):
    assert device.out_of_memory(RuntimeError(message))
    assert device.out_of_memory(MemoryError())
    assert not device.out_of_memory(ValueError(message))
    assert not device.out_of_memory(RuntimeError("[matmul] Last dimension of first input must match"))


def test_peak_memory_is_at_least_what_is_resident():
    resident = psutil.Process().memory_info().rss
    assert resident * 0.95 <= device.peak_memory_bytes(harness.device_info()) < psutil.virtual_memory().total


def test_seed_repeats_mlx_and_numpy():
    draws = []
    for _ in range(2):
        device.seed(2**40 + 1)
        draws.append((mx.random.uniform(shape=(3,)).tolist(), np.random.rand(3).tolist()))
    assert draws[0] == draws[1]


def test_the_facts_load_no_framework():
    code = "import sys, autoresearch.backends.mlx as b; b.environment('cpu'); assert 'mlx.core' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_facts():
    assert facts.BASELINE.is_file()
    assert "pip install '.[" in facts.INSTALL_HINT
    assert "mlx" in facts.ALLOWED_IMPORTS


def loaded_blas(before, *, path=None):
    """(which BLAS is said to be loaded, whether `cblas_sgemm` is there for MLX to find), in a fresh process.

    The product that MLX computes with it must be right.
    """
    code = f"""
        import ctypes, os, sys
        from autoresearch.backends.mlx import blas
        {before}
        print(blas.load_blas())
        print(hasattr(ctypes.CDLL(None), "cblas_sgemm"))
        import mlx.core as mx, numpy as np
        a, b = (np.random.default_rng(i).normal(size=(70, 90)).astype(np.float32) for i in (0, 1))
        for x, y in ((a, b.T), (a.T, b)):
            got = np.array(mx.array(x) @ mx.array(y))
            np.testing.assert_allclose(got, x.astype(np.float64) @ y, atol=1e-4)
    """
    environment = None if path is None else {"PATH": path}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    name, found = done.stdout.split("\n")[:2]
    return name, found == "True"


NO_SYSTEM = "blas.SYSTEM = 'libnosuchblas.so.0'"
linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere MLX has a fast BLAS of its own")


@linux
def test_numpys_blas_is_found_by_mlx():
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("the shim needs a C compiler")
    # Two threads that wait for each other take the core from all else.
    one_thread = "blas.load_blas = lambda load=blas.load_blas: (load(), threads())[0]"
    threads = "threads = lambda: print(ctypes.CDLL(None)['scipy_openblas_get_num_threads64_'](), end=' ')"
    assert loaded_blas("; ".join([NO_SYSTEM, threads, one_thread])) == ("1 OpenBLAS (NumPy's)", True)


@linux
def test_the_systems_blas_comes_first():
    name, found = loaded_blas("blas._load_numpys = lambda: False")
    assert found is (name == "OpenBLAS (libopenblas.so.0)")
    assert found or name == blas.REFERENCE, "where Debian's is not installed"


@linux
@pytest.mark.parametrize("before", [NO_SYSTEM, f"{NO_SYSTEM}; import mlx.core"])
def test_without_a_compiler_or_too_late_it_is_the_wheels_own(before, tmp_path):
    path = None if "mlx.core" in before else str(tmp_path)
    assert loaded_blas(before, path=path) == (blas.REFERENCE, False)
