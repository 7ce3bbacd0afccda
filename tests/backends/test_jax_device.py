"""The trusted side of the JAX backend, on processors that pretend to be several devices."""

import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import jax_harness as harness
import numpy as np
import psutil
import pytest
import reference_numpy as reference

from autoresearch.backends import jax_tpu
from autoresearch.backends.jax_tpu import attention, device
from autoresearch.core.contract import Trained
from autoresearch.core.errors import BackendUnavailable, CandidateFailure

ONE, FOUR = harness.device_info(), harness.device_info(count=4)


def machine_with(monkeypatch, platform, kind="", count=1, memory=None):
    """A machine whose local devices are those of one platform."""
    devices = [SimpleNamespace(platform=platform, device_kind=kind, memory_stats=lambda: memory)] * count

    def local_devices(backend=None):
        if backend not in (None, platform, {"gpu": "cuda"}.get(platform)):
            raise RuntimeError(f"Unknown backend: {backend!r}")
        return devices

    monkeypatch.setattr(jax, "local_devices", local_devices)
    return devices


@pytest.mark.parametrize(("asked", "title"), [("auto", "TPU or GPU"), ("tpu", "device 'tpu'"), ("tpv", "device 'tpv'")])
def test_a_missing_device_is_said_in_one_line_with_the_way_to_the_processor(asked, title, monkeypatch):
    machine_with(monkeypatch, "cpu")
    with pytest.raises(BackendUnavailable, match=f"finds no {title} on this machine") as caught:
        device.describe(asked)
    assert "\n" not in caught.value.message
    assert "--device cpu" in caught.value.hint
    assert caught.value.exit_code == 4


def test_no_device_is_named_that_jax_does_not_know():
    """JAX's own words for it: a RuntimeError."""
    with pytest.raises(BackendUnavailable, match="finds no device 'no such'"):
        device.describe("no such")


@pytest.mark.parametrize(("platform", "found"), [("tpu", "tpu"), ("gpu", "cuda")])
def test_auto_takes_all_local_accelerators(platform, found, monkeypatch):
    devices = machine_with(monkeypatch, platform, count=8)
    assert device._devices("auto") == (found, devices)
    assert device._devices(found) == (found, devices)


def test_every_choice_on_a_processor_has_a_reason():
    info = device.describe("cpu", 40.0)
    assert (info.backend, info.platform, info.count, info.compile) == ("jax", "cpu", 4, True)
    assert info.attention == "blocks"
    assert info.dtype in ("float32", "bfloat16")
    assert "threads" in info.name
    assert info.peak_flops > 1e8
    assert info.memory_bytes == psutil.virtual_memory().total
    assert info.reasons.keys() == {"dtype", "attention", "compile", "peak_flops"}
    assert all(info.reasons.values())


@pytest.mark.parametrize(("half", "chosen"), [(0.4, "bfloat16"), (0.95, "float32"), (100.0, "float32")])
def test_the_dtype_is_chosen_by_measured_speed(half, chosen, monkeypatch):
    monkeypatch.setattr(device, "fastest", lambda functions: [1.0, half])
    assert device._dtype("cpu")[0] == chosen


def test_a_device_that_refuses_bfloat16_gets_float32(monkeypatch):
    def refuse(functions):
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: bf16\nsecond line")

    monkeypatch.setattr(device, "fastest", refuse)
    assert device._dtype("cpu") == ("float32", "bfloat16 does not run here: UNIMPLEMENTED: bf16")


