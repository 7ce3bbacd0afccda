"""What is PyTorch's own in training: compiled steps, and Python's garbage collector out of the way."""

import contextlib
import gc
import shutil

import numpy as np
import pytest
import torch_harness as harness


@pytest.mark.parametrize("fault", [[], [("optimizer.step(step, progress)", "optimizer.step(step, progress / step)")]])
def test_the_garbage_collector_is_put_back(fault):
    """Also after a crash in the first real step, whose number is 0."""
    with pytest.raises(ZeroDivisionError) if fault else contextlib.nullcontext():
        harness.train(harness.load(*fault), steps=2)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_equals_eager(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    shallow = {"DEPTH": 2}  # both windows; what takes time is the number of layers
    eager = harness.train(harness.load(**shallow))[0]
    losses = harness.train(harness.load(**shallow), info=harness.device_info(compile=True))[0]
    np.testing.assert_allclose(losses, eager, rtol=1e-4)
