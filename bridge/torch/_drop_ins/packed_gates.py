"""Gated units of a packed tensor, with a bias that broadcasts and a weight per token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bridge import lang as bl
from bridge.catalogue import gates
from bridge.catalogue.declaration import declared, named
from bridge.ops.scalars import real_number
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.kernels import spec_of
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._drop_ins.broadcasting import fused_pair
from bridge.torch._ops.quantized_entries import GluEntry


@declared()
@named("glu")
def _narrow_glu(
    gate: bl.Halves,
    bias: bl.Row | None = None,
    up_bias: bl.Row | None = None,
    weight: bl.PerRow | None = None,
    *,
    activation: str = "silu",
    limit: float | None = None,
    linear_offset: float = 0.0,
):
    """`glu` in the gate's dtype: a router's float32 probabilities leave 16-bit tokens 16-bit."""
    first, _ = gate
    static = {"activation": activation, "limit": limit, "linear_offset": linear_offset}
    y = gates.packed_glu.declaration.function(gate, bias, up_bias, weight, **static)
    return bl.like(y, first)


_NARROW = gates.glu, _narrow_glu, gates.paired_glu

# Key: the name for messages and profilers. Values: the functions without and with weights. They are
# made now, because a first call under torch.compile could not make them.
_ENTRIES = {
    name: (GluEntry(name), GluEntry(name, _NARROW)) for name in ("swiglu", "geglu", "quick_geglu")
}
_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu_tanh", "quick_geglu": "gelu_sigmoid"}


def gated(
    function: str,
    y: Tensor,
    bias: Tensor | None,
    weights: Tensor | None,
    clamp_value: float | None = None,
    linear_offset: float = 0.0,
) -> Tensor:
    """`glu` of y + bias, for all shapes that broadcast; with weights, in the dtype of y.

    Args:
      function: "swiglu", "geglu" (the tanh form) or "quick_geglu".
    """
    if type(y) is not Tensor and is_overridden((y, bias, weights)):
        return hand_over((y, bias, weights))  # type: ignore[no-any-return]
    check_tensors(function, y=y)
    clamp_value = checked_clamp(function, clamp_value)
    x, bias = fused_pair(function, y, bias)
    if weights is not None:
        weights = one_a_row(function, x, weights)
    plain, weighted = _ENTRIES[function]
    entered, activation = plain if weights is None else weighted, _ACTIVATIONS[function]
    operands = (x, None, bias, weights)
    found = entered.run(operands, None, activation, clamp_value, linear_offset, False, 1)
    return found if weights is None else found.to(y.dtype)  # type: ignore[no-any-return]


def gated_back(
    function: str,
    g: Tensor,
    y: Tensor,
    bias: Tensor | None,
    weights: Tensor | None,
    clamp_value: float | None = None,
    linear_offset: float = 0.0,
) -> tuple[Tensor, ...]:
    """Returns cotangents of y + bias, in the promoted dtype of y, bias and g, and of weights."""
    if type(y) is not Tensor and is_overridden((g, y, bias, weights)):
        return hand_over((g, y, bias, weights))  # type: ignore[no-any-return]
    x, bias = fused_pair(f"{function}_back", y, bias)

    def run(x: Tensor, weights: Tensor | None = None) -> Tensor:
        return gated(function, x, bias, weights, clamp_value, linear_offset)

    if bias is not None:
        x = x.to(torch.promote_types(x.dtype, bias.dtype))
    return pulled_back(f"{function}_back", run, g, x, weights)


def pulled_back(
    function: str,
    run: Callable[..., Tensor],
    g: Tensor,
    x: Tensor,
    weights: Tensor | None,
) -> tuple[Tensor, ...]:
    """Returns cotangents of x and weights from g, the cotangent of run(x) or run(x, weights).

    The cotangent of x has the promoted dtype of x and g.
    """
    check_tensors(function, 2, y=x, g=g)
    primals = [x.to(torch.promote_types(x.dtype, g.dtype))]
    if weights is not None:
        primals.append(one_a_row(function, x, weights))
    value, pull_back = torch.func.vjp(run, *primals)  # type: ignore[misc]
    if not spec_of(g).broadcasts_to(tuple(value.shape)):
        raise ValueError(
            f"{function}: g has shape {list(g.shape)}, expected {list(value.shape)}, as the result "
            "has"
        )
    return pull_back(g.to(value.dtype).expand(value.shape))  # type: ignore[no-any-return]


def one_a_row(function: str, x: Any, weights: Any) -> Any:
    """Returns weights as `[..., 1]`, one for each row of x; fewer weights are repeated."""
    check_tensors(function, 2, x=x, weights=weights)
    rows, spec = (*x.shape[:-1], 1), spec_of(weights)
    if spec.has_shape(rows):
        return weights
    if weights.shape[-1:] not in ((), (1,)) or not spec.broadcasts_to(rows):
        raise ValueError(
            f"{function}: weights has shape {list(weights.shape)}, expected {list(rows)}, one for "
            "each row"
        )
    return weights.expand(rows)


def checked_clamp(function: str, clamp_value: Any) -> float | None:
    """Returns clamp_value as a positive number, or None."""
    if clamp_value is None:
        return None
    found = real_number(function, "clamp_value", clamp_value)
    if not found > 0:
        raise ValueError(f"{function}: clamp_value is {found}, expected a positive number")
    return found


def refuse(function: str, **arguments: Any) -> None:
    """Raises NotImplementedError for a true argument that asks to store the input elsewhere."""
    for name, value in arguments.items():
        if value:
            raise NotImplementedError(
                f"{function}: {name} is {value}, expected False: the backward pass keeps the input "
                "in its dtype, on its device"
            )


def flat(x: Any) -> Any:
    """Flattens the tokens to one dimension, as the originals' `…_impl` do."""
    return x.flatten(0, -2) if isinstance(x, Tensor) and not x.is_nested and x.ndim > 2 else x


def as_before(y: Tensor, x: Tensor) -> Tensor:
    """Returns y with the leading dimensions that x has: the inverse of `flat`."""
    return y.unflatten(0, x.shape[:-1]) if x.ndim > 2 else y