@pytest.mark.parametrize(
    ("platform", "kind", "dtype", "flops"),
    [
        ("tpu", "TPU v4", "bfloat16", 275e12),
        ("tpu", "TPU v5 lite", "bfloat16", 197e12),
        ("tpu", "TPU v5p", "bfloat16", 459e12),
        ("tpu", "TPU v6 lite", "bfloat16", 918e12),
        ("tpu", "TPU7x", "bfloat16", 1153.5e12),
        ("tpu", "TPU v99", "bfloat16", None),
        ("cuda", "NVIDIA H100 80GB HBM3", "bfloat16", 989e12),
        ("cuda", "NVIDIA H100 80GB HBM3", "float32", None),
        ("cuda", "Tesla T4", "bfloat16", None),
    ],
)
def test_peak_flops_of_known_devices_count_each_of_them(platform, kind, dtype, flops, monkeypatch):
    devices = machine_with(monkeypatch, platform, kind, count=8)
    found, reason = device._peak_flops(platform, devices, dtype)
    assert found == (flops and 8 * flops)
    assert kind in reason


def test_memory_of_accelerators_adds_up(monkeypatch):
    memory = {"bytes_limit": 10, "peak_bytes_in_use": 7}
    devices = machine_with(monkeypatch, "tpu", "TPU v4", count=4, memory=memory)
    assert device._identity("tpu", devices) == ("TPU v4", 40)
    mesh = SimpleNamespace(devices=np.array(devices))
    monkeypatch.setattr(device, "_mesh", lambda info: mesh)
    assert device.peak_memory_bytes(SimpleNamespace(platform="tpu")) == 28


def test_providers_that_do_not_work_here_are_passed_over_with_their_reasons(monkeypatch):
    """cuDNN needs a GPU; another ignores the window."""
    known = {"wrong": lambda q, k, v, window: attention.xla(q, k, v, None), "cudnn": attention.cudnn}
    monkeypatch.setattr(device, "provider", lambda name, mesh: known.get(name, attention.xla))
    mesh = device._mesh(ONE)
    chosen, reason = device._working_attention(["cudnn", "wrong", "right"], mesh, "bfloat16")
    assert chosen == "right"
    assert "cudnn fails" in reason
    assert "wrong is wrong by" in reason
    assert "right agrees" in reason
    chosen, reason = device._working_attention(["cudnn"], mesh, "bfloat16")
    assert chosen == "xla"
    assert "cudnn fails" in reason


@pytest.mark.parametrize(("count", "rows", "shares"), [(1, 3, 1), (4, 8, 4), (4, 6, 1)])
def test_rows_are_split_over_the_devices_where_they_divide(count, rows, shares):
    tokens = np.arange(2 * rows * 5, dtype=np.int32).reshape(2, rows, 5)
    tokens.flags.writeable = False
    put = device.put(tokens, harness.device_info(count=count))
    assert put.dtype == jnp.int32
    assert {s.data.shape for s in put.addressable_shards} == {(2, rows // shares, 5)}
    assert len({s.device for s in put.addressable_shards}) == count
    np.testing.assert_array_equal(np.asarray(put), tokens)


def score(logits, targets, info=ONE):
    """Nats of targets for a model whose logits depend on nothing."""
    put = device.put(targets.astype(np.int32), info)
    return device.nats(Trained(_constant, logits), put, put)


def _constant(params, tokens):
    return params


@pytest.mark.parametrize("info", [ONE, FOUR], ids=["one device", "four"])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_nats_equal_numpy(info, scale):
    """Also for logits that no soft cap bounds."""
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(8, 6, 50)) * scale).astype(np.float32)
    targets = rng.integers(0, 50, (8, 6))
    got = score(logits, targets, info)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, reference.nats(logits.astype(np.float64), targets), rtol=1e-5, atol=1e-5)


def test_scoring_compiles_once_for_a_model_whatever_its_parameters():
    """And the rows that the probes look at come from the same program."""
    traced = []

    def logits(params, tokens):
        traced.append(params["table"].shape)
        return params["table"][tokens]

    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 20, (4, 6))
    put = device.put(tokens.astype(np.int32), ONE)
    for _ in range(3):
        table = rng.normal(size=(20, 20)).astype(np.float32)
        trained = Trained(logits, {"table": jnp.asarray(table)})
        at = rng.integers(0, 6, (4, 2)).astype(np.int32)
        some = device.logits(trained, put, at)
        assert some.dtype == np.float32
        np.testing.assert_array_equal(some, table[np.take_along_axis(tokens, at, 1)])
        want = reference.nats(table[tokens].astype(np.float64), tokens)
        np.testing.assert_allclose(device.nats(trained, put, put), want, atol=1e-5)
    assert traced == [(20, 20)]


