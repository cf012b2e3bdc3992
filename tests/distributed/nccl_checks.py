"""`all_gather` on a GPU, in a group of NCCL with one rank."""

from __future__ import annotations

import torch
import torch.distributed as dist

import bridge.torch as bt
from bridge._private.torch_distributed import (
    all_gather_into_tensor,
    reduce_scatter_tensor,
    wait_tensor,
)
from bridge.collectives import SIGNATURE_LENGTH
from bridge.torch._collectives.groups import Ranks, _exchanged_numbers
from tests.distributed.gather_checks import numbers
from tests.distributed.processes import Place


def one_rank(place: Place) -> None:
    for rule in ("sum", "local", "mean"):
        x = numbers(0, (3, 4), torch.bfloat16).cuda().requires_grad_()
        y = bt.all_gather(x, dim=1, grad=rule)
        g = numbers(1, (3, 4), torch.bfloat16).cuda()
        y.backward(g)
        assert torch.equal(y, x)
        assert torch.equal(x.grad, g)
    # Run the exchanges themselves, which are otherwise skipped on a single rank.
    name = dist.group.WORLD.group_name
    x = numbers(0, (3, 4)).cuda()
    assert torch.equal(wait_tensor(all_gather_into_tensor(x, 1, name)), x)
    assert torch.equal(wait_tensor(reduce_scatter_tensor(x, "sum", 1, name)), x)
    numbers_sent = list(range(SIGNATURE_LENGTH))
    assert _exchanged_numbers("all_gather", Ranks(name, 1, 0), numbers_sent) == [numbers_sent]
