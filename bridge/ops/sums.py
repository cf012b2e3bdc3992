"""Sums of arrays with the rounding of the kernels, as calls of an op.

A framework may have been told to flush denormals, and XLA does so on the CPU; a kernel does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from bridge.lang import codes, functions, roles
from bridge.lang.tracing import declared, trace
from bridge.ops.bias_dropout_add import BIAS_DROPOUT_ADD, BiasDropoutAddParams
from bridge.ops.definition import Call
from bridge.ops.program import PROGRAM, ProgramParams

# So many rows are added one after the other: they are a leaf of the tree in which rows are added up
# (docs/numerics.md). Whole leaves can be added in different places.
LEAF_ROWS = 16


def sum_of(x: Any, y: Any | None, dtype: str) -> Call[Any]:
    """The call whose first result is x + y, or x where there is no y, rounded to a dtype once."""
    params = BiasDropoutAddParams(0, 1.0, full=dtype)
    return Call(BIAS_DROPOUT_ADD, (x, None, y, None, None, None), params)


def sum_of_rows(x: Any, dtype: str, batch_ndim: int) -> Call[Any]:
    """The call whose last result is `[*batch, d]`: x, `[*batch, *rows, d]`, summed over rows."""
    params = BiasDropoutAddParams(0, 1.0, row=dtype, batch_ndim=batch_ndim)
    return Call(BIAS_DROPOUT_ADD, (x, *[None] * 5), params)


def sum_along_rows(x: Any, own: str, dtype: str) -> Call[Any]:
    """The call whose result is `[*rows]`: x, `[*rows, d]` of the dtype `own`, summed along rows."""
    return Call(PROGRAM, (x,), ProgramParams(_row_sum(), own, dtype))


@functools.cache
def _row_sum() -> str:
    def row_sum(x: roles.Full) -> Any:
        return functions.sum(x)

    return codes.code_of(trace(declared(row_sum), [True], {}))


def folded(
    nodes: Any,
    own: str,
    dtype: str,
    run: Callable[..., tuple[Any, ...]],
    concatenate: Callable[[Any, int], Any],
) -> Any:
    """`[*batch, d]` of the nodes `[*batch, nodes, d]`: the rest of the tree, rounded once.

    Args:
      own, dtype: of the nodes, and of the result.
      run: takes an op, operands and parameters to the results.
      concatenate: puts a list of arrays together along a dimension.
    """

    def added(x: Any, y: Any, dtype: str) -> Any:
        call = sum_of(x, y, dtype)
        return run(call.op, call.operands, call.params)[0]

    while (count := nodes.shape[-2]) > 1:
        paired = count // 2 * 2
        left, right = nodes[..., 0:paired:2, :], nodes[..., 1:paired:2, :]
        sums = added(left, right, own if count > 2 else dtype)
        if count == 2:
            return sums[..., 0, :]
        nodes = concatenate([sums, nodes[..., paired:, :]], -2) if paired < count else sums
    only = nodes[..., 0, :]
    return only if own == dtype else added(only, None, dtype)
