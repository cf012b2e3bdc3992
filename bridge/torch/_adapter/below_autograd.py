"""How an op of the dispatcher is recorded by autograd and then runs below it.

The ops, the exchanges of all-gather and the programs of JAX all have a kernel for the key Autograd:
it makes a `BelowAutograd` of the dispatch that it interrupts, gives that to a Function by way of
`recorder`, and the Function's forward calls it.
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

    A Function's forward runs with both modes switched off. That is meant for this level; an outer
    transform of torch.func, which takes its turn below, is to see what the caller set.
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
    """The function's `apply` for a kernel of the key Autograd.

    The dispatcher has peeled the transforms of torch.func off by level, so that this is one plain
    autograd call; `apply` of a `Function` would take them for not yet handled.
    """
    record = function.apply

    def recorded(*arguments: Any) -> Any:
        if not functorch_active():
            return record(*arguments)
        with enable_single_level_autograd_function():
            return record(*arguments)

    return recorded
