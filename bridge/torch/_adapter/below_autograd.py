"""Records a dispatcher op in autograd and runs the op below autograd.

The ops, the exchanges of all-gather and the JAX programs each have a kernel for the key Autograd.
That kernel puts the rest of its dispatch into a `BelowAutograd` and passes it to a Function through
`recorder`; the Function's forward calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bridge._private.torch import (
    AutoDispatchBelowAutograd,
    SingleLevelFunction,
    after_autograd_keyset,
    enable_single_level_autograd_function,
    functorch_active,
    is_fwd_grad_enabled,
    set_fwd_grad_enabled,
)


class BelowAutograd:
    """The rest of a dispatch that has reached autograd: an op, run in the modes of its caller.

    A Function's forward runs with grad mode and forward mode off. Torch means this for the current
    level only; an outer transform of torch.func runs below and must see the caller's modes.
    """

    __slots__ = ("forward_enabled", "grad_enabled", "keys", "overload")

    def __init__(self, overload: Any, keys: Any) -> None:
        self.overload, self.keys = overload, keys
        self.grad_enabled = torch.is_grad_enabled()
        self.forward_enabled: bool = is_fwd_grad_enabled()

    def __call__(self, *arguments: Any, **fields: Any) -> Any:
        with (
            AutoDispatchBelowAutograd(),
            torch.set_grad_enabled(self.grad_enabled),
            set_fwd_grad_enabled(self.forward_enabled),
        ):
            return self.overload.redispatch(self.keys & after_autograd_keyset, *arguments, **fields)


def recorder(function: type[SingleLevelFunction]) -> Callable[..., Any]:
    """Returns the function's `apply` for a kernel of the key Autograd.

    The dispatcher has already handled the transforms of torch.func, level by level. So this is one
    plain autograd call; `apply` of a `Function` would handle the transforms a second time.
    """
    record = function.apply

    def recorded(*arguments: Any) -> Any:
        if not functorch_active():
            return record(*arguments)
        with enable_single_level_autograd_function():
            return record(*arguments)

    return recorded
