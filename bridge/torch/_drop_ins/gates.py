"""Gated units of what is packed in halves, with a bias that broadcasts and a weight per token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bridge import lang as bl
from bridge.catalogue import gates
from bridge.catalogue.declaration import declared, named
from bridge.catalogue.gates import run_glu
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.kernels import spec_of
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._drop_ins.broadcasting import fused_pair
from bridge.torch._ops.gates import glu


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
    """`glu` in the dtype of gate: a router's float32 probabilities leave 16-bit tokens 16-bit."""
    first, _ = gate
    static = {"activation": activation, "limit": limit, "linear_offset": linear_offset}
    y = gates.packed_glu.declaration.function(gate, bias, up_bias, weight, **static)
    return bl.like(y, first)


# Made now: a first call under torch.compile could not.
_OPS = gates.glu.torch, _narrow_glu.torch


def gated(
    y: Tensor,
    bias: Tensor | None,
    weights: Tensor | None,
    activation: str,
    limit: float | None = None,
    linear_offset: float = 0.0,
) -> Tensor:
    """`glu` of y + bias, whatever shapes broadcast; with weights, in the dtype of y."""
    if type(y) is not Tensor and is_overridden((y, bias, weights)):
        return hand_over((y, bias, weights))  # type: ignore[no-any-return]
    check_tensors("glu", y=y)
    x, bias = fused_pair("glu", y, bias)
    if weights is None:
        return glu(x, bias=bias, activation=activation, limit=limit, linear_offset=linear_offset)
    weights = one_a_row("glu", x, weights)
    found = run_glu("glu", _OPS, x, None, bias, weights, activation, limit, linear_offset, False)
    return found.to(y.dtype)  # type: ignore[no-any-return]


def gated_back(
    g: Tensor,
    y: Tensor,
    bias: Tensor | None,
    weights: Tensor | None,
    activation: str,
    limit: float | None = None,
    linear_offset: float = 0.0,
) -> tuple[Tensor, ...]:
    """Cotangents of y + bias, in the dtype promoted of both and g, and of the weights."""
    if type(y) is not Tensor and is_overridden((g, y, bias, weights)):
        return hand_over((g, y, bias, weights))  # type: ignore[no-any-return]
    x, bias = fused_pair("glu_back", y, bias)

    def run(x: Tensor, weights: Tensor | None = None) -> Tensor:
        return gated(x, bias, weights, activation, limit, linear_offset)

    if bias is not None:
        x = x.to(torch.promote_types(x.dtype, bias.dtype))
    return pulled_back("glu_back", run, g, x, weights)


def pulled_back(
    function: str,
    run: Callable[..., Tensor],
    g: Tensor,
    x: Tensor,
    weights: Tensor | None,
) -> tuple[Tensor, ...]:
    """Cotangents of x and weights from g, that of run(x) or run(x, weights).

    That of x has the dtype promoted of x and g.
    """
    check_tensors(function, 2, y=x, g=g)
    primals = [x.to(torch.promote_types(x.dtype, g.dtype))]
    if weights is not None:
        primals.append(one_a_row(function, x, weights))
    value, pull_back = torch.func.vjp(run, *primals)  # type: ignore[misc]
    return pull_back(g.to(value.dtype).expand(value.shape))  # type: ignore[no-any-return]


def one_a_row(function: str, x: Any, weights: Any) -> Any:
    """weights `[..., 1]`, repeated where there are fewer."""
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


def refuse(function: str, **arguments: Any) -> None:
    """Raises NotImplementedError for arguments that say how the input is kept, and are true."""
    for name, value in arguments.items():
        if value:
            raise NotImplementedError(
                f"{function}: {name} is {value}, expected False: the backward pass keeps the input "
                "as it is, where it lies"
            )


def flat(x: Any) -> Any:
    """Tokens in one dimension, as the originals' `…_impl` have them."""
    return x.flatten(0, -2) if isinstance(x, Tensor) and not x.is_nested and x.ndim > 2 else x


def as_before(y: Tensor, x: Tensor) -> Tensor:
    """y with the leading dimensions that x had before `flat`."""
    return y.unflatten(0, x.shape[:-1]) if x.ndim > 2 else y
