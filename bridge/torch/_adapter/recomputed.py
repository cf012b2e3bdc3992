"""What the backward pass computes again instead of keeping it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bridge._private.torch import functorch_active
from bridge.torch._adapter.autograd import forward_ad, is_watched


def recomputed(function: Callable[..., Any], operands: tuple[Tensor, ...], *others: Any) -> Any:
    """function(*operands), whose backward pass runs it again.

    Under torch.func, in forward mode and where a call is traced, other than by torch.compile, it is
    an ordinary call: these see every operation, and keep what they want. DTensors are no tracing:
    autograd has their operations as it has those of their parts.

    Args:
      others: tensors that the function reads besides.
    """
    watched = [t for t in (*operands, *others) if type(t).__name__ != "DTensor"]
    is_ordinary = torch.compiler.is_compiling() or not is_watched(watched)
    is_transformed = functorch_active() or forward_ad._current_level >= 0
    if torch.is_grad_enabled() and is_ordinary and not is_transformed:
        count = len(operands)
        # All that is read is handed over, for autograd to refuse what was changed since.
        return checkpoint(
            lambda *given: function(*given[:count]), *operands, *others, use_reentrant=False
        )
    return function(*operands)
