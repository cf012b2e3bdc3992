"""Entries of the norms that come with another step: a rotation, a gate, or groups of columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bridge.cli.entries import Comparison, Entry, Operands


def _rms_norm(x: Any, weight: Any, eps: float = 1e-6) -> Any:
    """Computes the RMS norm as users of either framework write it."""
    if hasattr(x, "astype"):
        import jax
        import jax.numpy as jnp

        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight
    from torch.nn.functional import rms_norm

    if weight.shape == x.shape[-1:]:
        return rms_norm(x, weight.shape, weight, eps)
    return rms_norm(x, x.shape[-1:], None, eps) * weight


def _norm_rotary(is_interleaved: bool, is_partial: bool = False) -> Entry:
    """Returns an entry; a partial one rotates half of the columns."""

    def cut(p: Operands) -> tuple[Any, Any]:
        d = p["cos"].shape[-1]
        pairs = d - d // 2 if is_partial else d
        return p["cos"][..., :pairs], p["sin"][..., :pairs]

    def turned(join: Callable[..., Any]) -> Callable[[Operands], Any]:
        def run(p: Operands) -> Any:
            h = _rms_norm(p["x"], p["weight"])
            cos, sin = cut(p)
            n = cos.shape[-1]
            head, rest = h[..., : 2 * n], h[..., 2 * n :]
            one, two = (
                (head[..., 0::2], head[..., 1::2])
                if is_interleaved
                else (head[..., :n], head[..., n:])
            )
            return join(one * cos - two * sin, two * cos + one * sin, rest)

        return run

    def in_torch(one: Any, two: Any, rest: Any) -> Any:
        import torch

        if is_interleaved:
            return torch.cat((torch.stack((one, two), -1).flatten(-2), rest.to(one.dtype)), -1)
        return torch.cat((one, two, rest.to(one.dtype)), -1)

    def in_jax(one: Any, two: Any, rest: Any) -> Any:
        import jax.numpy as jnp

        if is_interleaved:
            head = jnp.stack((one, two), -1).reshape(*one.shape[:-1], -1)
            return jnp.concatenate((head, rest), -1)
        return jnp.concatenate((one, two, rest), -1)

    suffix = " interleaved" * is_interleaved + " partial" * is_partial
    return Entry(
        f"rms_norm_rotary{suffix}",
        {"x": "packed", "weight": "packed row", "cos": "table", "sin": "table"},
        ("packed",),
        lambda ops, p: ops.rms_norm_rotary(
            p["x"], p["weight"], *cut(p), interleaved=is_interleaved
        ),
        turned(in_torch),
        turned(in_jax),
        moved=(6, 8),  # each row has its own tables, without a gradient here
        # XLA moves the columns of a partial one, and has subnormal numbers and NaNs of its own.
        compared=Comparison(usual=False, own=False, shapes=((5, 7), (300, 65)))
        if is_partial
        else Comparison(),
    )


NORM_ROTARIES = (
    _norm_rotary(is_interleaved=False),
    _norm_rotary(is_interleaved=True),
    _norm_rotary(is_interleaved=False, is_partial=True),
)


def _silu(x: Any) -> Any:
    if hasattr(x, "astype"):
        import jax

        return jax.nn.silu(x)
    from torch.nn.functional import silu

    return silu(x)


def _gated(is_norm_first: bool) -> Entry:
    def plain(p: Operands) -> Any:
        if is_norm_first:
            return _rms_norm(p["x"], p["weight"]) * _silu(p["gate"])
        return _rms_norm(p["x"] * _silu(p["gate"]), p["weight"])

    return Entry(
        f"gated_rms_norm{' gate first' * (not is_norm_first)}",
        {"x": "full", "gate": "full", "weight": "row"},
        ("full",),
        lambda ops, p: ops.gated_rms_norm(p["x"], p["gate"], p["weight"], norm_first=is_norm_first),
        plain,
        plain,
    )


GATED_NORMS = (_gated(is_norm_first=True), _gated(is_norm_first=False))


def _dyt(p: Operands) -> Any:
    h = p["alpha"] * p["x"]
    if hasattr(h, "astype"):
        import jax.numpy as jnp

        return jnp.tanh(h) * p["weight"] + p["bias"]
    return h.tanh() * p["weight"] + p["bias"]


def _poly_norm(p: Operands) -> Any:
    x, weight = p["x"], p["weight"]
    powers = (x * x * x, x * x, x)
    y = sum(_rms_norm(u, weight[i : i + 1]) for i, u in enumerate(powers))
    return y + p["bias"]


OF_NUMBERS = (
    Entry(
        "dyt",
        {"x": "full", "alpha": "number", "weight": "row", "bias": "row"},
        ("full",),
        lambda ops, p: ops.dyt(p["x"], p["alpha"], p["weight"], p["bias"]),
        _dyt,
        _dyt,
    ),
    Entry(
        "poly_norm",
        {"x": "full", "weight": "three numbers", "bias": "number"},
        ("full",),
        lambda ops, p: ops.poly_norm(p["x"], p["weight"], p["bias"]),
        _poly_norm,
        _poly_norm,
    ),
)


def _group_norm(ops: Any, p: Operands) -> Any:
    x, weight, bias = _channels(p)
    y = ops.group_norm(x, _groups(p), weight, bias, activation="silu")
    return y.reshape(p["x"].shape)


def _channels(p: Operands) -> tuple[Any, Any, Any]:
    """Returns x as examples of channels with two places each, weight and bias."""
    d = p["weight"].shape[0]
    return p["x"].reshape(math.prod(p["x"].shape[:-1]), d, 2), p["weight"], p["bias"]


def _groups(p: Operands) -> int:
    d = p["weight"].shape[0]
    return next(count for count in (8, 5, 3, 2, 1) if d % count == 0)


def _group_norm_in_torch(p: Operands) -> Any:
    from torch.nn.functional import group_norm

    x, weight, bias = _channels(p)
    return _silu(group_norm(x, _groups(p), weight, bias, 1e-5)).reshape(p["x"].shape)


def _group_norm_in_jax(p: Operands) -> Any:
    import jax
    import jax.numpy as jnp

    x, weight, bias = _channels(p)
    rows = x.reshape(x.shape[0], _groups(p), -1)
    centred = rows - jnp.mean(rows, -1, keepdims=True)
    r = jax.lax.rsqrt(jnp.mean(centred * centred, -1, keepdims=True) + 1e-5)
    y = (centred * r).reshape(x.shape) * weight[:, None] + bias[:, None]
    return _silu(y).reshape(p["x"].shape)


GROUP_NORMS = (
    Entry(
        "group_norm",
        {"x": "packed", "weight": "row", "bias": "row"},
        ("packed",),
        _group_norm,
        _group_norm_in_torch,
        _group_norm_in_jax,
    ),
)
