"""The PyTorch model against brute force and the NumPy reference, with planted faults that must be seen."""

import numpy as np
import pytest
import reference_numpy as reference
import torch
import torch_harness as harness

from autoresearch.backends.cuda_torch import attention, device
from autoresearch.core.contract import Trained

PATTERNS = ["L", "S", "SSSL", "SSSSL"]


def flex_attend(seq_len, windows):
    return attention.flex(seq_len, windows, torch.device("cpu"), compile=False)


def sdpa_attend(seq_len, windows):
    return attention.sdpa


PROVIDERS = [
    sdpa_attend,
    pytest.param(flex_attend, marks=pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")),
]


def qkv(seq_len=16, heads=4, kv_heads=2, head_dim=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, seq_len, n, head_dim, generator=generator) for n in (heads, kv_heads, kv_heads)]


@pytest.mark.parametrize("make", PROVIDERS)
@pytest.mark.parametrize("window", [None, 0, 1, 4, 15, 100])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_query_sees_itself_and_the_window_before_it(make, window, kv_heads):
    q, k, v = qkv(kv_heads=kv_heads)
    got = make(16, [window])(q, k, v, window).numpy()
    want = reference.attend(*(x.double().numpy() for x in (q, k, v)), window)
    np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.parametrize("make", PROVIDERS)
def test_the_window_test_tells_w_from_w_plus_one(make):
    q, k, v = qkv()
    want = reference.attend(*(x.double().numpy() for x in (q, k, v)), 4)
    for wrong in (3, 5, None):
        assert np.abs(make(16, [wrong])(q, k, v, wrong).numpy() - want).max() > 1e-2


@pytest.mark.parametrize("window", [None, 5])
def test_gradients_agree_with_a_dense_mask(window):
    """FlexAttention has no backward pass on a CPU; `describe` makes this check on the device that it chooses it for."""
    q, k, v = qkv(seq_len=32)
    assert attention.largest_error(attention.sdpa, window, q, k, v) < 1e-5


def test_the_dense_check_sees_a_wrong_provider():
    q, k, v = qkv(seq_len=32)

    def too_wide(q, k, v, window):
        return attention.sdpa(q, k, v, window and window + 1)

    def no_window(q, k, v, window):
        return attention.sdpa(q, k, v, None)

    for wrong in (too_wide, no_window):
        assert attention.largest_error(wrong, 5, q, k, v) > device.ATTENTION_TOLERANCE


def config(module, seq_len):
    return reference.Config(module.HEAD_DIM, tuple(module.attention_windows(seq_len)), module.ROTARY_BASE)


def arrays(gpt):
    return {name: p.detach().double().numpy() for name, p in gpt.named_parameters()}


def relative_error(module, seq_len=16, gpt=None, config_of=None):
    gpt = gpt or harness.model(module, seq_len=seq_len)
    tokens = np.random.default_rng(1).integers(0, harness.VOCAB, (2, seq_len))
    with torch.no_grad():
        got = gpt(torch.from_numpy(tokens)).numpy()
    want = reference.forward(arrays(gpt), tokens, config_of or config(module, seq_len))
    return np.abs(got - want).max() / np.abs(want).max()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kv_group", [1, 2])
def test_forward_equals_numpy(pattern, kv_group):
    module = harness.load(WINDOW_PATTERN=pattern, KV_GROUP=kv_group)
    assert relative_error(module) < 1e-5


