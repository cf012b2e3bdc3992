"""Calls whose backward pass recomputes intermediate values instead of storing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bridge._private.torch import functorch_active
from bridge.torch._adapter.autograd import forward_ad, is_watched


def recomputed(function: Callable[..., Any], operands: tuple[Tensor, ...], *others: Any) -> Any:
    """Returns function(*operands); the backward pass runs `function` again.

    Under torch.func, in forward mode and in a traced call (except under torch.compile) this is an
    ordinary call: the tracer or transform sees every operation and stores what it needs. DTensors
    do not count as tracing, because autograd records their operations as usual.

    Args:
      others: further tensors that `function` reads.
    """
    watched = [t for t in (*operands, *others) if type(t).__name__ != "DTensor"]
    is_ordinary = torch.compiler.is_compiling() or not is_watched(watched)
    is_transformed = functorch_active() or forward_ad._current_level >= 0
    if torch.is_grad_enabled() and is_ordinary and not is_transformed:
        count = len(operands)
        # Pass every tensor that is read, so that autograd detects later changes in place.
        return checkpoint(
            lambda *given: function(*given[:count]), *operands, *others, use_reentrant=False
        )
    return function(*operands)
