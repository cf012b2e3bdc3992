"""The collectives of the forms in docs/sharding.md for DTensors, in one process of several."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import bridge.torch as bt
from tests.distributed.gather_checks import same_bits
from tests.distributed.processes import Place
from tests.split_forms import CONSTANTS, FORMS, drawn, split_dim

# torch's names of the collectives.
_NAMES = {
    "_allgather_base_": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "all_to_all_single": "all-to-all",
    "all_reduce": "all-reduce",
}


def sent(place: Place, name: str, dims: str) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the collectives of a form, forward and backward; checks the bits of the whole."""
    mesh = init_device_mesh("cpu", (place.world_size,))
    form, rng = FORMS[name], np.random.default_rng(1)
    whole = [torch.from_numpy(drawn(operand, rng)) for operand in form.operands]
    split = [split_dim(operand, 0 if dims == "rows" else -1) for operand in form.operands]
    spread = [
        distribute_tensor(tensor, mesh, [Replicate() if dim is None else Shard(dim)])
        for tensor, dim in zip(whole, split, strict=True)
    ]
    learned = [at for at, each in enumerate(form.operands) if each not in CONSTANTS]
    for each in learned:
        whole[each].requires_grad_()
        spread[each].requires_grad_()
    form.function(bt, *spread)  # do not count work of the first call, such as compilation
    with CommDebugMode() as forward:
        y = form.function(bt, *spread)
    expected = form.function(bt, *whole)
    g = torch.from_numpy(rng.standard_normal(tuple(y.shape), np.float32))
    upstream = distribute_tensor(g, mesh, y.placements)
    with CommDebugMode() as backward:
        found = torch.autograd.grad(y, [spread[i] for i in learned], upstream)
    gradients = torch.autograd.grad(expected, [whole[i] for i in learned], g)
    if name != "linear_cross_entropy":  # torch computes its products, so bits may differ
        for a, b in zip((y, *found), (expected, *gradients), strict=True):
            assert isinstance(a, DTensor)
            assert same_bits(a.detach().full_tensor(), b.detach())
    return _counted(forward), _counted(backward)


def _counted(mode: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for op, count in mode.get_comm_counts().items():
        name = _NAMES[str(op).split(".")[-1]]
        counts[name] = counts.get(name, 0) + count
    return counts