@pytest.mark.parametrize(
    "fault",
    [
        ("x1 * cos + x2 * sin, x2 * cos - x1 * sin", "x1 * cos - x2 * sin, x2 * cos + x1 * sin"),
        ("x.chunk(2, dim=-1)", "(x[..., ::2], x[..., 1::2])"),
        ("norm(rotate(q, *rotary)), norm(rotate(k, *rotary))", "rotate(q, *rotary), rotate(k, *rotary)"),
        ("norm(rotate(q, *rotary))", "norm(rotate(q, *rotary)) / 4"),
        ("seq_len // SHORT_WINDOW_DIVISOR}", "seq_len // SHORT_WINDOW_DIVISOR + 1}"),
        ("(DEPTH - 1 - layer) % 2 == 0", "layer % 2 == 0"),
        ("2 * torch.sigmoid", "torch.sigmoid"),
        ("F.relu(linear(x, self.input)).square()", "F.relu(linear(x, self.input))"),
        ("self.x0_lambda[i] * x0", "self.x0_lambda[0] * x0"),
        ("SOFTCAP * torch.tanh(logits / SOFTCAP)", "logits"),
        ('range(DEPTH - 1)] + ["L"]', "range(DEPTH)]"),
    ],
    ids=lambda fault: fault[1][:30],
)
def test_forward_sees_a_planted_fault(fault):
    """The windows that NumPy uses are those of the unchanged file."""
    sound = harness.load(WINDOW_PATTERN="S")
    gpt = harness.model(harness.load(fault, WINDOW_PATTERN="S"), seq_len=16)
    tokens = np.random.default_rng(1).integers(0, harness.VOCAB, (2, 16))
    params = arrays(harness.model(sound, seq_len=16))
    with torch.no_grad():
        for name, p in gpt.named_parameters():
            if name in params and p.shape == params[name].shape:
                p.copy_(torch.from_numpy(params[name]))
        got = gpt(torch.from_numpy(tokens)).numpy()
    want = reference.forward(params, tokens, config(sound, 16))
    assert np.abs(got - want).max() / np.abs(want).max() > 1e-4


def test_norm_epsilon_at_tiny_activations():
    x = torch.randn(3, 64) * 1e-3
    want = reference.norm(x.double().numpy(), 1e-6)
    np.testing.assert_allclose(harness.load().norm(x).numpy(), want, rtol=1e-5)
    assert np.abs(harness.load(NORM_EPS=1e-5).norm(x).numpy() - want).max() > 0.1


@pytest.mark.parametrize("pattern", ["L", "S", "SSSL"])
@pytest.mark.parametrize("make", PROVIDERS)
@pytest.mark.parametrize("path", ["train", "eval"])
def test_the_future_does_not_leak(pattern, make, path):
    module = harness.load(WINDOW_PATTERN=pattern)
    gpt = harness.model(module, seq_len=16, attend=make(16, module.attention_windows(16)))
    assert leak(gpt, path) < 1e-6


@pytest.mark.parametrize("path", ["train", "eval"])
def test_a_leak_is_seen(path):
    """A dropped mask, the commonest fault of ports."""

    def bidirectional(q, k, v, window):
        return torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        ).transpose(1, 2)

    gpt = harness.model(harness.load(), seq_len=16, attend=bidirectional)
    assert leak(gpt, path) > 1e-3


