"""The ops of the catalogue, each with the code that a framework's user writes without it.

Each op has an entry: parity compares it, `tools/bench` times it, and tests check that its rows are
independent of one another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bridge.cli import post_training
from bridge.cli.entries import FACTORS, Entry, Operands
from bridge.cli.fusion_entries import FUSIONS, hidden
from bridge.cli.model_ops.attention_forms import ATTENTION
from bridge.cli.model_ops.batch_norm_forms import BATCH_NORMS
from bridge.cli.model_ops.choice_forms import CHOICES
from bridge.cli.model_ops.convolution_forms import CONVOLUTIONS
from bridge.cli.model_ops.image_forms import IMAGES
from bridge.cli.model_ops.loss_forms import portable_loss
from bridge.cli.model_ops.optimizer_forms import OPTIMIZERS
from bridge.cli.model_ops.product_forms import PRODUCTS
from bridge.cli.model_ops.quantization_forms import QUANTIZATIONS
from bridge.cli.norm_entries import GATED_NORMS, GROUP_NORMS, NORM_ROTARIES, OF_NUMBERS


def _rms_norm(p: Operands) -> Any:
    from torch.nn.functional import rms_norm

    return rms_norm(p["x"], p["weight"].shape, p["weight"], 1e-6)


def _rms_norm_in_jax(p: Operands) -> Any:
    import jax
    import jax.numpy as jnp

    x = p["x"]
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * p["weight"]


def _layer_norm(p: Operands) -> Any:
    from torch.nn.functional import layer_norm

    return layer_norm(p["x"], p["weight"].shape, p["weight"], p["bias"], 1e-5)


def _layer_norm_in_jax(p: Operands) -> Any:
    import jax
    import jax.numpy as jnp

    x = p["x"]
    centred = x - jnp.mean(x, -1, keepdims=True)
    r = jax.lax.rsqrt(jnp.mean(centred * centred, -1, keepdims=True) + 1e-5)
    return centred * r * p["weight"] + p["bias"]


def _after_sum(function: Callable[[Operands], Any]) -> Callable[[Operands], Any]:
    """Wraps a function of x to take x + residual, and to return this sum too."""

    def run(p: Operands) -> Any:
        h = p["x"] + p["residual"]
        return function({**p, "x": h}), h

    return run


def _norm(
    name: str,
    others: tuple[str, ...],
    in_torch: Callable[[Operands], Any],
    in_jax: Callable[[Operands], Any],
) -> tuple[Entry, Entry]:
    """Returns the entries of a norm, without and with a residual."""

    def call(ops: Any, p: Operands) -> Any:
        own = {name: p[name] for name in others}
        return getattr(ops, name)(p["x"], residual=p.get("residual"), **own)

    roles = {"x": "full", **dict.fromkeys(others, "row")}
    with_sum = {"x": "full", "residual": "full", **dict.fromkeys(others, "row")}
    return (
        Entry(name, roles, ("full",), call, in_torch, in_jax),
        Entry(
            f"{name} residual",
            with_sum,
            ("full", "full"),
            call,
            _after_sum(in_torch),
            _after_sum(in_jax),
            added=("x", "residual"),
        ),
    )


def _of_torch(activation: str, x: Any) -> Any:
    import torch
    from torch.nn import functional

    if activation == "gelu" and x.dtype is torch.float64:
        # The reference has correct digits where 1 + erf cancels to none.
        return 0.5 * x * torch.special.erfc(-math.sqrt(0.5) * x)
    return getattr(functional, activation)(x)


def _of_jax(activation: str, x: Any) -> Any:
    import jax

    if activation == "gelu":
        return jax.nn.gelu(x, approximate=False)
    return getattr(jax.nn, activation)(x)


def _gate(name: str, activation: str, form: str) -> Entry:
    """Returns the entry of a gated unit.

    `form` is "packed", "apart", or "weighted": apart with a bias and one weight per row.
    """
    roles = {
        "packed": {"x": "packed"},
        "apart": {"x": "full", "up": "full"},
        "weighted": {"x": "full", "up": "full", "bias": "row", "weight": "per row"},
    }[form]

    def call(ops: Any, p: Operands) -> Any:
        function = getattr(ops, name)
        return function(p["x"], p.get("up"), p.get("bias"), weight=p.get("weight"))

    def plain(function: Callable[[str, Any], Any]) -> Callable[[Operands], Any]:
        def run(p: Operands) -> Any:
            x, d = p["x"], p["x"].shape[-1] // 2
            gate, up = (x[..., :d], x[..., d:]) if form == "packed" else (x, p["up"])
            if form != "weighted":
                return function(activation, gate) * up
            return function(activation, gate + p["bias"]) * up * p["weight"][..., None]

        return run

    return Entry(f"{name} {form}", roles, ("full",), call, plain(_of_torch), plain(_of_jax))


def _squared_relu(function: Callable[[str, Any], Any]) -> Callable[[Operands], Any]:
    return lambda p: function("relu", p["x"]) ** 2 * p["weight"][..., None]


def _rotary(is_interleaved: bool) -> Entry:
    def turned(join: Callable[[Any, Any], Any]) -> Callable[[Operands], Any]:
        def run(p: Operands) -> Any:
            x, d = p["x"], p["x"].shape[-1] // 2
            halves = (x[..., 0::2], x[..., 1::2]) if is_interleaved else (x[..., :d], x[..., d:])
            first, second = halves
            cos, sin = p["cos"], p["sin"]
            return join(first * cos - second * sin, second * cos + first * sin)

        return run

    def in_torch(first: Any, second: Any) -> Any:
        import torch

        if is_interleaved:
            return torch.stack((first, second), -1).flatten(-2)
        return torch.cat((first, second), -1)

    def in_jax(first: Any, second: Any) -> Any:
        import jax.numpy as jnp

        if is_interleaved:
            return jnp.stack((first, second), -1).reshape(*first.shape[:-1], -1)
        return jnp.concatenate((first, second), -1)

    return Entry(
        "rotary interleaved" if is_interleaved else "rotary",
        {"x": "packed", "cos": "table", "sin": "table"},
        ("packed",),
        lambda ops, p: ops.rotary(p["x"], p["cos"], p["sin"], interleaved=is_interleaved),
        turned(in_torch),
        turned(in_jax),
        moved=(6, 6),  # the gradient of x does not need x; here each row has its own tables
    )


def _log_softmax(p: Operands) -> Any:
    return p["x"].log_softmax(-1)


def _log_softmax_in_jax(p: Operands) -> Any:
    import jax

    return jax.nn.log_softmax(p["x"], axis=-1)


def _wide(x: Any) -> Any:
    """Returns 16-bit numbers as float32, the dtype of ops that return one number per row."""
    if hasattr(x, "astype"):
        return x.astype("float32") if x.dtype.itemsize == 2 else x
    return x.float() if x.element_size() == 2 else x


def _logsumexp_in_jax(p: Operands) -> Any:
    import jax

    return jax.nn.logsumexp(_wide(p["x"]), axis=-1)


def _token_log_probs(p: Operands) -> Any:
    labels = p["labels"].long()[..., None]
    return _wide(p["x"]).log_softmax(-1).gather(-1, labels)[..., 0]


def _token_log_probs_in_jax(p: Operands) -> Any:
    import jax
    import jax.numpy as jnp

    every = jax.nn.log_softmax(_wide(p["x"]), axis=-1)
    return jnp.take_along_axis(every, p["labels"][..., None], axis=-1)[..., 0]


def _cross_entropy(p: Operands) -> Any:
    from torch.nn.functional import cross_entropy

    rows = _wide(p["x"]).flatten(0, -2) if p["x"].ndim > 1 else _wide(p["x"])
    labels = p["labels"].long()
    return cross_entropy(
        rows, labels.flatten() if rows.ndim > 1 else labels, reduction="none"
    ).view(labels.shape)


def _smoothed(p: Operands) -> Any:
    """Computes smoothing and z-loss from their definitions, in either framework."""
    x = _wide(p["x"])
    lse = x.logsumexp(-1) if hasattr(x, "logsumexp") else _logsumexp_in_jax(p)
    own = _token_log_probs(p) if hasattr(x, "logsumexp") else _token_log_probs_in_jax(p)
    return -0.9 * own + 0.1 * (lse - x.mean(-1)) + 1e-3 * lse * lse


def _beside_sink(scores: Callable[[Operands], Any]) -> Callable[[Operands], Any]:
    """Appends the sink as one more column to the scores, and cuts it off after the softmax."""

    def run(p: Operands) -> Any:
        x, sink = scores(p), p["sink"]
        if hasattr(x, "astype"):
            import jax
            import jax.numpy as jnp

            return jax.nn.softmax(jnp.concatenate((x, sink), -1), axis=-1)[..., :-1]
        import torch

        return torch.cat((x, sink), -1).softmax(-1)[..., :-1]

    return run


def _of_logits(function: Callable[[Operands], Any]) -> Callable[[Operands], Any]:
    """Wraps a function of logits to compute them as x @ weightᵀ + bias."""
    return lambda p: function({**p, "x": p["x"] @ p["weight"].T + p["bias"]})


_X = {"x": "full"}

ENTRIES = {
    entry.name: entry
    for entry in (
        *_norm("rms_norm", ("weight",), _rms_norm, _rms_norm_in_jax),
        *_norm("layer_norm", ("weight", "bias"), _layer_norm, _layer_norm_in_jax),
        *GATED_NORMS,
        *GROUP_NORMS,
        *OF_NUMBERS,
        _gate("swiglu", "silu", "packed"),
        _gate("swiglu", "silu", "apart"),
        _gate("geglu", "gelu", "weighted"),
        _gate("reglu", "relu", "packed"),
        Entry(
            "squared_relu",
            {"x": "full", "weight": "per row"},
            ("full",),
            lambda ops, p: ops.squared_relu(p["x"], p["weight"]),
            _squared_relu(_of_torch),
            _squared_relu(_of_jax),
        ),
        _rotary(is_interleaved=False),
        _rotary(is_interleaved=True),
        *NORM_ROTARIES,
        Entry(
            "log_softmax",
            _X,
            ("full",),
            lambda ops, p: ops.log_softmax(p["x"]),
            _log_softmax,
            _log_softmax_in_jax,
        ),
        Entry(
            "logsumexp",
            _X,
            ("per row",),
            lambda ops, p: ops.logsumexp(p["x"]),
            lambda p: _wide(p["x"]).logsumexp(-1),
            _logsumexp_in_jax,
        ),
        Entry(
            "token_log_probs",
            {"x": "full", "labels": "label"},
            ("per row",),
            lambda ops, p: ops.token_log_probs(p["x"], p["labels"]),
            _token_log_probs,
            _token_log_probs_in_jax,
        ),
        Entry(
            "cross_entropy",
            {"x": "full", "labels": "label"},
            ("per row",),
            lambda ops, p: ops.cross_entropy(p["x"], p["labels"], reduction="none"),
            _cross_entropy,
            lambda p: -_token_log_probs_in_jax(p),
        ),
        Entry(
            "cross_entropy smoothed",
            {"x": "full", "labels": "label"},
            ("per row",),
            lambda ops, p: ops.cross_entropy(
                p["x"], p["labels"], reduction="none", label_smoothing=0.1, z_loss=1e-3
            ),
            _smoothed,
            _smoothed,
        ),
        *post_training.ENTRIES,
        Entry(
            "scaled_softmax sink",
            {"x": "full", "sink": "sink"},
            ("full",),
            lambda ops, p: ops.scaled_softmax(p["x"], 0.7, sink=p["sink"]),
            _beside_sink(lambda p: 0.7 * p["x"]),
            _beside_sink(lambda p: 0.7 * p["x"]),
        ),
        Entry(
            "scaled_masked_softmax sink",
            {"x": "full", "mask": "mask", "sink": "sink"},
            ("full",),
            lambda ops, p: ops.scaled_masked_softmax(p["x"], p["mask"], 0.7, sink=p["sink"]),
            _beside_sink(lambda p: (0.7 * p["x"]).masked_fill(p["mask"], -math.inf)),
            _beside_sink(lambda p: hidden(0.7 * p["x"], p["mask"])),
        ),
    )
}


# The ops that parity compares. Matrix products are the framework's own; here they are exact.
COMPARED = {
    entry.name: entry
    for entry in (
        *FUSIONS,
        *ENTRIES.values(),
        Entry(
            "linear_cross_entropy",
            {"x": "hidden", "weight": "projection", "labels": "label", "bias": "offset"},
            ("per row",),
            lambda ops, p: ops.linear_cross_entropy(
                p["x"], p["weight"], p["labels"], bias=p["bias"], chunk=5, reduction="none"
            ),
            _of_logits(_cross_entropy),
            _of_logits(lambda p: -_token_log_probs_in_jax(p)),
        ),
        *PRODUCTS,
        *ATTENTION,
        portable_loss(
            _of_logits(_cross_entropy), _of_logits(lambda p: -_token_log_probs_in_jax(p))
        ),
        *OPTIMIZERS,
        *post_training.OF_LAYERS,
        *CONVOLUTIONS,
        *IMAGES,
        *BATCH_NORMS,
        *QUANTIZATIONS,
        *CHOICES,
    )
}

# Ops whose rows must also be independent of one another, in bridge's own arithmetic.
ROW_OPS = {
    name: entry
    for name, entry in COMPARED.items()
    if entry.compared.are_rows_independent
    and entry.compared.usual
    and FACTORS[0] not in entry.roles.values()
}
