"""`train_harness` for JAX."""

from __future__ import annotations

import jax
import train_harness

from autoresearch.backends import jax_tpu
from autoresearch.backends.jax_tpu import device as backend
from autoresearch.core.contract import DeviceInfo

# Before the first array: four devices in this process, of which each test says how many it uses.
jax.config.update("jax_num_cpu_devices", 4)

SOURCE = jax_tpu.BASELINE.read_text(encoding="utf-8")
ONE_LAYER = {"DEPTH": 1, "ASPECT_RATIO": 32}
"""With a value embedding: little to compile. Models of all kinds are tested in `tests/parity`."""


def device_info(dtype="float32", attention="blocks", count=1):
    return DeviceInfo("jax", "cpu", "cpu", count, "jax", dtype, attention, True, None, 0)


def load(*faults, **constants):
    return train_harness.load(SOURCE, *faults, **{**ONE_LAYER, **constants})


def train(module, info=None, **options):
    return train_harness.train(module, backend, info or device_info(), **options)
