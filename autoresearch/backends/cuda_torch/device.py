"""The trusted side of the PyTorch backend: what the machine offers, transfers, scoring, memory.

A train.py imports four helpers from here, `attention`, `compiled`, `to_host` and the type `Attend`, so that it holds
no branch on the device. Every choice of `describe` carries its reason. One process uses one device.
"""

from __future__ import annotations

import importlib.util
import os
import platform as host
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import psutil
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack as _function_modes
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as _dispatch_modes

from autoresearch.backends import hardware
from autoresearch.backends.cuda_torch.attention import Attend, largest_error, provider
from autoresearch.core.contract import DeviceInfo, Trained
from autoresearch.core.errors import BackendUnavailable, CandidateFailure

__all__ = [
    "Attend",
    "attention",
    "compiled",
    "count",
    "describe",
    "logits",
    "nats",
    "out_of_memory",
    "peak_memory_bytes",
    "probe",
    "put",
    "seed",
    "to_host",
    "wait",
]

# Taken before any candidate is loaded, so that one that patches PyTorch doesn't patch its own score or its clock. All
# are functions in C, which call nothing replaceable; methods and operators are looked up in classes that can be.
_exp_in_place, _log, _sum = Tensor.exp_, torch.log, torch.sum
_gather, _matmul, _max = torch.gather, torch.matmul, torch.max
_amax, _from_numpy, _index_select = torch.amax, torch.from_numpy, torch.index_select
_squeeze, _stack, _sub = torch.squeeze, torch.stack, torch.sub
_unbind, _unsqueeze = torch.unbind, torch.unsqueeze
_cpu, _float, _numpy, _to = Tensor.cpu, Tensor.float, Tensor.numpy, Tensor.to
_wait_for = MappingProxyType({"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize})

P = ParamSpec("P")
R = TypeVar("R")

# Shortest training time, in seconds, that repays the minute that compiling takes. On two cores a compiled step of the
# small preset ran 1.3 times as fast as an eager one.
COMPILE_PAYS = {"cuda": 60.0, "cpu": 300.0}
# bfloat16 halves memory traffic as well, but where it is emulated it loses several times over: no close calls.
BFLOAT16_GAIN = 1.2
ATTENTION_TOLERANCE = 0.03


def describe(device: str = "auto", budget_seconds: float | None = None) -> DeviceInfo:
    """Probe the machine; takes about a second, more where an attention kernel is compiled for its check.

    Args:
        device: "auto" (CUDA, else MPS), "cuda", "mps" or "cpu".
        budget_seconds: training time of one measurement; None is long enough for anything.

    Raises:
        BackendUnavailable: no such device here.
    """
    platform = _platform(device)
    dtype, dtype_reason = _dtype(platform)
    compile, compile_reason = _compile(platform, budget_seconds)
    attention, attention_reason = _attention(platform, dtype, compile)
    name, memory = _identity(platform)
    peak, peak_reason = _peak_flops(platform, name, dtype)
    return DeviceInfo(
        backend="cuda",
        platform=platform,
        name=name,
        count=1,
        framework=f"torch {torch.__version__}",
        dtype=dtype,
        attention=attention,
        compile=compile,
        peak_flops=peak,
        memory_bytes=memory,
        reasons={
            "dtype": dtype_reason,
            "attention": attention_reason,
            "compile": compile_reason,
            "peak_flops": peak_reason,
        },
        fetch=_fetch(attention_reason),
    )


def _platform(device: str) -> str:
    usable = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        device = "mps" if usable["mps"] and not usable["cuda"] else "cuda"
    if not usable.get(device, False):
        title = {"cuda": "CUDA device", "mps": "Metal device"}.get(device, f"device {device!r}")
        raise BackendUnavailable(
            f"torch {torch.__version__} finds no {title} on this machine",
            "run the same code on the processor: autoresearch --backend cuda --device cpu",
        )
    return device


def _identity(platform: str) -> tuple[str, int]:
    """Name of the device and the bytes of memory that it can use."""
    if platform == "cuda":
        properties = torch.cuda.get_device_properties(0)
        return properties.name, properties.total_memory
    if platform == "mps":
        return f"Apple {host.machine()} GPU", torch.mps.recommended_max_memory()
    return f"{hardware.processor_name()}, {torch.get_num_threads()} threads", psutil.virtual_memory().total


def _fastest(functions: Sequence[Callable[[], Any]], platform: str, repeats: int = 8) -> list[float]:
    """Shortest time of each function in seconds; they take turns, so that a busy moment meets all of them."""
    best = [float("inf")] * len(functions)
    for _ in range(repeats):
        for i, function in enumerate(functions):
            _synchronize(platform)
            start = perf_counter()
            function()
            _synchronize(platform)
            best[i] = min(best[i], perf_counter() - start)
    return best


def _synchronize(platform: str) -> None:
    if platform in _wait_for:
        _wait_for[platform]()


def _dtype(platform: str) -> tuple[str, str]:
    """bfloat16 where a linear layer with a float32 master weight runs faster in it, forward and backward."""
    size = 512 if platform == "cpu" else 2048
    weight = torch.randn(size, size, device=platform, requires_grad=True)

    def step(dtype: torch.dtype) -> Callable[[], Any]:
        x = torch.randn(2 * size, size, device=platform, dtype=dtype, requires_grad=True)
        return lambda: torch.autograd.grad(F.linear(x, weight.to(dtype)).sum(), (x, weight))

    try:
        exact, half = _fastest([step(torch.float32), step(torch.bfloat16)], platform)
    except RuntimeError as error:
        return "float32", f"bfloat16 does not run here: {error}".splitlines()[0]
    said = f"a linear layer takes {half / exact:.2f} of its float32 time in bfloat16"
    return ("bfloat16" if exact >= BFLOAT16_GAIN * half else "float32"), said


def _compile(platform: str, budget_seconds: float | None) -> tuple[bool, str]:
    if platform not in COMPILE_PAYS:
        return False, f"torch.compile is not relied on for {platform}"
    needed = COMPILE_PAYS[platform]
    if budget_seconds is not None and budget_seconds < needed:
        return False, f"a budget of {budget_seconds:g} s does not repay compiling, {needed:g} s would"
    wanted = os.environ.get("CXX", ""), "c++", "g++", "clang++"
    if not any(shutil.which(compiler) for compiler in wanted if compiler):
        return False, "no C++ compiler is found; install g++ to compile"
    if platform == "cuda" and importlib.util.find_spec("triton") is None:
        return False, "triton is not installed"
    return True, "the budget repays it"


def _attention(platform: str, dtype: str, compile: bool) -> tuple[str, str]:
    """The first provider of the table that works here, and why."""
    table = []
    if platform == "cuda":
        if torch.cuda.get_device_capability() == (9, 0) and dtype == "bfloat16":
            table.append("flash3")
        if compile:
            table.append("flex")
    return _working_attention(table, platform, dtype)


def _working_attention(table: Iterable[str], platform: str, dtype: str) -> tuple[str, str]:
    """The first of `table` that agrees with a dense mask on this device, outputs and gradients; else "sdpa"."""
    seq_len, window, notes = 256, 100, []
    q, k, v = (torch.randn(2, seq_len, heads, 64, device=platform, dtype=getattr(torch, dtype)) for heads in (4, 2, 2))
    for name in table:
        try:
            attend = provider(name, seq_len, [window], torch.device(platform))
            error = max(largest_error(attend, w, q, k, v) for w in (window, None))
        except Exception as problem:  # a kernel of another project: whatever it raises, there is a fallback
            notes.append(f"{name} fails ({type(problem).__name__}: {problem})".splitlines()[0][:160])
            continue
        if error <= ATTENTION_TOLERANCE:
            return name, "; ".join([*notes, f"{name} agrees with a dense mask within {error:.1e}"])
        notes.append(f"{name} is wrong by {error:.1e} against a dense mask")
    return "sdpa", "; ".join([*notes, "in float32 on a processor" if platform == "cpu" else "works on every device"])


def _fetch(attention_reason: str) -> tuple[str, ...]:
    """The command for a kernel that this device could use and that is not on the disk yet."""
    wanted = attention_reason.startswith("flash3 fails") and importlib.util.find_spec("kernels") is not None
    return (sys.executable, "-m", "autoresearch.backends.cuda_torch.fetch") if wanted else ()


def _peak_flops(platform: str, name: str, dtype: str) -> tuple[float | None, str]:
    if platform == "cuda":
        flops = hardware.nvidia_peak_flops(name)
        if dtype == "bfloat16" and flops is not None:
            return flops, f"data sheet of {name}, dense bfloat16"
        return None, f"unknown for {name} in {dtype}"
    size = 1024
    a, b = (torch.randn(size, size, device=platform, dtype=getattr(torch, dtype)) for _ in range(2))
    (seconds,) = _fastest([lambda: a @ b], platform)
    return 2 * size**3 / seconds, f"measured: a {dtype} matrix product of size {size}"


def attention(device: DeviceInfo, seq_len: int, windows: Iterable[int | None]) -> Attend:
    """The attention function of `device.attention`: `attend(q, k, v, window)`, see `attention.py`.

    Args:
        seq_len: T of the rows it will see; other lengths work, without block masks.
        windows: all values of `window` that it will see.
    """
    return provider(device.attention, seq_len, windows, torch.device(device.platform))


def compiled(function: Callable[P, R], device: DeviceInfo) -> Callable[P, R]:
    """`function`, compiled for static shapes where `device.compile` says that it pays."""
    return cast("Callable[P, R]", torch.compile(function, dynamic=False)) if device.compile else function


class _Arriving:
    """A scalar on its way to the host; float() waits for its copy alone, not for work that was queued later."""

    def __init__(self, value: Tensor) -> None:
        self._value = torch.empty((), dtype=value.dtype, pin_memory=True)
        self._value.copy_(value, non_blocking=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record()

    def __float__(self) -> float:
        self._copied.synchronize()
        return float(self._value)


def to_host(value: Tensor) -> Any:
    """Begin to copy a scalar to the host; float() of the result waits until it is there."""
    return _Arriving(value) if value.is_cuda else value


def seed(n: int) -> None:
    """Seed PyTorch's generators on every device, and NumPy's global one, which a train.py may use."""
    torch.manual_seed(n)
    np.random.seed(n % 2**32)


def put(tokens: NDArray[np.int32], device: DeviceInfo) -> Tensor:
    """Copy tokens to the device as int64, of the same shape; asynchronous on CUDA.

    A copy can't race with the next batch: each call pins a buffer of its own, and PyTorch's caching host allocator
    hands a pinned buffer out again only when the copies recorded on it are done.
    """
    source = torch.from_numpy(np.require(tokens, np.int32, ["C", "W"]))
    if device.platform == "cuda":
        source = source.pin_memory()
    return source.to(device.platform, non_blocking=device.platform == "cuda").long()


def _tensors(value: Any) -> Iterator[Tensor]:
    """Tensors of a module (parameters, each once), a mapping, a sequence, or one alone."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def wait(value: Any) -> None:
    """Block until the devices that hold tensors of `value` are idle."""
    for platform in {tensor.device.type for tensor in _tensors(value)}:
        _synchronize(platform)


def _modes() -> bool:
    """Whether a mode is on that sees every call of a torch function."""
    return bool(_function_modes() or _dispatch_modes())  # type: ignore[no-untyped-call]


def _forward(trained: Trained, inputs: Tensor) -> Tensor:
    """Logits (B, T, V), eager: scoring takes seconds, compiling another graph for it would take longer."""
    if isinstance(trained.params, nn.Module):
        trained.params.eval()
    # A model that the candidate compiled would compile again for this shape.
    with torch.compiler.set_stance("force_eager"):
        found = trained.logits(trained.params, inputs)
    # A subclass or a mode would see the targets on their way to the loss.
    if (isinstance(found, Tensor) and type(found) is not Tensor) or _modes():
        raise CandidateFailure("invalid", "logits must be a plain torch.Tensor, with no torch function mode left on")
    if not isinstance(found, Tensor) or found.ndim != 3 or found.shape[:2] != inputs.shape:
        received = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise CandidateFailure(
            "invalid", f"logits are {received}, not a tensor (B, T, V) for inputs {tuple(inputs.shape)}"
        )
    return found


@torch.inference_mode()
def nats(trained: Trained, inputs: Tensor, targets: Tensor) -> NDArray[np.float32]:
    """Negative log-likelihood of each target, (B, T) in nats, by a float32 log-softmax, one row at a time.

    Raises:
        CandidateFailure: the logits don't have the shape (B, T, V).
    """
    scores = _forward(trained, inputs)
    if scores.size(-1) <= (largest := int(_max(targets))):
        raise CandidateFailure("invalid", f"logits for {scores.size(-1)} tokens; a target is {largest}")
    rows = []
    for row, target in zip(_unbind(scores), _unbind(targets), strict=True):
        wide = _float(row)
        # Both terms are small once the largest is taken off, so that no offset of all logits swallows their difference.
        wide = _sub(wide, _amax(wide, -1, True))
        chosen = _squeeze(_gather(wide, -1, _unsqueeze(target, -1)), -1)
        rows.append(_sub(_log(_sum(_exp_in_place(wide), -1)), chosen))
    return cast("NDArray[np.float32]", _numpy(_cpu(_stack(rows))))


@torch.inference_mode()
def logits(trained: Trained, inputs: Tensor, positions: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logits of each row at its own `positions` (B, n), (B, n, V) float32 on the host, in the shape of `inputs`.

    Raises:
        CandidateFailure: the logits don't have the shape (B, T, V).
    """
    scores = _forward(trained, inputs)
    wanted = _to(_from_numpy(positions.astype(np.int64)), scores.device)
    chosen = [_index_select(row, 0, at) for row, at in zip(_unbind(scores), _unbind(wanted), strict=True)]
    return cast("NDArray[np.float32]", _numpy(_cpu(_float(_stack(chosen)))))


def count(params: Any) -> int:
    """Scalar parameters of a module, or of a tree of tensors."""
    return sum(tensor.numel() for tensor in _tensors(params))


def peak_memory_bytes(device: DeviceInfo) -> int:
    """Peak of allocated CUDA memory; on Metal the driver's current total, on a processor the peak resident set."""
    if device.platform == "cuda":
        return torch.cuda.max_memory_allocated()
    if device.platform == "mps":
        return torch.mps.driver_allocated_memory()
    return hardware.peak_resident_bytes()


def probe(device: DeviceInfo, seconds: float) -> float:
    """FLOP/s of matrix products in the compute dtype, of size 1024 on a processor, else 2048, several between waits."""
    size, products = (1024, 1) if device.platform == "cpu" else (2048, 16)
    dtype = getattr(torch, device.dtype)
    a = torch.linspace(-1, 1, size * size, device=device.platform, dtype=dtype).reshape(size, size)
    out = torch.empty_like(a)

    def work() -> None:
        for _ in range(products):
            _matmul(a, a, out=out)
        _synchronize(device.platform)

    return hardware.rate(work, products * 2 * size**3, seconds)


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that device or host memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and re.search("out of memory|can't allocate memory", str(error)) is not None