@pytest.mark.parametrize(
    "logits", [np.zeros((2, 8)), np.zeros((2, 7, 50)), np.zeros((2, 8, 50, 1)), {"a": np.zeros(3)}]
)
def test_logits_of_another_shape_are_invalid(logits):
    with pytest.raises(CandidateFailure, match="logits are") as caught:
        score(logits, np.zeros((2, 8)))
    assert caught.value.status == "invalid"


def test_logits_for_too_few_tokens_are_invalid():
    with pytest.raises(CandidateFailure, match="logits for 50 tokens; a target is 50"):
        score(np.zeros((2, 8, 50), np.float32), np.full((2, 8), 50))


def test_count_and_wait_take_trees():
    shared = jnp.zeros((2, 3))
    tree = {"a": shared, "b": [jnp.zeros(5), (jnp.zeros(()), None, shared)], "c": 1.0}
    assert device.count(tree) == 6 + 5 + 1 + 1
    device.wait(tree)


def test_out_of_memory_is_told_from_other_errors():
    assert device.out_of_memory(MemoryError())
    assert device.out_of_memory(
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate")
    )
    assert not device.out_of_memory(jax.errors.JaxRuntimeError("INVALID_ARGUMENT: shapes do not match"))
    assert not device.out_of_memory(ValueError("out of memory"))
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        device.wait(jax.jit(lambda: jnp.zeros(2**46))())
    assert device.out_of_memory(caught.value)


def test_peak_memory_is_at_least_what_is_resident():
    resident = psutil.Process().memory_info().rss
    assert resident * 0.95 <= device.peak_memory_bytes(ONE) < psutil.virtual_memory().total


def test_seed_repeats_numpy():
    device.seed(2**40 + 1)
    first = np.random.rand(3)
    device.seed(2**40 + 1)
    np.testing.assert_array_equal(np.random.rand(3), first)


def test_the_facts_load_no_framework():
    code = "import sys, autoresearch.backends.jax_tpu as b; b.environment('cpu'); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_facts():
    assert jax_tpu.BASELINE.is_file()
    assert "pip install '.[" in jax_tpu.INSTALL_HINT
    assert {"jax", "numpy"} == jax_tpu.ALLOWED_IMPORTS
    assert jax_tpu.RANK > 10


@pytest.fixture
def no_settings(monkeypatch):
    for name in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("cores", "devices"), [(1, 1), (2, 2), (3, 2), (4, 4), (64, 4)])
def test_a_processor_is_a_device_for_each_core_up_to_four(cores, devices, no_settings, monkeypatch):
    monkeypatch.setattr(jax_tpu, "usable_cores", lambda: cores)
    environment = jax_tpu.environment("cpu")
    assert environment["XLA_FLAGS"] == f"--xla_force_host_platform_device_count={devices}"
    assert environment["JAX_PLATFORMS"] == "cpu"


def test_flags_of_the_user_are_kept(no_settings, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=7")
    assert jax_tpu.environment("cpu")["XLA_FLAGS"] == "--xla_force_host_platform_device_count=7"
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    assert jax_tpu.environment("cpu")["XLA_FLAGS"].startswith("--xla_dump_to=x --xla_force_host_platform_device_count=")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "3")
    assert jax_tpu.environment("cpu")["XLA_FLAGS"] == "--xla_dump_to=x"
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    assert jax_tpu.environment("cuda")["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.5"


def test_a_look_at_the_machine_takes_no_gpu_memory(no_settings):
    assert jax_tpu.environment("auto")["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in jax_tpu.environment("cuda")
    assert "JAX_PLATFORMS" not in jax_tpu.environment("auto")
