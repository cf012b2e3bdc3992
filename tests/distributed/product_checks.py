"""Products of DTensors against the products of the whole tensors, in one process of several."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import bridge.torch as bt
from tests.distributed.gather_checks import numbers, same_bits
from tests.distributed.group_checks import raises
from tests.distributed.processes import Place

# For each case: the contraction, and the dimension of x, of the weight and of the bias that each
# mesh dimension splits. x is [batch, rows, k], the weight [columns, k].
CASES: dict[str, Any] = {
    "batches": (700, [(0, None, None)]),
    "columns": (700, [(None, 0, 0)]),
    "contraction": (2048, [(2, 1, None)]),
    "contraction of x": (2048, [(2, None, None)]),
    "no subtrees": (1000, [(2, 1, None)]),
    "batches and columns": (700, [(0, None, None), (None, 0, 0)]),
    "batches and contraction": (1024, [(0, None, None), (2, 1, None)]),
    "contraction twice": (4096, [(2, 1, None), (2, 1, None)]),
}


def _drawn(k: int, dtype: str) -> list[torch.Tensor]:
    shapes = ((4, 6, k), (8, k), (8,))
    return [numbers(i, s).to(getattr(torch, dtype)) for i, s in enumerate(shapes)]


def placed(tensor: torch.Tensor, mesh: Any, dims: list[int | None]) -> Any:
    placements = [Replicate() if dim is None else Shard(dim) for dim in dims]
    return distribute_tensor(tensor, mesh, placements)


def of_the_whole(place: Place, name: str, dtype: str) -> None:
    """Value and gradients of a linear layer have the bits of the whole."""
    k, dims = CASES[name]
    mesh = init_device_mesh("cpu", (2,) * len(dims), mesh_dim_names=("a", "b")[: len(dims)])
    whole = _drawn(k, dtype)
    g = numbers(9, (4, 6, 8)).to(whole[0].dtype)
    split = [placed(t, mesh, [own[i] for own in dims]) for i, t in enumerate(whole)]
    for tensors in (whole, split):
        for tensor in tensors:
            tensor.requires_grad_()
    y, z = bt.linear(*whole), bt.linear(*split)
    assert isinstance(z, DTensor)
    assert same_bits(z.full_tensor(), y)
    expected = torch.autograd.grad(y, whole, g)
    found = torch.autograd.grad(z, split, placed(g, mesh, [None] * len(dims)))
    for one, two in zip(found, expected, strict=True):
        assert same_bits(one.full_tensor(), two)


def communication(place: Place) -> dict[str, int]:
    """Returns how many collectives the forward pass of each case on one mesh dimension needs."""
    found = {}
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("a",))
    for name, (k, dims) in CASES.items():
        if len(dims) > 1:
            continue
        split = [placed(t, mesh, [dims[0][i]]) for i, t in enumerate(_drawn(k, "float32"))]
        with CommDebugMode() as counted:
            bt.linear(*split)
        found[name] = counted.get_total_counts()
    return found


def refusals(place: Place) -> None:
    """A plain x beside a weight that is a DTensor is refused."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("a",))
    x, weight, _ = _drawn(300, "float32")
    split = placed(weight, mesh, [0])
    with raises(TypeError, "matmul: a is a plain tensor and b a DTensor"):
        bt.linear(x, split)
