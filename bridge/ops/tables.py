"""Cotangents of tables: sums over the repeated dimensions, rounded as the kernels round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bridge.ops.sums import rounded, sum_along_rows, sum_of_rows


def summed(
    full: Any,
    own: str,
    shape: Sequence[int],
    dtype: str,
    run: Callable[..., tuple[Any, ...]],
    permute: Callable[[Any, tuple[int, ...]], Any],
) -> Any:
    """Sums an array over the space to a table's shape and rounds it to a dtype.

    Rows are added first, in the tree of column sums, then columns, in the tree of row sums.

    Args:
      own: the dtype of `full` and of the additions.
      run: run(op, operands, params) returns the results.
      permute: permute(array, order) reorders the dimensions of an array.
    """
    last = full.ndim - 1
    aligned = (*[1] * (full.ndim - len(shape)), *shape)
    is_repeated = [
        size == 1 and whole != 1 for size, whole in zip(aligned, full.shape, strict=True)
    ]
    kept = [dim for dim in range(last) if not is_repeated[dim]]
    rows = [dim for dim in range(last) if is_repeated[dim]]
    total = full
    if rows:
        ordered = permute(full, (*kept, *rows, last))
        call = sum_of_rows(ordered, own, own if is_repeated[last] else dtype, len(kept))
        total = run(call.op, call.operands, call.params)[0]
    if is_repeated[last]:
        call = sum_along_rows(total, own, dtype)
        total = run(call.op, call.operands, call.params)[0]
    elif not rows:
        call = rounded(full, own, dtype)
        total = run(call.op, call.operands, call.params)[0]
    return total.reshape(tuple(shape))
