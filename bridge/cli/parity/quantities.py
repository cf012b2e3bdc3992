"""What is computed on every case: the op, its gradients, tangents and second order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bridge.cli.parity.accuracy import Product, product
from bridge.cli.parity.grid import Case

Array = np.ndarray


@dataclass(frozen=True)
class Quantity:
    """A derivative as a product gelu⁽ⁿ⁾(x + bias)·∏ (f + f_row), or its sum over rows.

    Attributes:
      what: in words, for the reader of a table.
      order: n.
      factors: the pairs, by names of operands.
      column_sum: whether it is summed over rows.
      like: the operand whose dtype the result has; "g" is the dtype of the op's result.
    """

    what: str
    order: int
    factors: tuple[tuple[str, ...], ...]
    column_sum: bool
    like: str


_T, _V = ("t_x", "t_bias"), ("v_x", "v_bias")

QUANTITIES = {
    "forward": Quantity("value", 0, (), False, "g"),
    "dx": Quantity("gradient of x", 1, (("g",),), False, "x"),
    "dbias": Quantity("gradient of bias", 1, (("g",),), True, "bias"),
    "jvp": Quantity("tangent along x and bias", 1, (_T,), False, "g"),
    "d2x": Quantity("grad of grad, towards x", 2, (("g",), _V), False, "x"),
    "d2bias": Quantity("grad of grad, towards bias", 2, (("g",), _V), True, "bias"),
    "d2g": Quantity("grad of grad, towards the cotangent", 1, (_V,), False, "g"),
    "hvp_x": Quantity("Hessian times vector, x", 2, (("g",), _T), False, "x"),
    "hvp_bias": Quantity("Hessian times vector, bias", 2, (("g",), _T), True, "bias"),
}


def quantities_of(case: Case) -> dict[str, Quantity]:
    """Those that exist for a case: without a bias there is nothing of the bias."""
    return {
        name: quantity
        for name, quantity in QUANTITIES.items()
        if case.bias is not None or quantity.like != "bias"
    }


def true_values(
    quantity: Quantity,
    operands: Mapping[str, Array | None],
    h: Array,
    derivatives: Mapping[int, Array],
    case: Case,
) -> Product:
    """The quantity in float64 from operands of shape [rows, d] and [d], before any sum."""
    factors = []
    for pair in quantity.factors:
        parts = [operands[name] for name in pair]
        factors.append(rounded_sum([part for part in parts if part is not None], case.arithmetic))
    return product(
        h,
        derivatives[quantity.order],
        case.approximate,
        quantity.order,
        factors,
        case.arithmetic,
        case.precision,
    )


def rounded_sum(parts: list[Array], arithmetic: str) -> Array:
    """The sum of a pair as the contract computes it: in the arithmetic's dtype, rounded there."""
    total = parts[0].astype(arithmetic)
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            total = total + part.astype(arithmetic)
    return total
