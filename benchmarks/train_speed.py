"""How fast each backend trains and scores the reference model, against its own framework's matrix product.

    python benchmarks/train_speed.py                                  every backend that is installed, on the processor
    python benchmarks/train_speed.py --backend cuda --device auto     one backend on its accelerator

Each backend runs in a process of its own, with the environment that its child would have and no compiled code kept from
before. Printed: tokens/s; the share of the framework's float32 matrix product of size 1024, the best of those measured
before and after the training in the same process; seconds of set-up, compiling included; tokens/s of scoring; and
milliseconds of a step with next to nothing to compute, which is what Python and the framework cost. Tokens are random.

Aims with the preset tinystories/cpu: torch 60 % (compiled, bfloat16), JAX 33 %, MLX with a real BLAS 12 %; scoring at
twice the tokens/s of training.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from autoresearch.agent.folder import workspace_files
from autoresearch.backends.hardware import fastest
from autoresearch.core import registry
from autoresearch.core.constants import set_constants
from autoresearch.core.contract import Backend, DeviceInfo, Trained
from autoresearch.core.executor import MAX_ROWS
from autoresearch.core.experiment import ExperimentRun, public
from autoresearch.core.process import child_environment
from autoresearch.core.task import Task, load_settings
from autoresearch.core.workspace import TRAIN

SIZE = 1024
"""Of the matrix product."""
EMPTY_STEP = {"ASPECT_RATIO": 16, "HEAD_DIM": 32, "TOTAL_BATCH_SIZE": 32, "DEVICE_BATCH_ROWS": 1}
"""The depth of the preset, and so its number of operations, at a width and a batch that take no time to compute."""


def _product(backend: str, platform: str) -> Callable[[], Any]:
    """One float32 matrix product of SIZE, waited for."""
    if backend == "cuda":
        import torch

        a, b = (torch.randn(SIZE, SIZE, device=platform) for _ in range(2))
        return lambda: float((a @ b)[0, 0])
    if backend == "jax":
        import jax

        matrix = jax.random.normal(jax.random.key(0), (SIZE, SIZE))
        product = jax.jit(lambda x: x @ x)
        return lambda: product(matrix).block_until_ready()
    import mlx.core as mx

    left, right = (mx.random.normal((SIZE, SIZE)) for _ in range(2))
    return lambda: mx.eval(left @ right)


def _trained(backend: Backend, device: DeviceInfo, task: Task, source: str, seconds: float) -> tuple[Any, Trained]:
    """The run and the model after `seconds` of training on random tokens."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / TRAIN
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("train", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["train"] = module
        spec.loader.exec_module(module)
        rows = np.random.default_rng(0).integers(0, task.vocab_size, (8192, task.seq_len + 1), dtype=np.uint16)
        run = ExperimentRun(backend, device, replace(task, train_seconds=seconds), task.vocab_size, rows, 1, MAX_ROWS)
        trained = module.train(public(run))
        run.finish(trained.params)
    return run, trained


def _scoring_rate(backend: Backend, device: DeviceInfo, task: Task, trained: Trained) -> tuple[float, float]:
    """Seconds of the first call, and tokens/s of later ones, in the shape that val is scored in."""
    tokens = np.random.default_rng(1).integers(0, task.vocab_size, (task.eval_rows, task.seq_len), dtype=np.int32)
    seconds = []
    for _ in range(6):
        start = time.perf_counter()
        backend.nats(trained, backend.put(tokens, device), backend.put(tokens, device))
        seconds.append(time.perf_counter() - start)
    return seconds[0], tokens.size / median(seconds[1:])


def measure(name: str, asked: str, preset: str, seconds: float, budget: float) -> dict[str, Any]:
    """All figures of one backend, in this process."""
    settings = load_settings(preset, Path("none"), {"backend": name, "device": asked})
    source = workspace_files(settings)[TRAIN]
    backend = registry.load(name)
    device = backend.describe(asked, budget)
    product = _product(name, device.platform)
    peak = 2 * SIZE**3 / fastest([product], repeats=20)[0]
    start = time.perf_counter()
    run, trained = _trained(backend, device, settings.task, source, seconds)
    setup = time.perf_counter() - start - run.clock.elapsed
    peak = max(peak, 2 * SIZE**3 / fastest([product], repeats=20)[0])
    rate = run.tokens / run.clock.elapsed
    first, scoring = _scoring_rate(backend, device, settings.task, trained)
    return {
        "device": asdict(device),
        "tokens_per_second": rate,
        "share_of_peak": float(run.facts["flops_per_token"]) * rate / peak,
        "peak": peak,
        "setup_seconds": setup,
        "first_scoring_seconds": first,
        "scoring_tokens_per_second": scoring,
        "step_ms": 1e3 * run.clock.elapsed / run.clock.steps,
    }


def measure_empty(name: str, asked: str, preset: str, budget: float) -> dict[str, Any]:
    """Milliseconds of a step with nothing to compute. In a process of its own: what is compiled for one shape may be
    compiled for any shape the second time."""
    settings = load_settings(preset, Path("none"), {"backend": name, "device": asked})
    source = set_constants(workspace_files(settings)[TRAIN], EMPTY_STEP)
    tiny = replace(settings.task, seq_len=EMPTY_STEP["TOTAL_BATCH_SIZE"], vocab_size=264)
    backend = registry.load(name)
    run, _ = _trained(backend, backend.describe(asked, budget), tiny, source, 3.0)
    return {"empty_step_ms": 1e3 * run.clock.elapsed / run.clock.steps}


def _said(name: str, found: dict[str, Any]) -> str:
    device = found["device"]
    how = f"{device['dtype']}, {'compiled' if device['compile'] else 'eager'}, attention {device['attention']}"
    rate, score = found["tokens_per_second"], found["scoring_tokens_per_second"]
    return (
        f"{name:4s} {device['name']} x{device['count']}, {device['framework']}: {how}\n"
        f"     training {rate:,.0f} tokens/s, {found['share_of_peak']:.1%} of its float32 matrix product "
        f"({found['peak'] / 1e9:,.0f} GFLOP/s); a step {found['step_ms']:.0f} ms, with nothing to compute "
        f"{found['empty_step_ms']:.1f} ms\n"
        f"     set-up {found['setup_seconds']:.1f} s; scoring {score:,.0f} tokens/s, {score / rate:.1f} x training, "
        f"the first call {found['first_scoring_seconds']:.1f} s"
    )


@click.command()
@click.option("--backend", "names", multiple=True, help="May be given several times; default: all that are installed.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--preset", default="tinystories/cpu", show_default=True)
@click.option("--seconds", default=20.0, show_default=True, help="Of training.")
@click.option("--budget", default=300.0, show_default=True, help="By which the backend judges whether compiling pays.")
@click.option("--one", type=click.Choice(["full", "empty"]), hidden=True, help="Measure one backend in this process.")
def main(names: tuple[str, ...], device: str, preset: str, seconds: float, budget: float, one: str | None) -> None:
    if one == "full":
        print(json.dumps(measure(names[0], device, preset, seconds, budget)))
        return
    if one == "empty":
        print(json.dumps(measure_empty(names[0], device, preset, budget)))
        return
    installed = [name for name, module in (("cuda", "torch"), ("jax", "jax"), ("mlx", "mlx.core")) if _is_there(module)]
    for name in names or installed:
        options = ["--device", device, "--preset", preset, "--seconds", str(seconds), "--budget", str(budget)]
        found: dict[str, Any] = {}
        for part in ("full", "empty"):
            with tempfile.TemporaryDirectory() as folder:
                environment = os.environ | child_environment(name, device, Path(folder), Path(folder))
                command = [sys.executable, __file__, "--one", part, "--backend", name, *options]
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            found |= json.loads(done.stdout.splitlines()[-1])
        print(_said(name, found), flush=True)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


if __name__ == "__main__":
    main()
