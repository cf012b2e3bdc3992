"""Towhee's all-gathers against their originals' formulas, in one process of several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bridge.torch.towhee import AllGather, AllGather2
from tests.distributed.gather_checks import numbers
from tests.distributed.group_checks import raises
from tests.distributed.processes import Place


def as_the_originals(place: Place) -> None:
    world, rank = place.world_size, place.rank
    for args in (
        SimpleNamespace(world_size=world, local_rank=rank),
        SimpleNamespace(world_size=world, rank=rank),
        SimpleNamespace(world_size=world, rank=rank, local_rank=rank % 2),
    ):
        for form, summed in ((AllGather, False), (AllGather2, True)):
            x = numbers(rank, (3, 2)).requires_grad_()
            y = form.apply(x, args)
            assert torch.equal(y, torch.cat([numbers(r, (3, 2)) for r in range(world)]))
            gs = [numbers(50 + r, tuple(y.shape)) for r in range(world)]
            y.backward(gs[rank])
            total = torch.stack(gs).sum(0) if summed else gs[rank]
            assert isinstance(x.grad, Tensor)
            assert torch.allclose(x.grad, total[3 * rank : 3 * rank + 3], rtol=0, atol=1e-14)
            (called,) = torch.autograd.grad(calling(form).apply(x, args), x, gs[rank])
            assert torch.equal(called, x.grad)


def calling(form: Any) -> Any:
    """Returns a Function that calls the methods of a drop-in, as code may call the original's."""

    class Caller(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: Tensor, args: Any) -> Tensor:
            return form.forward(ctx, tensor, args)

        @staticmethod
        def backward(ctx: Any, grad_output: Tensor) -> Any:
            return form.backward(ctx, grad_output)

    return Caller


def wrong_arguments(place: Place) -> None:
    """Every rank raises if one has a wrong rank, or if all have a wrong world size."""
    world, rank = place.world_size, place.rank
    x = torch.ones(2)
    wrong = (rank + 1) % world if rank == world - 1 else rank
    with raises(ValueError, "AllGather: args.local_rank.*is not the rank in the group"):
        AllGather.apply(x, SimpleNamespace(world_size=world, local_rank=wrong))
    with raises(ValueError, "AllGather2: args.world_size is not"):
        AllGather2.apply(x, SimpleNamespace(world_size=world + 1, local_rank=rank))
    with raises(ValueError, "args.world_size is not"):
        AllGather.apply(x, SimpleNamespace(world_size=1, local_rank=0))
    with raises(ValueError, "args has no integers"):
        AllGather.apply(x, SimpleNamespace() if rank else SimpleNamespace(world_size=world, rank=0))
    with raises(ValueError, "0-dimensional"):
        AllGather.apply(torch.tensor(1.0), SimpleNamespace(world_size=world, rank=rank))


def alone(place: Place) -> None:
    assert not dist.is_initialized()
    x = torch.ones(2, 3, requires_grad=True)
    y = AllGather.apply(x, SimpleNamespace(world_size=1, local_rank=0))
    assert torch.equal(y, x)
    assert y.data_ptr() != x.data_ptr()
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones(2, 3))
    with raises(ValueError, "args.world_size is 2, but there is no process group"):
        AllGather.apply(x, SimpleNamespace(world_size=2, local_rank=0))
