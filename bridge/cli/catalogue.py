"""The ops of the catalogue, each with the code that a framework's user writes without it.

Each op has an entry: parity compares it, `tools/bench` times it, and tests check that its rows are
independent of one another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bridge.cli import post_training
from bridge.cli.entries import FACTORS, Comparison, Entry, Operands
from bridge.cli.model_ops.attention_forms import ATTENTION
from bridge.cli.model_ops.loss_forms import portable_loss
from bridge.cli.model_ops.optimizer_forms import OPTIMIZERS
from bridge.cli.model_ops.product_forms import PRODUCTS
from bridge.cli.norm_entries import GATED_NORMS, GROUP_NORMS, NORM_ROTARIES, OF_NUMBERS
from bridge.lang.functions import GELU_KINDS


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


def _is_hidden(mask: Any) -> Any:
    return mask if "bool" in str(mask.dtype) else mask != 0


def _hidden(x: Any, mask: Any) -> Any:
    import jax.numpy as jnp

    return jnp.where(mask, -math.inf, x)


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
            _beside_sink(lambda p: _hidden(0.7 * p["x"], p["mask"])),
        ),
    )
}


def _bias_gelu(kind: str, *, bias: bool = True) -> Entry:
    def summed(p: Operands) -> Any:
        return p["x"] + p["bias"] if bias else p["x"]

    def in_torch(p: Operands) -> Any:
        from torch.nn.functional import gelu

        h = summed(p)
        return h * (1.702 * h).sigmoid() if kind == "sigmoid" else gelu(h, approximate=kind)

    def in_jax(p: Operands) -> Any:
        import jax

        h = summed(p)
        if kind == "sigmoid":
            return h * jax.nn.sigmoid(1.702 * h)
        return jax.nn.gelu(h, approximate=kind == "tanh")

    def exact(p: Operands) -> Any:
        from bridge.cli.references import gelu

        return gelu(summed(p), kind)

    return Entry(
        f"bias_gelu {kind}" if bias else f"bias_gelu {kind} without bias",
        {"x": "full", "bias": "row"} if bias else {"x": "full"},
        ("full",),
        lambda ops, p: ops.bias_gelu(p["x"], p.get("bias"), approximate=kind),
        in_torch,
        in_jax,
        compared=Comparison(
            "bias_gelu",
            exact,
            second_order=True,
            hessian=True,
            widest=16.0,
            extremes=True,
            # Rows at the edges of leaves and chunks of the column sum.
            shapes=((127, 9), (128, 9), (129, 9), (1100, 70)) if bias else ((5, 7),),
            usual=bias,
        ),
    )


# The kernels take different paths at some of these lengths of rows.
_LENGTHS = (
    1,
    2,
    7,
    8,
    9,
    *(n + d for n in (2**k for k in range(4, 13)) for d in (-1, 0, 1)),
    16385,
)
_FEW_LENGTHS = tuple((3, n) for n in (1, 9, 33, 129, 513, 1025, 4097))
_SCORES = (2, 3, 5, 33)  # [batch, heads, queries, keys]


def softmax_entry(
    call: Callable[[Any, Operands, float], Any],
    role: str | None = None,
    scale: float = 0.7,
    **compared: Any,
) -> Entry:
    """Returns an entry; `role` is the role of its mask, which is None if nothing is hidden."""
    name = call.__name__ if role in (None, "mask", "causal mask") else f"{call.__name__} {role}"

    def scaled(p: Operands) -> Any:
        return p["x"] if scale == 1.0 else scale * p["x"]

    def in_torch(p: Operands) -> Any:
        z = scaled(p)
        return (z if role is None else z.masked_fill(_is_hidden(p["mask"]), -math.inf)).softmax(-1)

    def in_jax(p: Operands) -> Any:
        z = scaled(p)
        return _of_jax("softmax", z if role is None else _hidden(z, _is_hidden(p["mask"])))

    def exact(p: Operands) -> Any:
        from bridge.cli.references import softmax

        return softmax(scale * p["x"], None if role is None else _is_hidden(p["mask"]), p.get("y"))

    how: dict[str, Any] = {"op": "softmax", "exact": exact, "at_value": True, "widest": 70.0}
    how |= {"second_order": True, "extremes": True} | compared
    return Entry(
        name if scale == 0.7 else f"{name} scale {scale:g}",
        _X if role is None else {"x": "full", "mask": role},
        ("full",),
        lambda ops, p: call(ops, p, scale),
        in_torch,
        in_jax,
        moved=(1.5, 2.0) if role == "causal mask" else None,  # it leaves half of x to read
        compared=Comparison(**how),
    )


def scaled_softmax(ops: Any, p: Operands, scale: float) -> Any:
    return ops.scaled_softmax(p["x"], scale)


def scaled_masked_softmax(ops: Any, p: Operands, scale: float) -> Any:
    return ops.scaled_masked_softmax(p["x"], p["mask"], scale)


def scaled_causal_softmax(ops: Any, p: Operands, scale: float) -> Any:
    return ops.scaled_causal_softmax(p["x"], scale)


def dropout_entry(
    p_drop: float,
    others: tuple[str, ...] = ("bias", "residual"),
    *,
    training: bool = True,
    seed: tuple[int, int] | None = None,
    offset: bool = True,
    **compared: Any,
) -> Entry:
    """Returns an entry; `seed` has the seed and the offset, which are operands without it."""
    roles = {"x": "full", "bias": "row", "residual": "residual"}
    roles = {name: role for name, role in roles.items() if name in ("x", *others)}
    if seed is None:
        roles |= {"seed": "integer"} | ({"offset": "integer"} if offset else {})

    def drawn(p: Operands) -> tuple[Any, Any]:
        return seed or (p["seed"], p.get("offset", 0))

    def call(ops: Any, p: Operands) -> Any:
        given, how = (p["x"], p.get("bias"), p.get("residual")), {"p": p_drop, "training": training}
        own_seed, own_offset = drawn(p)
        return ops.bias_dropout_add(*given, seed=own_seed, offset=own_offset, **how)

    def around(p: Operands, dropout: Callable[[Any], Any]) -> Any:
        h = dropout(p["x"] + p["bias"] if "bias" in p else p["x"])
        return h + p["residual"] if "residual" in p else h

    def in_torch(p: Operands) -> Any:
        from torch.nn.functional import dropout

        return around(p, lambda h: dropout(h, p_drop, training))

    def in_jax(p: Operands) -> Any:
        import jax
        import jax.numpy as jnp

        kept = 1.0 - p_drop

        def dropout(h: Any) -> Any:
            return jnp.where(jax.random.bernoulli(p["seed"], kept, h.shape), h / kept, 0.0)

        return around(p, dropout)

    def exact(p: Operands) -> Any:
        from bridge.cli.references import dropout

        return around(p, lambda h: dropout(h, p_drop if training else 0.0, *map(int, drawn(p))))

    settings: dict[str, Any] = {"op": "bias_dropout_add", "exact": exact, "widest": 1.0}
    settings |= {"extremes": True, "are_rows_independent": False, "own": False}
    how = f"p={p_drop:g}" if training else "inference"
    if missing := {"bias", "residual"}.difference(others):
        how += f" without {' and '.join(sorted(missing))}"
    if seed is not None:
        how += f" seed {seed[0]} offset {seed[1]}"
    return Entry(
        f"bias_dropout_add {how}",
        roles,
        ("residual" if "residual" in others else "like x",),
        call,
        in_torch,
        in_jax,
        moved=(3.0, 2.0),  # the residual's gradient is the cotangent
        compared=Comparison(**settings | compared),
    )


_FEW: dict[str, Any] = {"usual": False, "shapes": ((300, 257), (5, 7), (1, 1))}

# The ops that parity compares. Matrix products are the framework's own; here they are exact.
COMPARED = {
    entry.name: entry
    for entry in (
        *(_bias_gelu(kind) for kind in GELU_KINDS),
        _bias_gelu("tanh", bias=False),
        softmax_entry(
            scaled_softmax, shapes=(*((3, n) for n in _LENGTHS), (2, 65537), (1, 1 << 20))
        ),
        softmax_entry(scaled_softmax, scale=-1.3, usual=False, shapes=((11, 64),)),
        softmax_entry(scaled_softmax, scale=0.0, usual=False, shapes=((3, 5, 16),)),
        softmax_entry(scaled_masked_softmax, "mask", shapes=(*_FEW_LENGTHS, _SCORES)),
        softmax_entry(
            scaled_masked_softmax, "byte mask", usual=False, shapes=(_SCORES, (2, 65537))
        ),
        *(
            softmax_entry(scaled_masked_softmax, role, usual=False, shapes=(_SCORES,))
            for role in (
                "mask of keys",
                "byte mask of queries",
                "mask of batches and keys",
                "mask of batches",
                "byte mask of heads",
            )
        ),
        softmax_entry(
            scaled_causal_softmax,
            "causal mask",
            shapes=(*_FEW_LENGTHS, (2, 3, 40, 33), (2, 3, 33, 40), (2, 2, 130, 130), (1, 5, 1025)),
            dimensions=2,
            are_rows_independent=False,
        ),
        dropout_entry(0.1, shapes=(*((n,) for n in (2, 3, 4, 5, 15, 16, 4097)), (700, 1030))),
        dropout_entry(0.5, **_FEW),
        dropout_entry(0.0, **_FEW),
        dropout_entry(1.0, **_FEW),
        dropout_entry(0.5, training=False, **_FEW),
        dropout_entry(0.1, ("residual",), **_FEW),
        dropout_entry(0.1, ("bias",), **_FEW),
        dropout_entry(0.1, (), usual=False, shapes=((5, 7), ())),
        dropout_entry(0.1, seed=(2**64 - 1, 2**63 + 1), usual=False, shapes=((3, 11),)),
        dropout_entry(0.1, seed=(-7, 0), usual=False, shapes=((3, 11),)),
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
