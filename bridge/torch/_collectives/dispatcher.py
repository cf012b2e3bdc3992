"""The two exchanges as ops of torch's dispatcher, for where a Python Function cannot follow.

That is inside transforms of `torch.func` that are being compiled, and where gradients come in
batches (`is_grads_batched`). Elsewhere the exchanges are torch's own collectives, which compilers
know and schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from bridge._private.torch import (
    AutoDispatchBelowAutograd,
    after_autograd_keyset,
    enable_single_level_autograd_function,
    functorch_active,
    is_fwd_grad_enabled,
    set_fwd_grad_enabled,
)
from bridge.torch._adapter.dispatcher import library
from bridge.torch._collectives.groups import Ranks
from bridge.torch._collectives.transport import Exchange

_FIELDS = "str group, int size, int rank, int dim, bool tiled, str rule"

Rule = Callable[[Tensor, Exchange], Tensor]


def fields_of(exchange: Exchange) -> tuple[Any, ...]:
    ranks = exchange.ranks
    return ranks.name, ranks.size, ranks.rank, exchange.dim, exchange.tiled, exchange.rule


def _exchange_of(fields: Any) -> Exchange:
    name, size, rank, dim, tiled, rule = fields
    return Exchange(Ranks(name, size, rank), dim, tiled, rule)


class _Dispatched(Function):
    """One of the exchanges as autograd sees it. `below` is the rest of its dispatch."""

    @staticmethod
    def forward(
        ctx: Any, below: Callable[[Tensor], Tensor], rules: tuple[Rule, Rule], exchange: Any, x: Any
    ) -> Tensor:
        ctx.rules, ctx.exchange = rules, exchange
        ctx.forward_enabled = below.forward_enabled  # type: ignore[attr-defined]
        ctx.set_materialize_grads(False)
        return below(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Any:
        return None, None, None, None if g is None else ctx.rules[0](g, ctx.exchange)

    @staticmethod
    def jvp(ctx: Any, _below: None, _rules: None, _exchange: None, tangent: Any) -> Any:
        if tangent is None:
            return None
        with set_fwd_grad_enabled(ctx.forward_enabled):
            return ctx.rules[1](tangent, ctx.exchange)


class _Below:
    """Runs an op below autograd, in the modes of its caller.

    A Function's forward switches both modes off. That is meant for this level; outer transforms of
    torch.func, which take their turn below, are to see what the caller set.
    """

    def __init__(self, overload: Any, keys: Any, fields: tuple[Any, ...]) -> None:
        self.overload, self.keys, self.fields = overload, keys, fields
        self.grad_enabled = torch.is_grad_enabled()
        self.forward_enabled = is_fwd_grad_enabled()

    def __call__(self, x: Tensor) -> Tensor:
        with (
            AutoDispatchBelowAutograd(),
            torch.set_grad_enabled(self.grad_enabled),
            set_fwd_grad_enabled(self.forward_enabled),
        ):
            keys = self.keys & after_autograd_keyset
            return self.overload.redispatch(keys, x, *self.fields)


# The dispatcher has peeled torch.func's levels off; Function.apply in Python would do so again.
_record = super(Function, _Dispatched).apply


def define(name: str, run: Rule, shape_of: Any, pull: Rule, push: Rule) -> Rule:
    """Defines `bridge::name`.

    Args:
      name: of the op.
      run: what it computes.
      shape_of: the shape of its result, from that of its operand and the exchange, and which
        dimension is outermost in memory.
      pull, push: its cotangent from that of the result, its tangent from that of the operand.

    Returns:
      A function with the arguments of `run` that calls the op.
    """
    library.define(f"{name}(Tensor x, {_FIELDS}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    overload = getattr(torch.ops.bridge, name).default

    def kernel(x: Tensor, *fields: Any) -> Tensor:
        return run(x, _exchange_of(fields))

    def fake(x: Tensor, *fields: Any) -> Tensor:
        exchange = _exchange_of(fields)
        shape, outermost = shape_of(x.shape, exchange)
        return x.new_empty([shape.pop(outermost), *shape]).movedim(0, outermost)

    def autograd(keys: Any, x: Tensor, *fields: Any) -> Tensor:
        below = _Below(overload, keys, fields)
        arguments = (below, (pull, push), _exchange_of(fields), x)
        if not functorch_active():
            return _record(*arguments)
        with enable_single_level_autograd_function():
            return _record(*arguments)

    def vmap(info: Any, in_dims: Any, x: Tensor, *fields: Any) -> Any:
        exchange = _exchange_of(fields).batched()
        return overload(x.movedim(in_dims[0], 0), *fields_of(exchange)), 0

    for key in ("CPU", "CUDA"):
        library.impl(name, kernel, key)
    torch.library.register_fake(f"bridge::{name}", fake, lib=library)
    library.impl(name, autograd, "Autograd", with_keyset=True)
    torch.library.register_vmap(overload, vmap, lib=library)
    return lambda x, exchange: overload(x, *fields_of(exchange))
