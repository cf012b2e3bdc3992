"""Sums of arrays with the rounding of the kernels, as calls of declared ops.

Their operands are of the type of the arithmetic, float32 or float64, of which `own` is the name.

A framework may have been told to flush denormals, and XLA does so on the CPU; a kernel does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from bridge.lang import codes, functions, roles
from bridge.lang.tracing import declared, trace
from bridge.ops.definition import Call
from bridge.ops.program import PROGRAM
from bridge.ops.program_params import ProgramParams

# So many rows are added one after the other: they are a leaf of the tree in which rows are added up
# (docs/numerics.md). Whole leaves can be added in different places.
LEAF_ROWS = 16


def sum_of(x: Any, y: Any, own: str, dtype: str) -> Call[Any]:
    """The call whose result is x + y, both of the dtype `own`, rounded to a dtype once."""
    return Call(PROGRAM, (x, y), ProgramParams(_code(_sum), own, dtype))


def rounded(x: Any, own: str, dtype: str) -> Call[Any]:
    """The call whose result is x, of the dtype `own`, rounded to a dtype."""
    return Call(PROGRAM, (x,), ProgramParams(_code(_same), own, dtype))


def sum_of_rows(x: Any, own: str, dtype: str, batch_ndim: int) -> Call[Any]:
    """The call whose result is `[*batch, d]`: x, `[*batch, *rows, d]`, summed over rows."""
    return Call(PROGRAM, (x,), ProgramParams(_code(_column_sum), own, dtype, batch_ndim))


def sum_along_rows(x: Any, own: str, dtype: str) -> Call[Any]:
    """The call whose result is `[*rows]`: x, `[*rows, d]` of the dtype `own`, summed along rows."""
    return Call(PROGRAM, (x,), ProgramParams(_code(_row_sum), own, dtype))


def _sum(x: roles.Full, y: roles.Full) -> Any:
    return x + y


def _same(x: roles.Full) -> Any:
    return x


def _column_sum(x: roles.Full) -> Any:
    return functions.column_sum(x)


def _row_sum(x: roles.Full) -> Any:
    return functions.sum(x)


@functools.cache
def _code(function: Callable[..., Any]) -> str:
    declaration = declared(function)
    return codes.code_of(trace(declaration, [True] * len(declaration.parameters), {}))


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

    def result(call: Call[Any]) -> Any:
        return run(call.op, call.operands, call.params)[0]

    while (count := nodes.shape[-2]) > 1:
        paired = count // 2 * 2
        left, right = nodes[..., 0:paired:2, :], nodes[..., 1:paired:2, :]
        sums = result(sum_of(left, right, own, own if count > 2 else dtype))
        if count == 2:
            return sums[..., 0, :]
        nodes = concatenate([sums, nodes[..., paired:, :]], -2) if paired < count else sums
    only = nodes[..., 0, :]
    return only if own == dtype else result(rounded(only, own, dtype))
