"""Checks of `JaxModule` on torch's ranks."""

from __future__ import annotations

from typing import Any

import torch
from flax import nnx
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
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
    """Gradients are the mean over ranks; the model is one, the random streams differ."""
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


def fully_sharded(place: Place) -> None:
    """The parameters of layers are freed between the passes, FSDP's default."""

    def made() -> torch.nn.Module:
        layers = (nnx.Linear(64, 64, rngs=nnx.Rngs(i)) for i in range(3))
        return torch.nn.Sequential(*map(JaxModule, layers))

    whole, sharded = made(), made()
    mesh = init_device_mesh("cpu", (place.world_size,))
    for layer in sharded:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        for model in (whole, sharded):
            model.zero_grad()
            model(x).square().sum().backward()
        for one, part in zip(whole.parameters(), sharded.parameters(), strict=True):
            assert isinstance(part, DTensor)
            torch.testing.assert_close(part.grad.full_tensor(), one.grad)


def buffers_follow_rank_0(place: Place) -> None:
    """DistributedDataParallel's default broadcasts batch statistics and random streams."""
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
