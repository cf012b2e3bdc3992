"""What torch's ranks are asked to do with `JaxModule`."""

from __future__ import annotations

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
    """Gradients are the mean over ranks with one model and random streams of their own."""
    module = JaxModule(Net(nnx.Rngs(place.rank)))
    parallel = DistributedDataParallel(module, broadcast_buffers=False)
    expected = [torch.zeros_like(parameter) for parameter in module.parameters()]
    batches = [
        torch.randn(5, 4, generator=torch.Generator().manual_seed(rank))
        for rank in range(place.world_size)
    ]
    for rank, batch in enumerate(batches):
        own = JaxModule(Net(nnx.Rngs(rank)))
        own.load_state_dict(dict(module.named_parameters()), strict=False)
        for _ in range(2):
            (own(batch).square().sum() / place.world_size).backward()
        for total, parameter in zip(expected, own.parameters(), strict=True):
            total += parameter.grad
    for _ in range(2):
        parallel(batches[place.rank]).square().sum().backward()
    for parameter, want in zip(module.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, want)


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
