"""The two exchanges as ops of torch's dispatcher, for calls that a Python Function cannot follow.

They are needed when a transform of `torch.func` is being compiled, and when gradients come in
batches (`is_grads_batched`). Elsewhere the exchanges are torch's own collectives, which compilers
know and schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bridge._private.torch import SingleLevelFunction, set_fwd_grad_enabled
from bridge.torch._adapter.below_autograd import BelowAutograd, recorder
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


class _Dispatched(SingleLevelFunction):
    """The autograd Function that records one of the exchanges."""

    @staticmethod
    def forward(
        ctx: Any, below: BelowAutograd, rules: tuple[Rule, Rule], exchange: Exchange, x: Tensor
    ) -> Any:
        ctx.rules, ctx.exchange = rules, exchange
        ctx.forward_enabled = below.forward_enabled
        ctx.set_materialize_grads(False)
        return below(x, *fields_of(exchange))

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Any:
        return None, None, None, None if g is None else ctx.rules[0](g, ctx.exchange)

    @staticmethod
    def jvp(ctx: Any, _below: None, _rules: None, _exchange: None, tangent: Any) -> Any:
        if tangent is None:
            return None
        with set_fwd_grad_enabled(ctx.forward_enabled):
            return ctx.rules[1](tangent, ctx.exchange)


_record = recorder(_Dispatched)


def define(name: str, run: Rule, shape_of: Any, pull: Rule, push: Rule) -> Rule:
    """Defines the op `bridge::name`.

    Args:
      name: the op's name.
      run: computes the result of an operand and an exchange.
      shape_of: returns, for the operand's shape and the exchange, the result's shape and its
        dimension that is outermost in memory.
      pull: returns the operand's cotangent for the result's.
      push: returns the result's tangent for the operand's.

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

    def autograd(keys: Any, x: Tensor, *fields: Any) -> Any:
        return _record(BelowAutograd(overload, keys), (pull, push), _exchange_of(fields), x)

    def vmap(info: Any, in_dims: Any, x: Tensor, *fields: Any) -> Any:
        exchange = _exchange_of(fields).batched()
        return overload(x.movedim(in_dims[0], 0), *fields_of(exchange)), 0

    for key in ("CPU", "CUDA"):
        library.impl(name, kernel, key)
    torch.library.register_fake(f"bridge::{name}", fake, lib=library)
    library.impl(name, autograd, "Autograd", with_keyset=True)
    torch.library.register_vmap(overload, vmap, lib=library)
    return lambda x, exchange: overload(x, *fields_of(exchange))
