"""Rows of a table by number, for PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from bridge.ops.embedding import NAME, check
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.embeddings import rows_of
from bridge.torch._adapter.kernels import spec_of
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._ops.labels import check_labels, readable


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    r"""Rows of `weight` by number: y[…, :] = weight[ids[…], :].

    The gradient of a row adds the cotangents of the positions with its number in increasing order,
    in the tree of column sums, in float32 or float64, and is rounded once. So its bits depend on
    these positions alone: not on the number of threads, the instruction set or the device, and they
    are those of `bridge.jax`. Nothing is added atomically. Differentiable to any order, in reverse
    and forward mode.

    Args:
      ids: `[...]` of any integer dtype: numbers of rows, from 0 on. A negative number does not
        count from the end.
      weight: `[n, d]` of dtype float16, bfloat16, float32 or float64, of any strides.

    Returns:
      `[..., d]`, of weight's dtype. A row of NaN, which has no gradient, for an id out of range
      that could not be checked before: on a GPU and under transforms. DTensors are gathered on
      every process.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype.
      ValueError: weight has another number of dimensions; an id out of range.

    Example:
      >>> embedding(torch.tensor([2, 0]), torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]))
      tensor([[4., 5.],
              [0., 1.]])
    """
    if is_overridden(given := (ids, weight)):
        return hand_over(given)  # type: ignore[no-any-return]
    check_tensors(NAME, 2, ids=ids, weight=weight)
    check(spec_of(ids), spec_of(weight))
    if any(type(each).__name__ == "DTensor" for each in given):
        from bridge.torch._sharded.rows import gathered  # needs torch.distributed

        return gathered(NAME, ("ids", "weight"), given, embedding)  # type: ignore[no-any-return]
    check_labels(NAME, ids, weight, weight.shape[0], names=("ids", "rows"))
    flat = readable(NAME, ids, None).reshape(1, ids.numel())
    if flat.dtype not in (torch.int32, torch.int64):
        flat = flat.long()
    return rows_of(weight[None], flat).reshape(*ids.shape, weight.shape[1])
