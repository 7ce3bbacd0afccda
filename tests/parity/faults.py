"""Faults to plant: what other ports got wrong, in the words of each train.py.

Each table belongs to one comparison, which must fail with any of its faults: name -> backend -> (old text, new text). A
fault that only one framework offers stands for that one alone. A text that a train.py no longer holds is an error:
change it here together with the file.
"""

from __future__ import annotations


def alike(old, new):
    """A fault whose words are the same in every train.py."""
    return dict.fromkeys(("cuda", "mlx", "jax"), (old, new))


PARAMETERS = {
    "value embeddings on the other layers": alike("(DEPTH - 1 - layer) % 2 == 0", "layer % 2 == 0"),
    "a gate for each query head": alike("zeros(kv_width // HEAD_DIM,", "zeros(width // HEAD_DIM,"),
    "tables of the full width": {
        "cuda": ("uniform(vocab_size, kv_width, bound, dtype)", "uniform(vocab_size, width, bound, dtype)"),
        "mlx": ("uniform(vocab_size, kv_width, bound, dtype)", "uniform(vocab_size, width, bound, dtype)"),
        "jax": ("vocab_size, kv_width, bound)", "vocab_size, width, bound)"),
    },
}
INITIAL = {
    "spread of a uniform": alike("math.sqrt(3 / width)", "math.sqrt(1 / width)"),
    "spread of the head": alike("width) * 0.001", "width) * 0.02")
    | dict.fromkeys(("mlx", "jax"), ("width)) * 0.001", "width)) * 0.02")),
    "output projection not zero": {
        "cuda": ("self.output = zeros(width, 4 * width)", "self.output = uniform(width, 4 * width, bound)"),
        "mlx": ("self.output = zeros(width, 4 * width)", "self.output = uniform(width, 4 * width, bound)"),
        "jax": ("zeros(width, 4 * width)", "uniform(key, width, 4 * width, bound)"),
    },
}
FORWARD = {
    "rotary sign": alike("x1 * cos + x2 * sin, x2 * cos - x1 * sin", "x1 * cos - x2 * sin, x2 * cos + x1 * sin"),
    "interleaved rotary": {
        "cuda": ("x.chunk(2, dim=-1)", "(x[..., ::2], x[..., 1::2])"),
        "mlx": ("mx.split(x, 2, axis=-1)", "(x[..., ::2], x[..., 1::2])"),
        "jax": ("jnp.split(x, 2, axis=-1)", "(x[..., ::2], x[..., 1::2])"),
    },
    "rotary base": alike("ROTARY_BASE ** -", "(2 * ROTARY_BASE) ** -"),
    "no norm of queries and keys": alike(
        "norm(rotate(q, *rotary)), norm(rotate(k, *rotary))", "rotate(q, *rotary), rotate(k, *rotary)"
    ),
    "scale left out": alike("norm(rotate(q, *rotary)),", "norm(rotate(q, *rotary)) * HEAD_DIM**0.5,"),
    "norm epsilon x 10": {
        "cuda": ("eps=NORM_EPS", "eps=10 * NORM_EPS"),
        "mlx": ("None, NORM_EPS", "None, 10 * NORM_EPS"),
        "jax": ("+ NORM_EPS", "+ 10 * NORM_EPS"),
    },
    "window + 1": alike("seq_len // SHORT_WINDOW_DIVISOR}", "seq_len // SHORT_WINDOW_DIVISOR + 1}"),
    "window - 1": alike("seq_len // SHORT_WINDOW_DIVISOR}", "seq_len // SHORT_WINDOW_DIVISOR - 1}"),
    "window ignored": alike("attend(q, k, v, window)", "attend(q, k, v, None)"),
    "window of the mask - 1": {"mlx": ("before <= window", "before < window")},
    "scale of the kernel": {"mlx": ("scale=HEAD_DIM**-0.5", "scale=1.0")},
    "short last layer": alike('range(DEPTH - 1)] + ["L"]', "range(DEPTH)]"),
    "gate without its factor": {
        "cuda": ("2 * torch.sigmoid", "torch.sigmoid"),
        "mlx": ("2 * mx.sigmoid", "mx.sigmoid"),
        "jax": ("2 * jax.nn.sigmoid", "jax.nn.sigmoid"),
    },
    "no square": {
        "cuda": ("F.relu(linear(x, self.input)).square()", "F.relu(linear(x, self.input))"),
        "mlx": ("nn.relu(linear(x, self.input)).square()", "nn.relu(linear(x, self.input))"),
        "jax": ("jnp.square(jax.nn.relu(", "jnp.abs(jax.nn.relu("),
    },
    "one lambda for all layers": {
        "cuda": ("self.x0_lambda[i] * x0", "self.x0_lambda[0] * x0"),
        "mlx": ("x0_lambda[i] * x0", "x0_lambda[0] * x0"),
        "jax": ('params["x0_lambda"][i] * x0', 'params["x0_lambda"][0] * x0'),
    },
    "no soft cap": {
        "cuda": ("SOFTCAP * torch.tanh(logits / SOFTCAP)", "logits"),
        "mlx": ("SOFTCAP * mx.tanh(logits / SOFTCAP)", "logits"),
        "jax": ("SOFTCAP * jnp.tanh(logits / SOFTCAP)", "logits"),
    },
}
GRADIENT = {
    "stopped at the embedding": {
        "cuda": ("self.x0_lambda[i] * x0", "self.x0_lambda[i] * x0.detach()"),
        "mlx": ("x0_lambda[i] * x0", "x0_lambda[i] * mx.stop_gradient(x0)"),
        "jax": ('params["x0_lambda"][i] * x0', 'params["x0_lambda"][i] * jax.lax.stop_gradient(x0)'),
    },
    "stopped at the gate": {
        "cuda": ("gate[..., None] * value", "gate.detach()[..., None] * value"),
        "mlx": ("gate[..., None] * value", "mx.stop_gradient(gate)[..., None] * value"),
        "jax": ("gate[..., None] * value", "jax.lax.stop_gradient(gate)[..., None] * value"),
    },
    "sum instead of mean": {
        "cuda": ("targets.flatten())", 'targets.flatten(), reduction="sum")'),
        "mlx": ('reduction="mean"', 'reduction="sum"'),
        "jax": ("- chosen).mean()", "- chosen).sum()"),
    },
}
LEAK = {
    "mask turned round": {
        "cuda": ("attend(q, k, v, window)", "attend(q.flip(1), k.flip(1), v.flip(1), window).flip(1)"),
    }
    | dict.fromkeys(
        ("mlx", "jax"),
        ("attend(q, k, v, window)", "attend(q[:, ::-1], k[:, ::-1], v[:, ::-1], window)[:, ::-1]"),
    ),
    "no mask": {"mlx": ('str = "causal"', "str | None = None")},
    "a window after the query too": {"mlx": ("(before >= 0) & (before <= window)", "mx.abs(before) <= window")},
    "the next token for this one": {
        "cuda": ("F.embedding(tokens, self.wte)", "F.embedding(tokens.roll(-1, 1), self.wte)"),
        "mlx": ("embedding(tokens, self.wte)", "embedding(mx.roll(tokens, -1, 1), self.wte)"),
        "jax": ('embedding(tokens, params["wte"])', 'embedding(jnp.roll(tokens, -1, 1), params["wte"])'),
    },
}
RESIDUAL = {
    "promoted by a float32 lambda": {
        "cuda": ("self.resid_lambda[i] * x", "self.resid_lambda[i : i + 1] * x"),
        "mlx": ("self.resid_lambda.astype(x.dtype), ", "self.resid_lambda, "),
        "jax": ("* x0).astype(x.dtype)", "* x0)"),
    },
}
GROUPS = {
    "embedding without the width": alike("EMBEDDING_LR * scale, EMBEDDING_DECAY", "EMBEDDING_LR, EMBEDDING_DECAY"),
    "resid_lambda as fast as x0_lambda": alike("SCALAR_LR * 0.01", "SCALAR_LR"),
    "Muon's scale turned round": alike("max(1.0, rows / columns)", "max(1.0, columns / rows)"),
    "head in the embedding's group": alike("HEAD_LR * scale, HEAD_DECAY", "EMBEDDING_LR * scale, HEAD_DECAY"),
    "beta of x0_lambda": alike("SCALAR_LR, 0.0, beta1=X0_BETA1", "SCALAR_LR, 0.0"),
    "decay dropped": alike("scale, VALUE_EMBEDDING_DECAY", "scale, 0.0"),
}
STEP = {
    "momentum shared by layers of one shape": {
        "cuda": ("m.lerp_(grad, 1 - momentum)", "m.lerp_(grad.mean(0, keepdim=True).expand_as(grad), 1 - momentum)"),
        "mlx": ("(1 - momentum) * (grad - m)", "(1 - momentum) * (grad.mean(0, keepdims=True) - m)"),
        "jax": ("(1 - momentum) * (grad - m)", "(1 - momentum) * (grad.mean(0, keepdims=True) - m)"),
    },
    "variance reduced along the other axis": {
        "cuda": (
            "-1 if first.size(-2) >= first.size(-1) else -2",
            "-2 if first.size(-2) >= first.size(-1) else -1",
        ),
        "mlx": (
            "(rows, 1) if rows >= columns else (1, columns)",
            "(1, columns) if rows >= columns else (rows, 1)",
        ),
        "jax": (
            "(n, rows, 1) if rows >= columns else (n, 1, columns)",
            "(n, 1, columns) if rows >= columns else (n, rows, 1)",
        ),
    },
    "no Nesterov": {
        "cuda": ("grad.lerp(m, momentum)", "m"),
        "mlx": ("(grad + momentum * (m - grad))", "m"),
        "jax": ("(grad + momentum * (m - grad))", "m"),
    },
    "decay not cautious": alike("* (g * p >= 0)", ""),
    "decay of Muon dropped": alike("- decay * p * (g * p >= 0)", ""),
    "Frobenius norm not kept": {
        "cuda": ("scaled * (norms[0] / norms[1].clamp_min(1e-10))", "scaled"),
        "mlx": ("scaled * (frobenius(g) / mx.maximum(frobenius(scaled), 1e-10))", "scaled"),
        "jax": ("scaled * (norms[0] / jnp.maximum(norms[1], 1e-10))", "scaled"),
    },
    "constant of the orthogonalisation": alike("(1.02 * ", "(1.1 * "),
    "coefficient of the orthogonalisation": alike("x = a * x + (b * gram", "x = a * x + (a * gram"),
    "decay of AdamW dropped": {
        "cuda": ("p.float() * (1 - decay)", "p.float()"),
        "mlx": ("p.astype(mx.float32) * (1 - decay)", "p.astype(mx.float32)"),
        "jax": ("p.astype(jnp.float32) * (1 - decay)", "p.astype(jnp.float32)"),
    },
    "first bias correction": alike("(m / fix1)", "m"),
    "second bias correction": {
        "cuda": ("(v / fix2)", "v"),
        "mlx": ("(v / fix2)", "v"),
        "jax": ("(v / fix2)", "(v)"),
    },
    "epsilon of Adam": alike("ADAM_EPS = 1e-10", "ADAM_EPS = 1e-2"),
    "decay not scheduled": alike("group.decay * decay_scale(progress)", "group.decay"),
    "learning rate not scheduled": alike("group.lr * lr_scale(progress)", "group.lr"),
    "momentum not scheduled": {
        "cuda": ("decay, muon_momentum(step))", "decay, 0.85)"),
        "mlx": ("*fixes, muon_momentum(step)]", "*fixes, 0.85]"),
        "jax": ("(muon_momentum(step), 0.0)", "(0.85, 0.0)"),
    },
    "scalars moved at step 0": alike("step - group.first_step + 1", "step + 1"),
}
MASTERS = {
    "head in bfloat16": {
        "cuda": ("(torch.randn(vocab_size, width) * 0.001)", "((torch.randn(vocab_size, width) * 0.001).to(dtype))"),
        "mlx": (
            "mx.random.normal((vocab_size, width)) * 0.001",
            "(mx.random.normal((vocab_size, width)) * 0.001).astype(dtype)",
        ),
        "jax": (
            "jax.random.normal(next(keys), (vocab_size, width)) * 0.001",
            "(jax.random.normal(next(keys), (vocab_size, width)) * 0.001).astype(dtype)",
        ),
    },
    "matrices in bfloat16": {
        "cuda": ("p.copy_(new)", "p.copy_(new.bfloat16())"),
        "mlx": ("zip(group.params, new, strict=True)", "zip(group.params, new.astype(mx.bfloat16), strict=True)"),
        "jax": ("zip(group.params, new, strict=True)", "zip(group.params, new.astype(jnp.bfloat16), strict=True)"),
    },
}
SCHEDULE = {
    "cosine warm-down": alike("* remaining", "* (1 - math.cos(math.pi * remaining)) / 2"),
    "momentum from 0.9": alike("0.85 + 0.10 *", "0.90 + 0.05 *"),
    "decay kept": alike("    return 1.0 - progress", "    return 1.0"),
}
CURVE = {
    "window - 1": FORWARD["window - 1"],
    "decay of Muon dropped": STEP["decay of Muon dropped"],
    "momentum shared by layers of one shape": STEP["momentum shared by layers of one shape"],
    "learning rate not scheduled": STEP["learning rate not scheduled"],
    "scalars moved at step 0": STEP["scalars moved at step 0"],
    "accumulation forgotten": {
        "cuda": ("micro_loss(model, x, y) / accumulation", "micro_loss(model, x, y)"),
        "mlx": ("mean_loss(model, x, y) / accumulation", "mean_loss(model, x, y)"),
        "jax": ("total + x / accumulation", "total + x"),
    },
    "a warm-up that trains": {
        "cuda": ("tensor.copy_(value)", "pass"),
        "mlx": ("    model.update(start[0])\n", ""),
        "jax": (
            "jax.block_until_ready(take_step(*start(key), optimizer.rates(1, 0.0), *warm_up))\n"
            "    params, moments = start(key)",
            "params, moments, _ = take_step(*start(key), optimizer.rates(1, 0.0), *warm_up)",
        ),
    },
    "a warm-up whose moments stay": {"mlx": ("    optimizer.moments[:] = start[1]\n", "")},
}
DEAD = {
    "schedule never called": STEP["learning rate not scheduled"],
    "decay of the embedding": alike("EMBEDDING_LR * scale, EMBEDDING_DECAY", "EMBEDDING_LR * scale, 0.0"),
}
NO_WARM_UP = {
    "left out": {
        "cuda": ("take_step(1, 0.0, *experiment.dummy_batch(rows, accumulation))", "pass"),
        "mlx": (
            "mx.eval(step_on(*experiment.dummy_batch(rows, accumulation), optimizer.rates(1, 0.0)), state)",
            "pass",
        ),
        "jax": ("jax.block_until_ready(take_step(*start(key), optimizer.rates(1, 0.0), *warm_up))", "pass"),
    },
}
"""Not a fault: without the warm-up the trace is the same."""
