"""Makes the helpers importable, and runs each test on every backend that the project promises."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "backends")]

import dialects  # noqa: E402


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.parity)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """At this size a second thread of PyTorch only waits, and on a busy machine very long."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """A folder for what JAX compiles, one for all workers of a parallel session."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled-by-jax"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True, scope="module")
def quick_compile(compiled):
    """JAX compiles each program once in a session, and doesn't optimise what runs for milliseconds."""
    if importlib.util.find_spec("jax") is None:
        yield
        return
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    wanted = {
        "jax_disable_most_optimizations": True,
        "jax_compilation_cache_dir": str(compiled),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: jax.config.values[name] for name in wanted}
    for values in (wanted, before):
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        if values is wanted:
            yield


@pytest.fixture(params=dialects.SUBJECTS)
def backend(request):
    """The adapter class of one backend: `backend(*faults, **constants)` is its train.py, loaded."""
    return dialects.require(request.param)


@pytest.fixture
def all_backends():
    """The adapter classes of all backends, by name."""
    return {name: dialects.require(name) for name in dialects.SUBJECTS}
