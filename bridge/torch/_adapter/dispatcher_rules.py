"""How the dispatcher ops are differentiated and batched: by the same rules as eager calls.

`torch.library.register_autograd` would do for reverse mode; forward mode it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from bridge._private.torch import (
    AutoDispatchBelowAutograd,
    after_autograd_keyset,
    enable_single_level_autograd_function,
    functorch_active,
    is_fwd_grad_enabled,
    set_fwd_grad_enabled,
)
from bridge.ops import OPS
from bridge.torch._adapter.autograd import (
    Plan,
    Rules,
    batched,
    jvp_among_levels,
    named,
    plan_of,
    remember,
)
from bridge.torch._adapter.dispatcher import (
    dispatch,
    fields_of,
    flattened,
    library,
    overloads,
    trimmed,
)
from bridge.torch._adapter.kernels import dtypes_of


class _BelowAutograd(NamedTuple):
    """The rest of a dispatch that has reached autograd."""

    plan: Plan
    overload: Any
    keys: Any
    grad_enabled: bool
    forward_enabled: bool

    def __call__(self, operands: tuple[Any, ...]) -> Any:
        # A Function's forward runs with both modes switched off. That is meant for this level; an
        # outer transform of torch.func, which takes its turn below, is to see what the caller set.
        with (
            AutoDispatchBelowAutograd(),
            torch.set_grad_enabled(self.grad_enabled),
            set_fwd_grad_enabled(self.forward_enabled),
        ):
            keys = self.keys & after_autograd_keyset
            return self.overload.redispatch(keys, *operands, **fields_of(self.plan.params))


class _DispatchedCall(Rules):
    """An op of the dispatcher as autograd sees it."""

    @staticmethod
    def forward(ctx: Any, rest: _BelowAutograd, *operands: Any) -> Any:
        ctx.forward_enabled = rest.forward_enabled
        outputs = rest(operands)
        remember(ctx, rest.plan, operands, rest.plan.place(outputs))
        return outputs

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        return jvp_among_levels(ctx, tangents, ctx.forward_enabled)


def _autograd(op: Any, overload: Any) -> Callable[..., Any]:
    # For the forward pass profilers have the dispatcher's own name.
    function = named(_DispatchedCall, op.name, False)
    # The dispatcher has peeled torch.func's transforms off by level, so that this is one plain
    # autograd call; Function.apply in Python would take them for not yet handled.
    record = super(torch.autograd.Function, function).apply

    def kernel(keys: Any, *operands: Any, **fields: Any) -> Any:
        operands = trimmed(op, operands)
        plan = plan_of(op, op.params_type(**fields), dtypes_of(operands))
        rest = _BelowAutograd(plan, overload, keys, torch.is_grad_enabled(), is_fwd_grad_enabled())
        if not functorch_active():
            return record(rest, *operands)
        with enable_single_level_autograd_function():
            return record(rest, *operands)

    return kernel


def _vmap(op: Any) -> Callable[..., Any]:
    def vmap(info: Any, in_dims: Any, *operands: Any, **fields: Any) -> Any:
        operands = trimmed(op, operands)
        dims = (*in_dims, *[None] * len(operands))[: len(operands)]
        params, moved = batched(op, op.params_type(**fields), operands, dims, info.batch_size)
        outputs = flattened(dispatch(op, moved, params))
        return outputs, (0 if isinstance(outputs, torch.Tensor) else (0,) * len(outputs))

    return vmap


for (_name, _), _overload in overloads.items():
    library.impl(_overload, _autograd(OPS[_name], _overload), "Autograd", with_keyset=True)
    torch.library.register_vmap(_overload, _vmap(OPS[_name]), lib=library)
