"""Rotary position embedding."""

from __future__ import annotations

from typing import Any

from bridge import lang as bl
from bridge.catalogue.declaration import declared, named, shape_of
from bridge.ops.arrays import Arrays


def turned(first: Any, second: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    return first * cos - second * sin, second * cos + first * sin


@declared()
def rotary(x: bl.Halves, cos: bl.Table, sin: bl.Table):
    first, second = x
    return bl.halves(*turned(first, second, cos, sin))


@declared()
@named("rotary")
def rotary_of_pairs(x: bl.Pairs, cos: bl.Table, sin: bl.Table):
    first, second = x
    return bl.pairs(*turned(first, second, cos, sin))


@declared()
@named("rotary")
def rotary_of_segments(
    x: bl.Halves, cos: bl.PerPosition, sin: bl.PerPosition, cu_seqlens: bl.Positions
):
    first, second = x
    return bl.halves(*turned(first, second, cos, sin))


@declared()
@named("rotary")
def rotary_of_pairs_of_segments(
    x: bl.Pairs, cos: bl.PerPosition, sin: bl.PerPosition, cu_seqlens: bl.Positions
):
    first, second = x
    return bl.pairs(*turned(first, second, cos, sin))


class Rotary:
    """The rotary embedding in one framework."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.halves, self.pairs = arrays.entry(rotary), arrays.entry(rotary_of_pairs)
        self.of_segments = (
            arrays.entry(rotary_of_segments),
            arrays.entry(rotary_of_pairs_of_segments),
        )

    def run(self, x: Any, cos: Any, sin: Any, interleaved: bool, ends: Any = None) -> Any:
        """Rotates as many columns of x as the tables have, and appends the rest unchanged.

        Raises:
          TypeError: for an argument that is no array.
          ValueError: for shapes that do not fit.
        """
        d, rotated, cos, sin = fitted("rotary", x, cos, sin)
        tables = (cos, sin) if ends is None else (cos, sin, ends)
        halves, pairs = (self.halves, self.pairs) if ends is None else self.of_segments
        if d == 0:  # nothing to rotate, or the op raises its own error
            return halves.run((x, *tables), None)
        if rotated < d:
            x = self.arrays.with_whole_rows(x)
        head = x[..., :rotated] if rotated < d else x
        y = (pairs if interleaved else halves).run((head, *tables), None)
        return y if head is x else self.arrays.concatenated(y, x[..., rotated:])


def fitted(name: str, x: Any, cos: Any, sin: Any) -> tuple[int, int, Any, Any]:
    """Returns the number of columns of x, the number that is rotated, and the tables of these.

    Both numbers are 0 for an argument without dimensions, which the op refuses.

    Raises:
      ValueError: for shapes that do not fit; `name` is the function in the message.
    """
    shapes = [shape_of(array) for array in (x, cos, sin)]
    if not all(shapes):
        return 0, 0, cos, sin
    d, of_cos, of_sin = (shape[-1] for shape in shapes)
    if d % 2:
        raise ValueError(
            f"{name}: x has shape {list(shapes[0])}, expected an even number in the last dimension"
        )
    if of_cos != of_sin or (of_cos > d // 2 and of_cos != d):
        raise ValueError(
            f"{name}: cos has shape {list(shapes[1])} and sin {list(shapes[2])}, expected "
            f"{d // 2} or {d} in the last dimension of both, or fewer than {d // 2}"
        )
    if of_cos == d:  # doubled
        cos, sin = cos[..., : d // 2], sin[..., : d // 2]
    return d, min(2 * of_cos, d), cos, sin
