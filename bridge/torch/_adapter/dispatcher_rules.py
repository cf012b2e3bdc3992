"""Runs, differentiates and batches the dispatcher ops through the plans of eager calls.

A plan is made at the first call of a kind and reused. So a compiled graph calls the kernels at the
cost of eager code.

`torch.library.register_autograd` would suffice for reverse mode, but does not support forward mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from bridge._private.torch import FUNCTIONALIZE, SingleLevelFunction, functorch_active
from bridge.ops import OPS
from bridge.ops.definition import Op
from bridge.torch._adapter import nodes
from bridge.torch._adapter.autograd import Plan, is_recorded, plan_of
from bridge.torch._adapter.autograd_functions import (
    Rules,
    batched,
    jvp_among_levels,
    named,
    remember,
)
from bridge.torch._adapter.below_autograd import BelowAutograd, recorder
from bridge.torch._adapter.dispatcher import (
    dispatch,
    fields_of,
    flattened,
    library,
    overload_of,
    overloads,
    trimmed,
    with_schema,
)
from bridge.torch._adapter.kernels import NAMES, dtypes_of


class _Dispatch(NamedTuple):
    plan: Plan
    below: BelowAutograd


class _DispatchedCall(SingleLevelFunction):
    """The autograd Function that records an op of the dispatcher."""

    @staticmethod
    def forward(ctx: Any, rest: _Dispatch, *operands: Any) -> Any:
        plan, below = rest
        ctx.forward_enabled = below.forward_enabled
        results = plan.saving.place(below(*operands, **fields_of(plan.saving.params)))
        remember(ctx, plan, operands, results)
        return plan.present(results)

    backward = staticmethod(Rules.backward)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        return jvp_among_levels(ctx, tangents, ctx.forward_enabled)


@functools.lru_cache(maxsize=4096)
def _plan_of(op: Op[Any], dtypes: tuple[torch.dtype | None, ...], *fields: Any) -> Plan:
    """Returns the plan of a call by the dispatcher's own arguments, which are cheap to look up."""
    # Compiled graphs record nothing, but their calls on strided operands need this module.
    nodes.recorder()
    names = tuple(None if dtype is None else NAMES[dtype] for dtype in dtypes)
    return plan_of(op, op.params_type(*fields), names)


def _autograd(op: Op[Any], own: Any) -> Callable[..., Any]:
    # In the forward pass profilers show the dispatcher's own name.
    record = recorder(named(_DispatchedCall, op.name, False))

    def kernel(keys: Any, *operands: Any, **fields: Any) -> Any:
        operands = trimmed(op, operands)
        dtypes = tuple([None if o is None else o.dtype for o in operands])
        plan = _plan_of(op, dtypes, *fields.values())
        # Tensors wrapped by functionalization look like plain tensors; only the key shows them.
        if FUNCTIONALIZE is not None and not keys.has(FUNCTIONALIZE):
            try:
                if (results := plan.native(*operands)) is not None:
                    return plan.present(results)
            except ValueError:  # wrong shapes: the op below raises a better message
                pass
        overload = own
        if plan.saving is not plan:
            if not functorch_active() and not is_recorded(operands):
                return BelowAutograd(own, keys)(*operands, **fields)
            overload = overload_of(op, op.result_dtypes(plan.saving.params), len(operands))
        below = BelowAutograd(overload, keys)
        return flattened(plan.place(record(_Dispatch(plan, below), *operands)))

    return kernel


def _vmap(op: Op[Any]) -> Callable[..., Any]:
    def vmap(info: Any, in_dims: Any, *operands: Any, **fields: Any) -> Any:
        operands = trimmed(op, operands)
        dims = (*in_dims, *[None] * len(operands))[: len(operands)]
        params, moved = batched(op, op.params_type(**fields), operands, dims, info.batch_size)
        outputs = flattened(dispatch(op, moved, params))
        return outputs, (0 if isinstance(outputs, torch.Tensor) else (0,) * len(outputs))

    return vmap


def _run(op: Op[Any], operands: tuple[Any, ...], params: Any) -> Any:
    return plan_of(op, params, dtypes_of(operands)).run_below(operands)


for (_name, *_), _overload in overloads.items():
    for _key in ("CPU", "CUDA"):
        library.impl(_overload, with_schema(OPS[_name], _run), _key)
    library.impl(_overload, _autograd(OPS[_name], _overload), "Autograd", with_keyset=True)
    torch.library.register_vmap(_overload, _vmap(OPS[_name]), lib=library)