def leak(gpt, path):
    """How far the logits of earlier tokens move when later ones change."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, harness.VOCAB, (2, 16), generator=generator)
    cut = 9
    changed = tokens.clone()
    changed[:, cut:] = (changed[:, cut:] + 1) % harness.VOCAB

    def run(x):
        if path == "eval":
            return torch.from_numpy(device.logits(Trained(lambda params, t: params(t), gpt), x, 2))
        with torch.set_grad_enabled(gpt.attend is attention.sdpa):
            return gpt.train()(x).detach()

    return float((run(tokens)[:, :cut] - run(changed)[:, :cut]).abs().max())


def residual_dtypes(module):
    """Compute dtype of the residual after each block, in a bfloat16 model."""
    gpt = harness.model(module, dtype="bfloat16")
    seen = []
    for block in gpt.blocks:
        block.register_forward_hook(lambda block, inputs, output: seen.append(output.dtype))
    gpt(torch.zeros(1, harness.SEQ_LEN, dtype=torch.long))
    return seen


def test_the_residual_stays_bfloat16():
    assert residual_dtypes(harness.load()) == [torch.bfloat16] * 4


def test_a_promoted_residual_is_seen():
    fault = ("self.resid_lambda[i] * x", "self.resid_lambda[i : i + 1] * x")
    assert torch.float32 in residual_dtypes(harness.load(fault))


def test_dtypes_of_parameters_and_logits():
    gpt = harness.model(harness.load(), dtype="bfloat16")
    tables = {name for name, p in gpt.named_parameters() if p.dtype is torch.bfloat16}
    assert tables == {"wte", "value_embeddings.1", "value_embeddings.3"}
    assert gpt.cos.dtype is torch.bfloat16
    assert gpt(torch.zeros(1, 8, dtype=torch.long)).dtype is torch.float32


def initial_table(module):
    """name -> (shape, mean, standard deviation, largest magnitude)."""
    device.seed(0)
    gpt = module.GPT(harness.VOCAB, harness.SEQ_LEN, torch.float32, attention.sdpa)
    return {
        name: (tuple(p.shape), float(p.mean()), float(p.std(correction=0)), float(p.abs().max()))
        for name, p in gpt.requires_grad_(False).named_parameters()
    }


def check_initial_values(module, scale=1.0):
    D, V = 64, harness.VOCAB
    s = scale * (3 / D) ** 0.5
    table = initial_table(module)
    shapes = {"query": (D, D), "key": (D, D), "value": (D, D), "mlp.input": (4 * D, D)}
    for layer in range(4):
        for name, shape in shapes.items():
            full = f"blocks.{layer}.{name if '.' in name else 'attention.' + name}"
            check_spread(table.pop(full), shape, s / 3**0.5, s)
        assert table.pop(f"blocks.{layer}.attention.output") == ((D, D), 0, 0, 0)
        assert table.pop(f"blocks.{layer}.mlp.output") == ((D, 4 * D), 0, 0, 0)
        if layer % 2:
            assert table.pop(f"blocks.{layer}.attention.gate") == ((4, 32), 0, 0, 0)
            check_spread(table.pop(f"value_embeddings.{layer}"), (V, D), s / 3**0.5, s)
    check_spread(table.pop("wte"), (V, D), 1.0, None)
    check_spread(table.pop("head"), (V, D), 0.001, None)
    assert table.pop("resid_lambda")[1:] == (1, 0, 1)
    assert table.pop("x0_lambda")[1] == pytest.approx(0.1)
    assert table == {}


def check_spread(row, shape, deviation, bound):
    got, mean, spread, largest = row
    n = shape[0] * shape[1]
    assert got == shape
    assert abs(mean) < 5 * deviation / n**0.5
    assert spread == pytest.approx(deviation, rel=5 / n**0.5)
    if bound is not None:
        assert 0.98 * bound < largest <= bound


def test_initial_values():
    check_initial_values(harness.load())
    check_initial_values(harness.load(INIT_SCALE=0.5), scale=0.5)


@pytest.mark.parametrize(
    "fault",
    [
        ("math.sqrt(3 / width)", "math.sqrt(1 / width)"),
        ("torch.randn(vocab_size, width) * 0.001", "torch.randn(vocab_size, width) * 0.02"),
        ("self.output = zeros(width, 4 * width)", "self.output = uniform(width, 4 * width, bound)"),
    ],
)
def test_wrong_initial_values_are_seen(fault):
    with pytest.raises(AssertionError):
        check_initial_values(harness.load(fault))


def test_width_is_rounded_up_to_whole_heads():
    assert harness.load(DEPTH=9, ASPECT_RATIO=57, HEAD_DIM=128).model_width() == 640


def test_the_size_that_the_original_publishes():
    """50.3 million parameters with DEPTH 8 and a vocabulary of 8192."""
    module = harness.load(DEPTH=8, ASPECT_RATIO=64, HEAD_DIM=128, WINDOW_PATTERN="SSSL")
    with torch.device("meta"):
        gpt = module.GPT(8192, 2048, torch.bfloat16, attention.sdpa)
    assert device.count(gpt) == pytest.approx(50.3e6, rel=2e-3)
    assert module.attention_windows(2048) == [1024, 1024, 1024, None, 1024, 1024, 1024, None]


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="KV_GROUP = 3 does not divide the 4 heads"):
        harness.model(harness.load(KV_GROUP=3))
