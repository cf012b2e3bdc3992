"""The places of the grid: shapes in memory layouts, and the kinds of values in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray
Shape = tuple[int, ...]

NUMPY = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}


@dataclass(frozen=True)
class Layout:
    """A memory layout: the shape of a dense array, and a view of it.

    The view uses operations that NumPy, torch and JAX share, so that one line serves all.
    """

    name: str
    dense: Callable[[Shape], Shape]
    view: Callable[[Any, Shape], Any]


CONTIGUOUS = Layout("contiguous", lambda s: s, lambda a, s: a)
TRANSPOSED = Layout(
    "transposed", lambda s: (*s[:-2], s[-1], s[-2]), lambda a, s: a.swapaxes(-1, -2)
)
LEADING_SWAPPED = Layout(
    "leading dimensions swapped", lambda s: (s[1], s[0], *s[2:]), lambda a, s: a.swapaxes(0, 1)
)
EVERY_OTHER_ROW = Layout("every other row", lambda s: (2 * s[0], *s[1:]), lambda a, s: a[::2])
INNER_COLUMNS = Layout(
    "inner columns", lambda s: (*s[:-1], s[-1] + 3), lambda a, s: a[..., 1 : s[-1] + 1]
)
MISALIGNED = Layout("misaligned", lambda s: (int(np.prod(s)) + 1,), lambda a, s: a[1:].reshape(s))


@dataclass(frozen=True)
class Place:
    """A shape in a layout, filled with values of a kind.

    Attributes:
      values: a kind of values, see `PLACES`.
      quick: True if the place is in the quick grid.
      own: True if the frameworks' own ops are measured too.
    """

    shape: Shape
    layout: Layout = CONTIGUOUS
    values: str = "normal"
    quick: bool = False
    own: bool = False

    @property
    def label(self) -> str:
        """Text that distinguishes the place from others of its shape."""
        return f"{self.layout.name}, {self.values}"

    def __str__(self) -> str:
        """The place in tables of hashes; it seeds the numbers, so another text changes them."""
        others = (self.layout.name, self.values)
        size = "x".join(map(str, self.shape)) or "scalar"
        return " ".join((size, *(word for word in others if word not in ("contiguous", "normal"))))


# The kinds of values are "normal"; "wide", with x up to the widest of the entry; "special x" and
# "special g", with zeros, denormals and NaN in x or the cotangent, and infinities and extremes if
# the entry has them. The quick grid has one quick place for each form and dtype.
PLACES = (
    Place((161, 129), quick=True, own=True),
    Place((1,)),
    Place((17,)),
    Place((0, 8)),
    Place((8, 0)),
    Place((1, 1)),
    Place((7, 13), TRANSPOSED, quick=True),
    Place((17, 19), EVERY_OTHER_ROW),
    Place((9, 23), INNER_COLUMNS),
    Place((11, 64), MISALIGNED),
    Place((3, 5, 16), LEADING_SWAPPED),
    Place((2, 65, 29)),
    Place((64, 257), values="wide", quick=True, own=True),
    Place((9, 70), values="special x", quick=True),
    Place((9, 70), values="special g"),
    Place((4, 4100)),
)


def special_values(dtype: str, count: int, infinite: bool = True) -> Array:
    """Returns zeros, denormals, extremes, infinities and NaN of both signs, repeated to `count`."""
    limits = ml_dtypes.finfo(NUMPY[dtype])
    least, tiny, most = map(float, (limits.smallest_subnormal, limits.tiny, limits.max))
    positive = [0.0, least, 3 * least, tiny - least, tiny, tiny * 1.5, 2.0**-20, 0.5, 1.0, 3.0]
    positive += [8.0, 40.0, most / 4, most]
    if infinite:
        positive += [np.inf, np.nan]
    both = np.array([*positive, *(-value for value in positive)])
    with np.errstate(all="ignore"):
        return np.resize(both, count).astype(NUMPY[dtype])


def few_special_values(dtype: str, count: int) -> Array:
    """Returns zeros, denormals and small numbers of both signs; their squares do not overflow."""
    limits = ml_dtypes.finfo(NUMPY[dtype])
    least, tiny = float(limits.smallest_subnormal), float(limits.tiny)
    positive = [0.0, least, 3 * least, tiny - least, tiny, tiny * 1.5, 2.0**-20, 0.5, 1.0, 3.0]
    return np.resize(np.array([*positive, *(-v for v in positive)]), count).astype(NUMPY[dtype])
