"""The trusted side of the PyTorch backend, on a CPU."""

import subprocess
import sys

import numpy as np
import psutil
import pytest
import reference_numpy as reference
import torch
import torch_harness as harness

from autoresearch.backends import cuda_torch
from autoresearch.backends.cuda_torch import attention, device
from autoresearch.core.contract import Trained
from autoresearch.core.errors import BackendUnavailable, CandidateFailure

AT = np.array([[0, 5], [7, 1], [3, 3], [2, 6]], np.int32)
"""Positions of the logits that are asked for, in each of four rows."""


@pytest.fixture
def no_accelerator(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.parametrize("asked", ["auto", "cuda"])
def test_no_cuda_device_is_said_in_one_line_with_the_way_to_the_cpu(asked, no_accelerator):
    with pytest.raises(BackendUnavailable, match="finds no CUDA device") as caught:
        device.describe(asked)
    assert "\n" not in caught.value.message
    assert "--device cpu" in caught.value.hint
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(("asked", "title"), [("mps", "Metal device"), ("tpu", "device 'tpu'")])
def test_another_missing_device_is_named(asked, title, no_accelerator):
    with pytest.raises(BackendUnavailable, match=f"finds no {title}"):
        device.describe(asked)


@pytest.mark.parametrize(("cuda", "mps", "chosen"), [(True, False, "cuda"), (True, True, "cuda"), (False, True, "mps")])
def test_auto_takes_the_best_device(cuda, mps, chosen, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert device._platform("auto") == chosen
    assert device._platform("cpu") == "cpu"


def test_every_choice_on_a_cpu_has_a_reason():
    info = device.describe("cpu", 40.0)
    assert info.platform == "cpu"
    assert info.backend == "cuda"
    assert info.count == 1
    assert info.attention == "sdpa"
    assert info.dtype in ("float32", "bfloat16")
    assert not info.compile
    assert "threads" in info.name
    assert info.peak_flops > 1e8
    assert info.memory_bytes > 2**28
    assert info.reasons.keys() == {"dtype", "attention", "compile", "peak_flops"}
    assert all(info.reasons.values())


@pytest.mark.parametrize(("half", "chosen"), [(0.4, "bfloat16"), (0.95, "float32"), (100.0, "float32")])
def test_the_dtype_is_chosen_by_measured_speed(half, chosen, monkeypatch):
    """Emulated bfloat16 is slower than float32; a close call is float32 too."""
    monkeypatch.setattr(device, "_fastest", lambda functions, platform: [1.0, half])
    assert device._dtype("cpu")[0] == chosen


def test_a_device_that_refuses_bfloat16_gets_float32(monkeypatch):
    def refuse(functions, platform):
        raise RuntimeError("bf16 is not supported\nsecond line")

    monkeypatch.setattr(device, "_fastest", refuse)
    assert device._dtype("cpu") == ("float32", "bfloat16 does not run here: bf16 is not supported")


def test_compiling_is_judged_by_the_budget(monkeypatch):
    monkeypatch.setattr(device.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: object())
    assert not device._compile("cpu", 40.0)[0]
    assert device._compile("cpu", 3600.0)[0]
    assert device._compile("cuda", 300.0)[0]
    assert device._compile("cuda", None)[0]
    assert not device._compile("cuda", 10.0)[0]
    assert not device._compile("mps", 3600.0)[0]


def test_without_a_compiler_it_runs_eager_and_says_so(monkeypatch):
    monkeypatch.setattr(device.shutil, "which", lambda name: None)
    for platform in ("cpu", "cuda"):
        chosen, reason = device._compile(platform, 3600.0)
        assert not chosen
        assert "no C++ compiler" in reason


def test_providers_that_do_not_work_here_are_passed_over_with_their_reasons():
    """FlashAttention-3 needs the package `kernels`, FlexAttention a GPU."""
    chosen, reason = device._working_attention(["flash3", "flex"], "cpu", "float32")
    assert chosen == "sdpa"
    assert "flash3 fails" in reason
    assert "flex fails" in reason


def test_a_provider_that_ignores_the_window_is_refused(monkeypatch):
    def provider(name, seq_len, windows, where):
        return {"wrong": lambda q, k, v, window: attention.sdpa(q, k, v, None), "right": attention.sdpa}[name]

    monkeypatch.setattr(device, "provider", provider)
    chosen, reason = device._working_attention(["wrong", "right"], "cpu", "bfloat16")
    assert chosen == "right"
    assert "wrong is wrong by" in reason
    assert "right agrees" in reason


@pytest.mark.parametrize(
    ("name", "dtype", "flops"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989e12),
        ("NVIDIA H100 PCIe", "bfloat16", 756e12),
        ("NVIDIA H200", "bfloat16", 989e12),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312e12),
        ("NVIDIA L4", "bfloat16", 121e12),
        ("NVIDIA L40S", "bfloat16", 362e12),
        ("NVIDIA L40", "bfloat16", None),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165e12),
        ("Tesla T4", "float32", None),
        ("NVIDIA H100 80GB HBM3", "float32", None),
    ],
)
def test_peak_flops_of_known_gpus(name, dtype, flops):
    found, reason = device._peak_flops("cuda", name, dtype)
    assert found == flops
    assert name in reason


