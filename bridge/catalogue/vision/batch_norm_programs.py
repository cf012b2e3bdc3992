"""The programs of batch norm, and calls of them.

Vectors `[*batch, c]` are rows for channels last, and tables that broadcast (in functions that end
with `first`) for channels before places.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from bridge import lang as bl
from bridge.lang.tracing import Declaration, declared
from bridge.ops.definition import Call
from bridge.ops.program_params import ProgramParams
from bridge.ops.run_program import PROGRAM
from bridge.ops.traced import traced


def total(x: bl.Full) -> Any:
    return bl.column_sum(x)


def squares(x: bl.Full, mean: bl.Row) -> Any:
    return bl.column_sum((x - mean) * (x - mean))


def over(x: bl.Full, *, count: float = 3.0) -> Any:
    return x / count


def inverse(square: bl.Full, *, count: float = 3.0, eps: float = 1e-5) -> Any:
    return bl.rsqrt(square / count + eps)


def _normal(x: Any, mean: Any, r: Any, weight: Any, bias: Any) -> Any:
    y = (x - mean) * r
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def values(
    x: bl.Full, mean: bl.Row, r: bl.Row, weight: bl.Row | None = None, bias: bl.Row | None = None
) -> Any:
    return _normal(x, mean, r, weight, bias)


def values_first(
    x: bl.Full,
    mean: bl.Table,
    r: bl.Table,
    weight: bl.Table | None = None,
    bias: bl.Table | None = None,
) -> Any:
    return _normal(x, mean, r, weight, bias)


def sums(x: bl.Full, g: bl.Full, mean: bl.Row, r: bl.Row) -> Any:
    return bl.column_sum(g), bl.column_sum(g * ((x - mean) * r))


def _gradient(x: Any, g: Any, mean: Any, r: Any, of_g: Any, of_gx: Any, weight: Any) -> Any:
    rest = g - of_g - (x - mean) * r * of_gx
    return (r if weight is None else r * weight) * rest


def gradient(
    x: bl.Full,
    g: bl.Full,
    mean: bl.Row,
    r: bl.Row,
    of_g: bl.Row,
    of_gx: bl.Row,
    weight: bl.Row | None = None,
) -> Any:
    return _gradient(x, g, mean, r, of_g, of_gx, weight)


def gradient_first(
    x: bl.Full,
    g: bl.Full,
    mean: bl.Table,
    r: bl.Table,
    of_g: bl.Table,
    of_gx: bl.Table,
    weight: bl.Table | None = None,
) -> Any:
    return _gradient(x, g, mean, r, of_g, of_gx, weight)


def of_statistics(x: bl.Full, mean: bl.Row, g: bl.Row, h: bl.Row) -> Any:
    """The gradient of x, from those of μ over n and of Σ (x − μ)², doubled."""
    return g + (x - mean) * h


def of_statistics_first(x: bl.Full, mean: bl.Table, g: bl.Table, h: bl.Table) -> Any:
    return g + (x - mean) * h


def doubled(x: bl.Full) -> Any:
    return 2.0 * x


def given_gradient(g: bl.Full, r: bl.Row, weight: bl.Row | None = None) -> Any:
    return g * (r if weight is None else r * weight)


def given_gradient_first(g: bl.Full, r: bl.Table, weight: bl.Table | None = None) -> Any:
    return g * (r if weight is None else r * weight)


def of_mean(total_g: bl.Full, r: bl.Full, weight: bl.Full | None = None) -> Any:
    return -(total_g * (r if weight is None else r * weight))


def of_variance(total_gx: bl.Full, r: bl.Full, weight: bl.Full | None = None) -> Any:
    return -0.5 * total_gx * (r * r if weight is None else r * r * weight)


def same(x: bl.Full) -> Any:
    return x


VALUES = values, values_first
GRADIENT = gradient, gradient_first
OF_STATISTICS = of_statistics, of_statistics_first
GIVEN_GRADIENT = given_gradient, given_gradient_first


@functools.lru_cache(maxsize=64)
def _declared(function: Callable[..., Any]) -> Declaration:
    return declared(function)


def program(
    function: Callable[..., Any],
    operands: Sequence[Any],
    wide: str,
    dtypes: Sequence[str],
    batch_ndim: int = 0,
    **static: float,
) -> Call[Any]:
    """Returns the call of a declaration; absent operands are None."""
    declaration = _declared(function)
    present = tuple([operand is not None for operand in operands])
    values = [static[name] for name in declaration.static]
    code = traced(declaration, present, *values).code
    given = tuple([operand for operand in operands if operand is not None])
    return Call(PROGRAM, given, ProgramParams(code, wide, ",".join(dtypes), batch_ndim))


def dtype_of(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def wide_of(*arrays: Any) -> str:
    """Returns the dtype of the arithmetic."""
    dtypes = [dtype_of(x) for x in arrays if x is not None]
    return "float64" if "float64" in dtypes else "float32"
