"""Attention of DTensors against attention of the whole tensors, in one process of several."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode

import bridge.torch as bt
from tests.distributed.gather_checks import numbers, same_bits
from tests.distributed.group_checks import raises
from tests.distributed.processes import Place
from tests.distributed.product_checks import placed

# For each case: the dimension of q, k and v that each mesh dimension splits, that of the sinks and
# of the mask, and the number of key heads. q is [batch, heads, queries, d], with 4 heads.
CASES: dict[str, Any] = {
    "batches": ([0], [None], [0], 2),
    "heads": ([1], [0], [None], 2),
    "heads and whole sinks": ([1], [None], [None], 4),
    "batches and heads": ([0, 1], [None, 0], [0, None], 2),
    "heads in more parts than key heads": ([1], [0], [None], 1),
    "queries and keys": ([2], [None], [2], 2),
    "columns": ([3], [None], [None], 2),
    "batches in uneven parts": ([0, 0], [None, None], [None, None], 2),
}
_KEPT = {
    "batches": [0],
    "heads": [1],
    "heads and whole sinks": [1],
    "batches and heads": [0, 1],
}
_QUERIES = 5


def _drawn(key_heads: int, batch: int) -> list[torch.Tensor]:
    shapes = ((batch, 4, _QUERIES, 8), (batch, key_heads, 7, 8), (batch, key_heads, 7, 6), (4,))
    return [numbers(i, shape) for i, shape in enumerate(shapes)]


def of_the_whole(place: Place, name: str) -> None:
    """Value, gradients and gradients of gradients have the bits of the whole."""
    dims, of_sinks, of_mask, key_heads = CASES[name]
    mesh = init_device_mesh("cpu", (2,) * len(dims), mesh_dim_names=("a", "b")[: len(dims)])
    whole = _drawn(key_heads, 6 if "uneven" in name else 4)
    batch = whole[0].shape[0]
    hidden = numbers(8, (batch, 1, _QUERIES, 7)) > 0.5
    g = numbers(9, (batch, 4, _QUERIES, 6))
    split = [placed(t, mesh, dims) for t in whole[:3]] + [placed(whole[3], mesh, of_sinks)]
    options: Any = {"causal": True, "softcap": 5.0}
    found = []
    for tensors, mask, cotangent in (
        (whole, hidden, g),
        (split, placed(hidden, mesh, of_mask), placed(g, mesh, dims)),
    ):
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        y = bt.attention(*leaves[:3], mask=mask, sink=leaves[3], **options)
        first = torch.autograd.grad(y, leaves, cotangent, create_graph=True)
        again = torch.autograd.grad(first[0], leaves[:3], leaves[0].detach())
        found.append((y, *first, *again))
    expected, of_parts = found
    kept = [Replicate() if d is None else Shard(d) for d in _KEPT.get(name, [None] * len(dims))]
    assert isinstance(of_parts[0], DTensor)
    assert list(of_parts[0].placements) == kept
    for one, two in zip(of_parts, expected, strict=True):
        assert same_bits(one.full_tensor(), two)
    # Plain arrays beside a DTensor count as equal on every process.
    q, k, v = split[0], *(tensor.detach() for tensor in whole[1:3])
    mixed: Any = bt.attention(q, k, v, mask=hidden, sink=whole[3].detach(), **options)
    assert same_bits(mixed.full_tensor(), expected[0])


def communication(place: Place) -> dict[str, int]:
    """Counts the collectives of a call and its gradients."""
    mesh = init_device_mesh("cpu", (2,))
    counts = {}
    for name in ("batches", "heads", "columns"):
        (dim,), _, _, key_heads = CASES[name]
        q, k, v = (placed(t, mesh, [dim]).requires_grad_() for t in _drawn(key_heads, 4)[:3])
        with CommDebugMode() as mode:
            y = bt.attention(q, k, v, causal=True)
            if name != "columns":
                torch.autograd.grad(y, (q, k, v), y.detach())
        counts[name] = mode.get_total_counts()
    return counts


def refusals(place: Place) -> None:
    mesh, other = init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (2, 1))
    q, k, v = _drawn(2, 4)[:3]
    spread = placed(k, mesh, [0])
    with raises(TypeError, "attention: q is a plain tensor and k a DTensor"):
        bt.attention(q, spread, v)
    with raises(ValueError, "expected one mesh"):
        bt.attention(placed(q, mesh, [0]), placed(k, other, [0, None]), v)
    with raises(ValueError, "k has shape"):
        bt.attention(placed(q, mesh, [0]), spread[:, :, :, :3], v)
