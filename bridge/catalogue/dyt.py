"""Two replacements of a norm and an activation with parameters of one number: dyt, poly_norm."""

from __future__ import annotations

from typing import Any

from bridge import lang as bl
from bridge.catalogue import checks
from bridge.catalogue.declaration import declared, named, shape_of
from bridge.catalogue.norms import inverse, shifted
from bridge.catalogue.numbers import Numbers
from bridge.ops.arrays import Arrays


def _returned(y: Any, x: Any, like_x: bool) -> Any:
    return bl.like(y, x) if like_x else y


@declared()
@named("dyt")
def dyt_of_rows(
    x: bl.Full,
    alpha: bl.Row,
    weight: bl.Row | None = None,
    bias: bl.Row | None = None,
    *,
    like_x: bool = False,
):
    return _returned(shifted(bl.tanh(alpha * x), weight, bias), x, like_x)


def _poly_norm_vjp(
    x: Any,
    third: Any,
    second: Any,
    first: Any,
    bias: Any,
    y: Any,
    g: Any,
    *,
    eps: float,
    like_x: bool,
) -> Any:
    square = x * x
    dx, found = None, []
    powers = (x * square, 3.0 * square, third), (square, 2.0 * x, second), (x, 1.0, first)
    for power, slope, weight in powers:
        r = inverse(power, eps)
        normal, wg = power * r, g * weight
        own = slope * (r * (wg - normal * bl.mean(wg * normal)))
        dx = own if dx is None else dx + own
        found.append(g * normal)
    return dx, *found, *(() if bias is None else (g,))


@declared(keep=("r3", "r2", "r1"), vjp=_poly_norm_vjp, checks={"eps": checks.eps})
@named("poly_norm")
def poly_norm_of_rows(
    x: bl.Full,
    third: bl.Row,
    second: bl.Row,
    first: bl.Row,
    bias: bl.Row | None = None,
    *,
    eps: float = 1e-6,
    like_x: bool = False,
):
    square = x * x
    cube = x * square
    r3, r2, r1 = inverse(cube, eps), inverse(square, eps), inverse(x, eps)
    y = cube * r3 * third + square * r2 * second + x * r1 * first
    return _returned(y if bias is None else y + bias, x, like_x)


class Dyt:
    """`dyt` in one framework."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays, self.op = arrays, arrays.entry(dyt_of_rows)
        self.numbers = Numbers(arrays, "dyt")

    def run(self, x: Any, alpha: Any, weight: Any, bias: Any) -> Any:
        """Computes the op.

        Raises:
          TypeError, ValueError: for operands that do not fit.
        """
        wide, own = self.numbers.dtypes(x=x, alpha=alpha, weight=weight, bias=bias)
        self.numbers.check("alpha", alpha)
        (row,) = self.numbers.rows(x, wide, alpha) if shape_of(x) else (alpha,)
        like_x = own == self.arrays.dtype_of(x)
        return self.op.run((x, row, weight, bias), None, like_x)


class PolyNorm:
    """`poly_norm` in one framework."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays, self.op = arrays, arrays.entry(poly_norm_of_rows)
        self.numbers = Numbers(arrays, "poly_norm")

    def run(self, x: Any, weight: Any, bias: Any, eps: Any) -> Any:
        """Computes the op.

        Raises:
          TypeError, ValueError: for operands that do not fit.
        """
        wide, own = self.numbers.dtypes(x=x, weight=weight, bias=bias)
        self.numbers.check("weight", weight, 3)
        rows, last = [weight] * 3, bias
        if bias is not None:
            self.numbers.check("bias", bias)
        if shape_of(x):  # otherwise the op raises its own error
            rows = [*self.numbers.rows(x, wide, weight, 3)]
            (last,) = (None,) if bias is None else self.numbers.rows(x, wide, bias)
        return self.op.run((x, *rows, last), None, eps, own == self.arrays.dtype_of(x))
