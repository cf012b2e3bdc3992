"""Entries of the three fusions that Megatron-LM has: bias_gelu, the softmaxes, bias_dropout_add."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bridge.cli.entries import Comparison, Entry, Operands
from bridge.lang.functions import GELU_KINDS


def _is_hidden(mask: Any) -> Any:
    return mask if "bool" in str(mask.dtype) else mask != 0


def hidden(x: Any, mask: Any) -> Any:
    import jax.numpy as jnp

    return jnp.where(mask, -math.inf, x)


def bias_gelu_entry(kind: str, *, bias: bool = True) -> Entry:
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
        import jax

        z = scaled(p)
        return jax.nn.softmax(z if role is None else hidden(z, _is_hidden(p["mask"])))

    def exact(p: Operands) -> Any:
        from bridge.cli.references import softmax

        return softmax(scale * p["x"], None if role is None else _is_hidden(p["mask"]), p.get("y"))

    how: dict[str, Any] = {"op": "softmax", "exact": exact, "at_value": True, "widest": 70.0}
    how |= {"second_order": True, "extremes": True} | compared
    return Entry(
        name if scale == 0.7 else f"{name} scale {scale:g}",
        {"x": "full"} if role is None else {"x": "full", "mask": role},
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

FUSIONS: tuple[Entry, ...] = (
    *(bias_gelu_entry(kind) for kind in GELU_KINDS),
    bias_gelu_entry("tanh", bias=False),
    softmax_entry(scaled_softmax, shapes=(*((3, n) for n in _LENGTHS), (2, 65537), (1, 1 << 20))),
    softmax_entry(scaled_softmax, scale=-1.3, usual=False, shapes=((11, 64),)),
    softmax_entry(scaled_softmax, scale=0.0, usual=False, shapes=((3, 5, 16),)),
    softmax_entry(scaled_masked_softmax, "mask", shapes=(*_FEW_LENGTHS, _SCORES)),
    softmax_entry(scaled_masked_softmax, "byte mask", usual=False, shapes=(_SCORES, (2, 65537))),
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
)
