"""`train_harness` for PyTorch."""

from __future__ import annotations

import train_harness

from autoresearch.backends import cuda_torch
from autoresearch.backends.cuda_torch import device as backend
from autoresearch.core.contract import DeviceInfo

SOURCE = cuda_torch.BASELINE.read_text(encoding="utf-8")
SEQ_LEN, VOCAB = train_harness.SEQ_LEN, train_harness.VOCAB


def device_info(dtype="float32", attention="sdpa", compile=False):
    return DeviceInfo("cuda", "cpu", "cpu", 1, "torch", dtype, attention, compile, None, 0)


def load(*faults, **constants):
    return train_harness.load(SOURCE, *faults, **constants)


def model(module, dtype="float32", seq_len=SEQ_LEN, attend=None, seed=0):
    """A GPT on the CPU, every matrix that starts at zero filled, so that nothing is hidden by it."""
    import torch

    backend.seed(seed)
    if attend is None:
        attend = backend.attention(device_info(dtype), seq_len, module.attention_windows(seq_len))
    gpt = module.GPT(VOCAB, seq_len, getattr(torch, dtype), attend)
    with torch.no_grad():
        for name, p in gpt.named_parameters():
            if name.endswith(("output", "gate")):
                p.normal_(0, 0.1)
            elif name == "head":
                p.mul_(300)
            elif name.endswith("_lambda"):
                p.add_(torch.linspace(-0.2, 0.2, len(p)))
    return gpt


def train(module, info=None, **options):
    return train_harness.train(module, backend, info or device_info(), **options)
