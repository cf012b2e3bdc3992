"""The RMS norm of a head and its rotary position embedding, in one pass."""

from __future__ import annotations

from typing import Any

from bridge import lang as bl
from bridge.catalogue.declaration import declared, named, shape_of
from bridge.catalogue.norms import RMS_CHECKS, RMS_NEEDS, scaled, whole
from bridge.catalogue.rotary import fitted, turned
from bridge.ops.arrays import Arrays

_NAME = "rms_norm_rotary"


def _inverse(first: Any, second: Any, eps: float) -> Any:
    return bl.rsqrt(0.5 * bl.mean(first * first + second * second) + eps)


def _leading(pairs: int | None, turned: tuple[Any, Any], others: tuple[Any, Any]) -> list[Any]:
    """Returns two values: the first `pairs` columns of `turned`, and the rest of `others`."""
    if pairs is None:
        return [*turned]
    each = zip(turned, others, strict=True)
    return [bl.where(bl.column() < pairs, one, other) for one, other in each]


def _rotated(
    x: tuple[Any, Any],
    r: Any,
    weights: tuple[Any, Any],
    offset: float,
    tables: Any,
    pairs: int | None,
) -> list[Any]:
    """Returns the two values of each pair, normalised by r and rotated."""
    given = zip(x, weights, strict=True)
    one, two = [scaled(each * r, whole(weight, offset)) for each, weight in given]
    return _leading(pairs, turned(one, two, *tables), (one, two))


def _vjp(
    x: Any,
    cos: Any,
    sin: Any,
    weight: Any,
    second_weight: Any,
    y: Any,
    g: Any,
    *,
    eps: float,
    offset: float,
    pairs: int | None,
) -> Any:
    first, second = x
    r = _inverse(first, second, eps)
    weights = [whole(each, offset) for each in (weight, second_weight)]
    normals = [first * r, second * r]
    one, two = map(scaled, normals, weights)
    g_one, g_two = g
    products = g_one * one + g_two * two, g_two * one - g_one * two
    tables = _leading(pairs, products, (0.0, 0.0))
    back = _leading(pairs, turned(g_one, g_two, cos, -sin), (g_one, g_two))
    (wg_one, wg_two), (n_one, n_two) = map(scaled, back, weights), normals
    along = 0.5 * bl.mean(wg_one * n_one + wg_two * n_two)
    dx = bl.halves(r * (wg_one - n_one * along), r * (wg_two - n_two * along))
    own = () if weight is None else (back[0] * n_one, back[1] * n_two)
    return dx, *tables, *own


@declared(keep=("r",), vjp=_vjp, checks=RMS_CHECKS, needs=RMS_NEEDS)
@named(_NAME)
def of_halves(
    x: bl.Halves,
    cos: bl.Table,
    sin: bl.Table,
    weight: bl.Row | None = None,
    second_weight: bl.Row | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    pairs: int | None = None,
):
    first, second = x
    r = _inverse(first, second, eps)
    return bl.halves(
        *_rotated((first, second), r, (weight, second_weight), offset, (cos, sin), pairs)
    )


@declared(keep=("r",), vjp=_vjp, checks=RMS_CHECKS, needs=RMS_NEEDS)
@named(_NAME)
def of_pairs(
    x: bl.Pairs,
    cos: bl.Table,
    sin: bl.Table,
    weight: bl.Row | None = None,
    second_weight: bl.Row | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    pairs: int | None = None,
):
    first, second = x
    r = _inverse(first, second, eps)
    return bl.pairs(
        *_rotated((first, second), r, (weight, second_weight), offset, (cos, sin), pairs)
    )


# These take the weight apart; `bias_halves` in gates.py says why no slices do.
@declared()
def weight_halves(weight: bl.Halves):
    first, second = weight
    return first, second


@declared()
def weight_pairs(weight: bl.Pairs):
    first, second = weight
    return first, second


class NormRotary:
    """`rms_norm_rotary` in one framework."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.halves, self.pairs = arrays.entry(of_halves), arrays.entry(of_pairs)
        self.splits = [arrays.entry(op, _NAME) for op in (weight_halves, weight_pairs)]

    def run(
        self,
        x: Any,
        weight: Any,
        cos: Any,
        sin: Any,
        eps: Any,
        offset: Any,
        interleaved: bool,
    ) -> Any:
        """Normalises whole rows, and rotates as many columns of x as the tables have.

        Halves of leading columns are no halves of the row. Then the columns are first put in this
        order: first half, half of the rest, second half, other half of the rest.

        Raises:
          TypeError: for an argument that is no array.
          ValueError: for shapes that do not fit.
        """
        op = self.pairs if interleaved else self.halves
        d, rotated, cos, sin = fitted(_NAME, x, cos, sin)
        if d == 0:  # nothing to rotate, or the op raises its own error
            return op.run((x, cos, sin, weight, weight), None, eps, offset, None)
        if weight is not None and shape_of(weight) != (d,):
            raise ValueError(f"{_NAME}: weight has shape {list(shape_of(weight))}, expected [{d}]")
        half, rest = rotated // 2, (d - rotated) // 2
        is_moved = rest > 0 and not interleaved
        if is_moved:
            sizes = (half, half, rest, rest)
            x = self._exchanged(self.arrays.with_whole_rows(x), sizes)
            weight = None if weight is None else self._exchanged(weight, sizes)
        if rest > 0:
            cos, sin = (self._padded(table, d // 2) for table in (cos, sin))
        weights: tuple[Any, ...] = (None, None)
        if weight is not None:
            weights = self.splits[1 if interleaved else 0].run((weight,), None)
        y = op.run((x, cos, sin, *weights), None, eps, offset, half if rest else None)
        return self._exchanged(y, (half, rest, half, rest)) if is_moved else y

    def _exchanged(self, x: Any, sizes: tuple[int, ...]) -> Any:
        """Exchanges the second and the third of four parts of the columns."""
        one, two, three, four = self.arrays.parts(x, sizes)
        return self.arrays.concatenated(one, three, two, four)

    def _padded(self, table: Any, columns: int) -> Any:
        """Appends columns of zeros, which the op does not use."""
        shape = shape_of(table)
        dtype = self.arrays.dtype_of(table)
        zeros = self.arrays.zeros(table, (*shape[:-1], columns - shape[-1]), dtype)
        return self.arrays.concatenated(table, zeros)
