"""Rotary position embedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bridge import lang as bl
from bridge.catalogue.declaration import declared, named, shape_of


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


@dataclass(frozen=True)
class Framework:
    """The operations that `run_rotary` needs of a framework.

    Attributes:
      halves, pairs: `rotary` and `rotary_of_pairs` there.
      concatenate: joins two arrays along the last dimension, in the dtype of the first.
    """

    halves: Callable[..., Any]
    pairs: Callable[..., Any]
    concatenate: Callable[[Any, Any], Any]


def run_rotary(framework: Framework, x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """Rotates as many columns of x as the tables have, and appends the rest unchanged.

    Raises:
      TypeError: for an argument that is no array.
      ValueError: for shapes that do not fit.
    """
    shapes = [shape_of(array) for array in (x, cos, sin)]
    if not all(shapes):  # the op raises its own error
        return framework.halves(x, cos, sin)
    d, of_cos, of_sin = (shape[-1] for shape in shapes)
    if d % 2:
        raise ValueError(
            f"rotary: x has shape {list(shapes[0])}, expected an even number in the last dimension"
        )
    if of_cos != of_sin or (of_cos > d // 2 and of_cos != d):
        raise ValueError(
            f"rotary: cos has shape {list(shapes[1])} and sin {list(shapes[2])}, expected "
            f"{d // 2} or {d} in the last dimension of both, or fewer than {d // 2}"
        )
    if of_cos == d:  # doubled
        of_cos = d // 2
        cos, sin = cos[..., :of_cos], sin[..., :of_cos]
    head = x[..., : 2 * of_cos] if 2 * of_cos < d else x
    y = (framework.pairs if interleaved else framework.halves)(head, cos, sin)
    return y if head is x else framework.concatenate(y, x[..., 2 * of_cos :])
