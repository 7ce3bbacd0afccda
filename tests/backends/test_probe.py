"""The device probe: the rate of all calls, every product counted, and out of a candidate's reach."""

import jax
import jax_harness
import mlx_harness
import numpy as np
import pytest
import torch

from autoresearch.backends import hardware
from autoresearch.backends.cuda_torch import device as torch_device
from autoresearch.backends.jax_tpu import device as jax_device
from autoresearch.backends.mlx import device as mlx_device
from autoresearch.backends.null import device as null_device
from autoresearch.core.contract import DeviceInfo

NULL = null_device.describe()
TORCH = DeviceInfo("cuda", "cpu", "cpu", 1, "torch", "bfloat16", "sdpa", False, None, 0)
MLX = DeviceInfo("mlx", "cpu", "cpu", 1, "mlx", "float32", "fast", False, None, 0)
BACKENDS = {
    "null": (null_device, NULL, "_matmul"),
    "torch": (torch_device, TORCH, "_matmul"),
    "mlx": (mlx_device, MLX, "_matmul"),
    "jax": (jax_device, jax_harness.device_info(), "_product"),
    "jax on four": (jax_device, jax_harness.device_info("bfloat16", count=4), "_product"),
}


class Time:
    """A clock that a call of `work` moves, by one duration after the other, the last one again and again."""

    def __init__(self, monkeypatch, *durations):
        self.now, self.calls, self._durations = 0.0, 0, list(durations)
        monkeypatch.setattr(hardware, "perf_counter", lambda: self.now)

    def work(self):
        self.now += self._durations[min(self.calls, len(self._durations) - 1)]
        self.calls += 1


def test_the_rate_is_work_by_time(monkeypatch):
    time = Time(monkeypatch, 0.01)
    assert hardware.rate(time.work, 7.0, 0.5) == pytest.approx(7.0 / 0.01)
    assert time.now == pytest.approx(0.5, abs=0.011)


def test_every_call_counts_and_not_the_fastest_ones(monkeypatch):
    busy = Time(monkeypatch, *[0.01, 0.01, 0.01, 0.05] * 30)
    assert hardware.rate(busy.work, 1.0, 0.5) == pytest.approx(1.0 / 0.02, rel=0.15)
    again = Time(monkeypatch, *[0.01, 0.01, 0.01, 0.05] * 30)
    assert hardware.fastest([again.work])[0] == pytest.approx(0.01), "which would not show it"


def test_the_beginning_is_not_counted(monkeypatch):
    resting = Time(monkeypatch, 0.09, 0.02, 0.01)
    assert hardware.rate(resting.work, 1.0, 0.5) == pytest.approx(100.0)


def test_a_slow_device_is_measured_by_its_second_call(monkeypatch):
    slow = Time(monkeypatch, 30.0, 3.0)
    assert hardware.rate(slow.work, 6.0, 0.5) == pytest.approx(2.0)
    assert slow.calls == 2


@pytest.mark.parametrize("name", BACKENDS)
def test_every_product_is_counted_in_the_compute_dtype_and_waited_for(name, monkeypatch):
    module, device, product = BACKENDS[name]
    really, products, waited = getattr(module, product), [], []

    def multiply(a, b, **options):
        result = really(a, b, **options)
        products.append((a, b, result))
        return result

    def rate(work, flops, seconds):
        work()
        if name.startswith("jax"):
            waited.extend(result.is_ready() for _, _, result in products)
        return flops

    monkeypatch.setattr(module, product, multiply)
    monkeypatch.setattr(module if hasattr(module, "rate") else hardware, "rate", rate)
    flops = module.probe(device, 0.5)
    assert flops == sum(2 * a.shape[0] * a.shape[1] * b.shape[1] for a, b, _ in products)
    assert all(device.dtype in str(array.dtype) for arrays in products for array in arrays)
    assert all(waited)
    if name.startswith("jax"):
        shards = products[0][2].addressable_shards
        assert [shard.data.shape for shard in shards] == [(1024, 1024)] * device.count, "each device its own product"


@pytest.mark.parametrize("name", BACKENDS)
def test_a_probe_of_this_machine(name):
    module, device, _ = BACKENDS[name]
    assert 1e6 < module.probe(device, 0.02) < 1e16


@pytest.mark.parametrize(
    ("name", "framework", "functions"),
    [
        ("null", np, ["matmul"]),
        ("torch", torch, ["matmul"]),
        ("torch", torch.cuda, ["synchronize"]),
        ("torch", torch.mps, ["synchronize"]),
        ("mlx", mlx_harness.mx, ["matmul", "eval"]),
        ("jax", jax, ["block_until_ready", "jit"]),
        ("jax", jax.numpy, ["matmul"]),
    ],
)
def test_a_candidate_that_patches_its_framework_patches_no_probe(name, framework, functions, monkeypatch):
    def patched(*args, **options):
        raise AssertionError("the probe must not look for this when it runs")

    module, device, _ = BACKENDS[name]
    for function in functions:
        monkeypatch.setattr(framework, function, patched)
    assert module.probe(device, 0.02) > 1e6
    if name == "torch":
        assert patched not in module._wait_for.values()
