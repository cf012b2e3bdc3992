"""What torch's ranks are asked to do with `JaxModule`."""

from __future__ import annotations

import copy
from typing import Any

import torch
from flax import nnx
from torch.nn.parallel import DistributedDataParallel

from bridge.torch import JaxModule
from tests.distributed.processes import Place


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(4, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.drop(self.norm(self.linear(x)))


def data_parallel(place: Place) -> None:
    """Gradients are the mean of the ranks', and everybody starts from rank 0's parameters."""
    module = JaxModule(Net(nnx.Rngs(place.rank)))
    parallel = DistributedDataParallel(module, broadcast_buffers=False)
    own = copy.deepcopy(module)
    count = place.world_size
    batches = [torch.randn(5, 4, generator=torch.Generator().manual_seed(r)) for r in range(count)]
    for _ in range(2):
        parallel(batches[place.rank]).square().sum().backward()
    # All ranks have rank 0's numbers, the random stream's too: each can do what all did.
    for batch in batches:
        each = copy.deepcopy(own)
        each.zero_grad()
        for _ in range(2):
            (each(batch).square().sum() / count).backward()
        for mine, theirs in zip(own.parameters(), each.parameters(), strict=True):
            mine.grad = theirs.grad if mine.grad is None else mine.grad + theirs.grad
    for got, want in zip(module.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)


def buffers_follow_rank_0(place: Place) -> None:
    """As DistributedDataParallel has it by default: batch statistics and random streams."""
    parallel = DistributedDataParallel(JaxModule(Net(nnx.Rngs(place.rank))))
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(place.rank))
    for _ in range(3):
        parallel(x)
    parallel.eval()
    parallel(x)
    for buffer in parallel.module.buffers():
        first = buffer.clone()
        torch.distributed.broadcast(first, 0)
        assert torch.equal(first, buffer) or place.rank > 0
    assert int(parallel.module.drop.rngs.count) == 3
