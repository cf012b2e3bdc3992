"""The all-gathers of Towhee under their own names: change the import, nothing else.

Originals: `AllGather` and `AllGather2` of Towhee (github.com/towhee-io/towhee), which its models
for retrieval share with CLIP4Clip. They concatenate the ranks' tensors along dimension 0 and take
`args` with `world_size` and `local_rank`. Differences:

- `local_rank` counts within one machine. On several machines the original silently returned the
  gradient of another rank's part; here a rank that is not this process's rank in the group is an
  error, on every rank. `args.rank` is read as well; one of the two must be right.
- `args.world_size == 1` returns a new tensor, not the same one.
- Gradients of gradients, forward mode, `torch.func` and `torch.compile` work with `apply`. A
  subclass with its own `forward` or `backward` is an ordinary Function of torch.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor
from torch.autograd import Function

from bridge.torch._collectives.all_gather import (
    agreed_exchange,
    differentiable_gather,
    gather_backward,
)
from bridge.torch._collectives.groups import Ranks, ranks_of
from bridge.torch._collectives.transport import Exchange
from bridge.torch._drop_ins.function_classes import DropIn

__all__ = ["AllGather", "AllGather2"]

_SIZE, _RANK, _MISSING = 1, 2, 3  # positions in bridge.collectives.CLAIMS


def _backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
    return gather_backward(grad_output, ctx.exchange), None


class AllGather(Function, metaclass=DropIn):
    """`AllGather.apply(tensor, args)`: along dimension 0; the gradient is this rank's part.

    The same as `bridge.torch.all_gather(tensor, grad="local")`, on the default group.
    """

    @staticmethod
    def apply(tensor: Tensor, args: Any) -> Tensor:  # type: ignore[override]
        """Returns `[args.world_size · n, ...]` for a tensor `[n, ...]`.

        Args:
          tensor: of the same shape and dtype on every rank.
          args: anything with integers `world_size` and `local_rank`, or `rank`.

        Raises:
            TypeError, ValueError: as `bridge.torch.all_gather`; args do not fit the group.
        """
        return differentiable_gather(tensor, _exchange("AllGather", tensor, args, "local"))

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, args: Any) -> Tensor:
        ctx.exchange = _exchange("AllGather", tensor, args, "local")
        return differentiable_gather(tensor, ctx.exchange)

    backward = staticmethod(_backward)


class AllGather2(Function, metaclass=DropIn):
    """`AllGather2.apply(tensor, args)`: the gradient is summed over the ranks first.

    The same as `bridge.torch.all_gather(tensor, grad="sum")`: one reduce-scatter. The original sums
    all ranks' gradients on every rank to keep one part.
    """

    @staticmethod
    def apply(tensor: Tensor, args: Any) -> Tensor:  # type: ignore[override]
        """Returns `[args.world_size · n, ...]`; see `AllGather.apply`."""
        return differentiable_gather(tensor, _exchange("AllGather2", tensor, args, "sum"))

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, args: Any) -> Tensor:
        ctx.exchange = _exchange("AllGather2", tensor, args, "sum")
        return differentiable_gather(tensor, ctx.exchange)

    backward = staticmethod(_backward)


def _exchange(function: str, tensor: Tensor, args: Any, grad: str) -> Exchange:
    sizes, numbers = _claimed(args, "world_size"), _claimed(args, "local_rank", "rank")
    ranks = ranks_of(function, None)
    if ranks.name == "" and sizes and sizes[0] > 1:
        raise ValueError(
            f"{function}: args.world_size is {sizes[0]}, but there is no process group; call "
            "torch.distributed.init_process_group first"
        )
    return agreed_exchange(
        tensor,
        0,
        ranks,
        True,
        grad,
        None,
        function=function,
        claim=_false_claim(ranks, sizes, numbers),
    )


def _claimed(args: Any, *names: str) -> list[int]:
    found = []
    for name in names:
        try:
            found.append(operator.index(getattr(args, name)))
        except (AttributeError, TypeError):
            continue
    return found


def _false_claim(ranks: Ranks, sizes: list[int], numbers: list[int]) -> int:
    if not sizes or not numbers:
        return _MISSING
    if sizes[0] != ranks.size:
        return _SIZE
    if ranks.size > 1 and ranks.rank not in numbers:
        return _RANK
    return 0
