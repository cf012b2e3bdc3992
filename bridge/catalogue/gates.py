"""Gated linear units and the squared ReLU, each with a number for each row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from bridge import lang as bl
from bridge.catalogue.declaration import declared, named, shape_of
from bridge.ops.scalars import real_number


def _relu(x: Any) -> Any:
    """0 with derivative 0 at 0; NaN stays."""
    return bl.where(x <= 0.0, 0.0, x)


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "silu": bl.silu,
    "gelu": lambda x: bl.gelu(x, "none"),
    "gelu_tanh": lambda x: bl.gelu(x, "tanh"),
    "gelu_sigmoid": lambda x: bl.gelu(x, "sigmoid"),
    "relu": _relu,
    "sigmoid": bl.sigmoid,
}


def _gated(
    gate: Any, up: Any, weight: Any, activation: str, limit: float | None, linear_offset: float
) -> Any:
    if limit is not None:
        gate, up = bl.minimum(gate, limit), bl.maximum(bl.minimum(up, limit), -limit)
    up = up if linear_offset == 0 else up + linear_offset
    y = ACTIVATIONS[activation](gate) * up
    return y if weight is None else y * weight


def _plus(x: Any, bias: Any) -> Any:
    return x if bias is None else x + bias


@declared()
def glu(
    gate: bl.Full,
    up: bl.Full,
    bias: bl.Row | None = None,
    up_bias: bl.Row | None = None,
    weight: bl.PerRow | None = None,
    *,
    activation: str = "silu",
    limit: float | None = None,
    linear_offset: float = 0.0,
):
    first, second = _plus(gate, bias), _plus(up, up_bias)
    return _gated(first, second, weight, activation, limit, linear_offset)


@declared()
@named("glu")
def packed_glu(
    gate: bl.Halves,
    bias: bl.Row | None = None,
    up_bias: bl.Row | None = None,
    weight: bl.PerRow | None = None,
    *,
    activation: str = "silu",
    limit: float | None = None,
    linear_offset: float = 0.0,
):
    first, second = gate
    first, second = _plus(first, bias), _plus(second, up_bias)
    return _gated(first, second, weight, activation, limit, linear_offset)


@declared()
@named("glu")
def paired_glu(
    gate: bl.Pairs,
    bias: bl.Row | None = None,
    up_bias: bl.Row | None = None,
    weight: bl.PerRow | None = None,
    *,
    activation: str = "silu",
    limit: float | None = None,
    linear_offset: float = 0.0,
):
    static = {"activation": activation, "limit": limit, "linear_offset": linear_offset}
    return packed_glu.declaration.function(gate, bias, up_bias, weight, **static)


# By what is given: gate and up, or both packed in halves, or in pairs.
FORMS = (glu, packed_glu, paired_glu)


# A packed bias apart. A framework's slices would do, but for their gradient: what it joins or adds
# need not have the bits that NaN had (XLA's bfloat16 goes through float32).
@declared()
def bias_halves(bias: bl.Halves):
    first, second = bias
    return first, second


@declared()
def bias_pairs(bias: bl.Pairs):
    first, second = bias
    return first, second


SPLITS = (bias_halves, bias_pairs)  # by whether it alternates


@declared()
def squared_relu(x: bl.Full, weight: bl.PerRow | None = None):
    y = _relu(x) ** 2
    return y if weight is None else y * weight


def run_glu(
    function: str,
    ops: Sequence[Callable[..., Any]],
    splits: Sequence[Callable[..., Any]],
    gate: Any,
    up: Any,
    bias: Any,
    weight: Any,
    activation: Any,
    limit: Any,
    linear_offset: Any,
    interleaved: bool,
    **out: Any,
) -> Any:
    """Checks what is no array, and calls one of a framework's `FORMS`.

    Args:
      function: the name of the public one, for messages.
      splits: what takes its packed bias apart, of `SPLITS`.

    Raises:
      TypeError: if a number is none.
      ValueError: if activation is unknown, a number or a shape cannot be, or a separate `up` is
        said to be interleaved.
    """
    static = check_options(function, activation, limit, linear_offset)
    weight = one_a_row(gate, weight)
    if up is not None:
        if interleaved:
            raise ValueError(
                f"{function}: interleaved is True and up is given, expected one of both"
            )
        return ops[0](gate, up, bias, None, weight, **static, **out)
    shape = shape_of(gate)
    columns = shape[-1] // 2 if shape else 0
    up_bias = None
    if bias is not None and getattr(bias, "ndim", 0) == 1 and bias.shape[0] == 2 * columns:
        bias, up_bias = splits[1 if interleaved else 0](bias)
    return ops[2 if interleaved else 1](gate, bias, up_bias, weight, **static, **out)


def check_options(function: str, activation: Any, limit: Any, linear_offset: Any) -> dict[str, Any]:
    """What a declaration is told beside its operands.

    Raises:
      TypeError: if a number is none.
      ValueError: if activation is unknown, or a number cannot be.
    """
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        known = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(f"{function}: activation is {activation!r}, expected one of {known}")
    if limit is not None:
        limit = real_number(function, "limit", limit)
        if not limit > 0:
            raise ValueError(f"{function}: limit is {limit}, expected a positive number")
    linear_offset = real_number(function, "linear_offset", linear_offset)
    if not math.isfinite(linear_offset):
        raise ValueError(f"{function}: linear_offset is {linear_offset}, expected a finite number")
    return {"activation": activation, "limit": limit, "linear_offset": linear_offset}


def one_a_row(x: Any, weight: Any) -> Any:
    """weight `[..., 1]` without its last dimension."""
    return weight[..., 0] if shape_of(weight) == (*shape_of(x)[:-1], 1) else weight
