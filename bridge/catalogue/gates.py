"""Gated linear units and the squared ReLU, each with an optional factor for each row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from bridge import lang as bl
from bridge.catalogue.declaration import declared, named, shape_of
from bridge.ops.scalars import real_number, whole_number


def _relu(x: Any) -> Any:
    """ReLU: 0 with derivative 0 at 0; NaN stays NaN."""
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


# The ops for separate gate and up, for both packed in halves, and for both packed in pairs.
FORMS = (glu, packed_glu, paired_glu)


# These split a packed bias. A framework's own slices would not do: their gradient joins or adds
# cotangents, and may change the bits of a NaN (XLA computes bfloat16 in float32).
@declared()
def bias_halves(bias: bl.Halves):
    first, second = bias
    return first, second


@declared()
def bias_pairs(bias: bl.Pairs):
    first, second = bias
    return first, second


SPLITS = (bias_halves, bias_pairs)  # for halves and for pairs


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
    """Checks the arguments that are no arrays, and calls one of a framework's `FORMS`.

    Args:
      function: the name of the public function, for messages.
      splits: the framework's functions of `SPLITS`, which split a packed bias.

    Raises:
      TypeError: if a numeric argument is not a number.
      ValueError: for an unknown activation, a number or a shape that is not allowed, or a separate
        `up` together with `interleaved`.
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


def run_glu_in_blocks(
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
    blocks: Any,
    **out: Any,
) -> Any:
    """Runs `run_glu` on an array with `blocks` packed arrays side by side.

    A block is treated as a row of its own, because elements are independent: gate and up are read
    without a copy. A vector shared by all rows, or a factor for each row, belongs to whole rows, so
    gate and up are split first if there is one.

    Raises:
      TypeError, ValueError: as `run_glu` and `check_blocks`; for a number of columns that does not
        fit the blocks; for a separate `up`.
    """
    blocks = check_blocks(function, blocks, interleaved)
    if blocks == 1:
        numbers = activation, limit, linear_offset
        return run_glu(function, ops, splits, gate, up, bias, weight, *numbers, interleaved, **out)
    static = check_options(function, activation, limit, linear_offset)
    if up is not None:
        raise ValueError(f"{function}: blocks is {blocks} and up is given, expected one of both")
    if not (shape := shape_of(gate)):
        return ops[1](gate, bias, None, weight, **static, **out)  # the op raises its own error
    *rows, columns = shape
    if columns % (2 * blocks):
        raise ValueError(
            f"{function}: gate has shape {list(shape)}, expected a multiple of {2 * blocks} in the "
            f"last dimension, two parts for each of {blocks} blocks"
        )
    whole = (*rows, columns // 2)
    gate = gate.reshape(*rows, blocks, columns // blocks)
    place = out.get("out")
    if bias is None and weight is None and (place is None or shape_of(place) == whole):
        if place is None:
            return ops[1](gate, None, None, None, **static, **out).reshape(whole)
        ops[1](gate, None, None, None, **static, out=place.unflatten(-1, (blocks, -1)))
        return place
    first, second = (part.reshape(whole) for part in splits[0](gate))
    up_bias = None
    if shape_of(bias) == (columns,):
        bias, up_bias = splits[0](bias.reshape(blocks, columns // blocks))
        bias, up_bias = bias.reshape(whole[-1]), up_bias.reshape(whole[-1])
    return ops[0](first, second, bias, up_bias, one_a_row(first, weight), **static, **out)


def check_blocks(function: str, blocks: Any, interleaved: bool) -> int:
    """Returns the number of blocks.

    Raises:
      TypeError: if it is no integer.
      ValueError: if it is less than 1, or above 1 with `interleaved`.
    """
    blocks = whole_number(function, "blocks", blocks, 1)
    if blocks > 1 and interleaved:
        raise ValueError(
            f"{function}: blocks is {blocks} and interleaved is True, expected one of both"
        )
    return blocks


def check_options(function: str, activation: Any, limit: Any, linear_offset: Any) -> dict[str, Any]:
    """Checks the static arguments of a declaration and returns them by name.

    Raises:
      TypeError: if a numeric argument is not a number.
      ValueError: if activation is unknown, or a number is not allowed.
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
    """Removes the last dimension of a weight `[..., 1]`."""
    return weight[..., 0] if shape_of(weight) == (*shape_of(x)[:-1], 1) else weight
