"""The command that fetches the attention kernel: offered only where it would help."""

import importlib.util
import sys

import pytest

from autoresearch.backends.cuda_torch import device


@pytest.fixture
def kernels_installed(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "kernels" else found(name))


def test_a_missing_kernel_is_offered_for_fetching(kernels_installed):
    command = device._fetch("flash3 fails (OSError: not on the disk); flex agrees with a dense mask within 1.0e-03")
    assert command == (sys.executable, "-m", "autoresearch.backends.cuda_torch.fetch")


@pytest.mark.parametrize("reason", ["flash3 agrees with a dense mask within 1.0e-03", "works on every device"])
def test_nothing_is_fetched_where_it_is_there_or_of_no_use(kernels_installed, reason):
    assert device._fetch(reason) == ()


@pytest.mark.skipif(importlib.util.find_spec("kernels") is not None, reason="the package kernels is installed")
def test_nothing_is_fetched_without_the_package():
    assert device._fetch("flash3 fails (ModuleNotFoundError: kernels)") == ()
