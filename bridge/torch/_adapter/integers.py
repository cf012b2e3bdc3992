"""Seeds and offsets: 64-bit integers in int64 tensors, which the kernel reads at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bridge._private.torch import current_graph_task_id
from bridge.ops.integers import check_integer, check_integer_array
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.dispatcher import meet_dtensors
from bridge.torch._adapter.kernels import spec_of

_INT64 = 1 << 63

# The function that gives all processes of a DTensor one seed, added with the rules of DTensors.
seed_on_mesh: list[Callable[[Tensor, Any], Tensor]] = []


def as_integer(function: str, argument: str, value: Any, x: Tensor, *others: Any) -> Tensor:
    """Returns a seed or offset as an int64 tensor on x's device; `others` as for `drawn_seed`."""
    if isinstance(value, Tensor):
        if value.dtype is torch.int64:
            return value  # checked with the other operands
        check_tensors(function, **{"x": x, argument: value})  # type: ignore[arg-type]
        check_integer_array(function, argument, spec_of(value))
        return value.to(torch.int64)
    if isinstance(value, torch.Generator) and argument == "seed":
        if value.device.type != x.device.type and not x.is_meta:
            raise ValueError(
                f"{function}: seed is a generator on {value.device}, expected {x.device}, where x "
                "is"
            )
        if current_graph_task_id() >= 0:
            raise RuntimeError(
                f"{function}: seed is a generator, and a backward pass computes the call again, as "
                "activation checkpoints do: it would draw another mask than the first one; draw a "
                "number outside of the checkpoint and give that"
            )
        return drawn_seed(value, x, *others)
    if type(value) is not int or not -_INT64 <= value < 2 * _INT64:
        value = check_integer(function, argument, value)
    if value >= _INT64:
        value -= 2 * _INT64  # the same 64 bits, with a sign
    return torch.full((), value, dtype=torch.int64, device=x.device)


def drawn_seed(generator: torch.Generator | None, x: Tensor, *others: Any) -> Tensor:
    """Returns a seed drawn from a generator, by default the one of x's device.

    `others` are the call's other tensors: if one of them is a DTensor, all processes get one seed.
    """
    if x.is_meta:  # a meta tensor has no values, so the generator is not used
        generator = None
    seed = torch.randint(_INT64 - 1, (), dtype=torch.int64, device=x.device, generator=generator)
    for each in (x, *others):
        if type(each).__name__ == "DTensor":  # its processes have generators of their own
            meet_dtensors()
            return seed_on_mesh[0](seed, each)
    return seed