def test_put_copies():
    tokens = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    put = device.put(tokens, harness.device_info())
    tokens[:] = -1
    assert put.dtype is torch.int64
    np.testing.assert_array_equal(put.numpy(), np.arange(24).reshape(2, 3, 4))


def test_put_takes_read_only_rows():
    tokens = np.zeros((2, 4), np.int32)
    tokens.flags.writeable = False
    assert device.put(tokens, harness.device_info()).shape == (2, 4)


def score(logits, targets):
    trained = Trained(lambda params, tokens: params, torch.as_tensor(logits))
    return device.nats(trained, torch.from_numpy(targets), torch.from_numpy(targets))


@pytest.mark.parametrize("logits", [np.zeros((2, 8)), np.zeros((2, 7, 50)), np.zeros((2, 8, 50, 1))])
def test_logits_of_another_shape_are_invalid(logits):
    with pytest.raises(CandidateFailure, match="logits are") as caught:
        score(logits, np.zeros((2, 8), np.int64))
    assert caught.value.status == "invalid"


def test_logits_for_too_few_tokens_are_invalid():
    with pytest.raises(CandidateFailure, match="logits for 50 tokens; a target is 50"):
        score(np.zeros((2, 8, 50)), np.full((2, 8), 50))


def test_logits_and_nats_of_a_model_agree_without_gradients():
    gpt = harness.model(harness.load())
    modes = []

    def run(params, tokens):
        modes.append((params.training, torch.is_grad_enabled()))
        return params(tokens)

    trained = Trained(run, gpt)
    tokens = np.random.default_rng(0).integers(0, harness.VOCAB, (4, harness.SEQ_LEN))
    inputs, targets = torch.from_numpy(tokens), torch.from_numpy(tokens[:, ::-1].copy())
    logits = device.logits(trained, inputs, AT)
    assert logits.shape == (*AT.shape, harness.VOCAB)
    assert logits.dtype == np.float32
    nats = device.nats(trained, inputs, targets)
    want = reference.nats(logits.astype(np.float64), np.take_along_axis(targets.numpy(), AT, 1))
    np.testing.assert_allclose(np.take_along_axis(nats, AT, 1), want, atol=1e-5)
    assert modes == [(False, False)] * 2


def test_count_and_wait_take_modules_and_trees():
    shared = torch.nn.Linear(3, 4, bias=False)
    assert device.count(torch.nn.Sequential(shared, torch.nn.ReLU(), shared)) == 12
    tree = {"a": torch.zeros(2, 3), "b": [torch.zeros(5), (torch.zeros(()), None)]}
    assert device.count(tree) == 12
    device.wait(tree)
    device.wait(shared)
    device.wait(1.0)


def test_out_of_memory_is_told_from_other_errors():
    assert device.out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert device.out_of_memory(MemoryError())
    assert not device.out_of_memory(RuntimeError("shapes do not match"))
    assert not device.out_of_memory(ValueError("out of memory"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert device.out_of_memory(caught.value)


def test_peak_memory_is_at_least_what_is_resident():
    resident = psutil.Process().memory_info().rss
    assert resident * 0.95 <= device.peak_memory_bytes(harness.device_info()) < psutil.virtual_memory().total


def test_seed_repeats_torch_and_numpy():
    device.seed(2**40 + 1)
    first = torch.rand(3), np.random.rand(3)
    device.seed(2**40 + 1)
    assert torch.equal(torch.rand(3), first[0])
    np.testing.assert_array_equal(np.random.rand(3), first[1])


def test_a_loss_on_the_host_is_itself():
    loss = torch.tensor(2.5)
    assert float(device.to_host(loss)) == 2.5


def test_the_facts_load_no_framework():
    code = "import sys, autoresearch.backends.cuda_torch as b; b.environment('cpu'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_facts():
    assert cuda_torch.BASELINE.is_file()
    assert "pip install '.[" in cuda_torch.INSTALL_HINT
    assert "torch" in cuda_torch.ALLOWED_IMPORTS
    assert cuda_torch.environment("cpu").keys().isdisjoint(cuda_torch.environment("auto"))


class Spy(torch.Tensor):
    """Sees the targets where the loss is computed by torch functions of its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_tensor_subclass_is_no_logits():
    trained = Trained(lambda params, tokens: torch.zeros(*tokens.shape, 5).as_subclass(Spy), None)
    with pytest.raises(CandidateFailure, match=r"plain torch\.Tensor"):
        device.nats(trained, torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, dtype=torch.long))


class Watching(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_a_mode_that_is_left_on_is_refused():
    mode = Watching()
    trained = Trained(lambda params, tokens: (mode.__enter__(), torch.zeros(*tokens.shape, 5))[1], None)
    try:
        with pytest.raises(CandidateFailure, match="mode left on"):
            device.nats(trained, torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, dtype=torch.long))
    finally:
        mode.__exit__(None, None, None)


def test_a_model_that_the_candidate_compiled_is_scored_eagerly():
    def compiler(graph, inputs):
        raise AssertionError("compiled")

    compiled = torch.compile(lambda tokens: torch.zeros(*tokens.shape, 5), backend=compiler)
    trained = Trained(lambda params, tokens: compiled(tokens), None)
    scored = device.nats(trained, torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, dtype=torch.long))
    assert np.allclose(scored, np.log(5))
