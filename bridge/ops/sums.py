"""Sums of arrays with the rounding of the kernels, as calls of declared ops.

The operands have the arithmetic dtype, float32 or float64, whose name is `own`. The framework's own
sum would not do: it may flush denormals, as XLA does on the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from bridge.lang import codes, functions, roles
from bridge.lang.tracing import declared, trace
from bridge.ops.definition import Call
from bridge.ops.program_params import ProgramParams
from bridge.ops.run_program import PROGRAM

# Rows added in one chain: a leaf of the tree of column sums (docs/numerics.md). Different parts can
# add different leaves.
LEAF_ROWS = 16


def sum_of(x: Any, y: Any, own: str, dtype: str) -> Call[Any]:
    """Returns the call for x + y, both of dtype `own`, rounded once to `dtype`."""
    return Call(PROGRAM, (x, y), ProgramParams(_code(_sum), own, dtype))


def rounded(x: Any, own: str, dtype: str) -> Call[Any]:
    """Returns the call that rounds x from dtype `own` to `dtype`."""
    return Call(PROGRAM, (x,), ProgramParams(_code(_same), own, dtype))


def sum_of_rows(x: Any, own: str, dtype: str, batch_ndim: int) -> Call[Any]:
    """Returns the call that sums x `[*batch, *rows, d]` over rows to `[*batch, d]`."""
    return Call(PROGRAM, (x,), ProgramParams(_code(_column_sum), own, dtype, batch_ndim))


def sum_along_rows(x: Any, own: str, dtype: str) -> Call[Any]:
    """Returns the call that sums x `[*rows, d]`, of dtype `own`, along rows to `[*rows]`."""
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
    """Sums `[*batch, nodes, d]` to `[*batch, d]` by the upper part of the tree; rounds once.

    Args:
      own, dtype: the dtypes of the nodes and of the result.
      run: run(op, operands, params) returns the results.
      concatenate: concatenate(arrays, dim) joins a list of arrays.
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
