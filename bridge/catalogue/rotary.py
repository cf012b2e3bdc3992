"""Rotary position embedding."""

from __future__ import annotations

from typing import Any

from bridge import lang as bl
from bridge.catalogue.declaration import declared, named, shape_of
from bridge.ops.arrays import Arrays


def _turned(first: Any, second: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    return first * cos - second * sin, second * cos + first * sin


@declared()
def rotary(x: bl.Halves, cos: bl.Table, sin: bl.Table):
    first, second = x
    return bl.halves(*_turned(first, second, cos, sin))


@declared()
@named("rotary")
def rotary_of_pairs(x: bl.Pairs, cos: bl.Table, sin: bl.Table):
    first, second = x
    return bl.pairs(*_turned(first, second, cos, sin))


class Rotary:
    """The rotary embedding in one framework."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.halves, self.pairs = arrays.entry(rotary), arrays.entry(rotary_of_pairs)

    def run(self, x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
        """Rotates as many columns of x as the tables have, and appends the rest unchanged.

        Raises:
          TypeError: for an argument that is no array.
          ValueError: for shapes that do not fit.
        """
        shapes = [shape_of(array) for array in (x, cos, sin)]
        if not all(shapes):  # the op raises its own error
            return self.halves.run((x, cos, sin), None)
        d, of_cos, of_sin = (shape[-1] for shape in shapes)
        if d % 2:
            raise ValueError(
                f"rotary: x has shape {list(shapes[0])}, expected an even number in the last "
                "dimension"
            )
        if of_cos != of_sin or (of_cos > d // 2 and of_cos != d):
            raise ValueError(
                f"rotary: cos has shape {list(shapes[1])} and sin {list(shapes[2])}, expected "
                f"{d // 2} or {d} in the last dimension of both, or fewer than {d // 2}"
            )
        if of_cos == d:  # doubled
            of_cos = d // 2
            cos, sin = cos[..., :of_cos], sin[..., :of_cos]
        if 2 * of_cos < d:
            x = self.arrays.with_whole_rows(x)
        head = x[..., : 2 * of_cos] if 2 * of_cos < d else x
        y = (self.pairs if interleaved else self.halves).run((head, cos, sin), None)
        return y if head is x else self.arrays.concatenated(y, x[..., 2 * of_cos :])
