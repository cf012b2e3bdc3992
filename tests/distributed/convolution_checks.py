"""Convolutions of DTensors against those of the whole tensors, in one process of several."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

import bridge.torch as bt
from tests.distributed.gather_checks import numbers, same_bits
from tests.distributed.group_checks import raises
from tests.distributed.processes import Place
from tests.distributed.product_checks import placed

# For each case: the groups, and the dimension of x, of the weight and of the bias that each
# dimension of the mesh splits. x is [n, 8, h, w], the weight [8, 8/groups, 3, 3].
CASES: dict[str, Any] = {
    "images": (1, [(0, None, None)]),
    "output channels": (1, [(None, 0, 0)]),
    "input channels": (1, [(1, 1, None)]),
    "places": (1, [(2, None, None)]),
    "groups": (4, [(1, 0, 0)]),
    "depthwise images": (8, [(0, None, None)]),
    "images and output channels": (1, [(0, None, None), (None, 0, 0)]),
    "images and groups": (2, [(0, None, None), (1, 0, 0)]),
    "more parts than groups": (2, [(1, 0, 0), (1, 0, 0)]),
}


def _drawn(groups: int) -> list[torch.Tensor]:
    shapes = ((4, 8, 6, 5), (8, 8 // groups, 3, 3), (8,))
    return [numbers(i, s) for i, s in enumerate(shapes)]


def of_the_whole(place: Place, name: str) -> None:
    """Value and gradients have the bits of the whole."""
    groups, dims = CASES[name]
    mesh = init_device_mesh("cpu", (2,) * len(dims), mesh_dim_names=("a", "b")[: len(dims)])
    whole = _drawn(groups)
    g = numbers(9, (4, 8, 6, 5))
    split = [placed(t, mesh, [own[i] for own in dims]) for i, t in enumerate(whole)]
    for tensors in (whole, split):
        for tensor in tensors:
            tensor.requires_grad_()
    y, z = (bt.conv2d(*each, padding=1, groups=groups) for each in (whole, split))
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
    for name, (groups, dims) in CASES.items():
        if len(dims) > 1:
            continue
        split = [placed(t, mesh, [dims[0][i]]) for i, t in enumerate(_drawn(groups))]
        with CommDebugMode() as counted:
            bt.conv2d(*split, padding=1, groups=groups)
        found[name] = counted.get_total_counts()
    return found


def refusals(place: Place) -> None:
    """A plain input beside a weight that is a DTensor is refused."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("a",))
    x, weight, _ = _drawn(1)
    split = placed(weight, mesh, [0])
    with raises(TypeError, "convolution: input is a plain tensor and weight a DTensor"):
        bt.conv2d(x, split)
