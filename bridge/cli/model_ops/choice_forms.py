"""Forms of `top_k`, whose results are numbers and columns of its operand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bridge.cli.entries import Comparison, Entry, Operands
from bridge.cli.frozen_random import Array
from bridge.cli.model_ops.bounded import Bounded, exact, no_own


def _columns(x: Array, k: int) -> Array:
    """Returns the columns of the k largest numbers: NaN first, of equal ones the smaller column."""
    is_nan = np.isnan(x)
    order = np.lexsort((np.where(is_nan, 0.0, -x), ~is_nan), axis=-1)  # a stable order
    return np.asarray(order[..., :k])


def _values_bounds(case: Any, p: Operands) -> Mapping[str, Bounded]:
    columns = _columns(p["x"], p["g"].shape[-1])
    written = np.zeros(p["x"].shape)
    np.put_along_axis(written, columns, p["g"], -1)
    read = {name: np.take_along_axis(p[name], columns, -1) for name in ("x", "t_x", "v_x")}
    found = {"forward": read["x"], "dx": written, "jvp": read["t_x"], "d2g": read["v_x"]}
    found["d2x"] = np.zeros(p["x"].shape)
    return {name: exact(array) for name, array in found.items()}


def _columns_of(ops: Any, p: Operands, k: int) -> Any:
    columns = ops.top_k(p["x"], k)[1]
    # Integers of these sizes are numbers of every dtype.
    return columns.astype(p["x"].dtype) if hasattr(columns, "astype") else columns.to(p["x"].dtype)


def _top_k(shape: tuple[int, ...], k: int) -> tuple[Entry, Entry]:
    """Returns the forms of the values and of their columns."""

    def form(name: str, role: str, call: Any, bounds: Any, is_smooth: bool) -> Entry:
        compared = Comparison(
            "choices",
            bounds=bounds,
            differentiable=is_smooth,
            second_order=is_smooth,
            own=False,
            usual=False,
            shapes=((*shape, k),),
        )
        return Entry(name, {"x": role}, ("chosen",), call, no_own, no_own, compared=compared)

    return (
        form("top_k", "levels", lambda ops, p: ops.top_k(p["x"], k)[0], _values_bounds, True),
        form(
            "top_k, columns",
            "special levels",
            lambda ops, p: _columns_of(ops, p, k),
            lambda case, p: {"forward": exact(_columns(p["x"], k))},
            False,
        ),
    )


CHOICES = _top_k((8, 70), 9)
