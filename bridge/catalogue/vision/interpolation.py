"""`interpolate` in one framework: one axis after the other, by the compositions of `taps`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bridge.catalogue.vision.batch_norm_programs import dtype_of, wide_of
from bridge.catalogue.vision.plans import text_of
from bridge.catalogue.vision.pooling import Laid, Pools
from bridge.catalogue.vision.taps import Options, Taps
from bridge.catalogue.vision.windows import Sizes
from bridge.ops.arrays import Arrays


@dataclass(frozen=True)
class Resizing:
    """The checked arguments.

    Attributes:
      sizes: of the output.
      factors: by which coordinates are scaled, None for output / input.
      coefficient: of the cubic kernel.
    """

    sizes: Sizes
    factors: tuple[float | None, ...]
    mode: str
    align: bool
    antialias: bool
    coefficient: float


class Interpolation:
    """The computation in one framework."""

    def __init__(self, taps: Taps, pools: Pools, arrays: Arrays) -> None:
        self._taps, self._pools, self._arrays = taps, pools, arrays

    def run(self, given: Laid, how: Resizing) -> Any:
        """Returns the resized input.

        Between two axes the numbers have the dtype of the arithmetic.
        """
        if how.mode == "area":
            return self._pools.adaptive(given, how.sizes)
        own, sizes = dtype_of(given.x), list(given.sizes)
        wide = wide_of(given.x)
        x = given.x if own == wide else self._arrays.cast(given.x, wide)
        lead, last = x.shape[0], (x.shape[-1],) * given.inner
        for dim, size in enumerate(how.sizes):
            x = self._along(x, lead, sizes, dim, size, last, how)
            sizes[dim] = size
        x = x.reshape(lead, math.prod(sizes), *last)
        x = x if own == wide else self._arrays.cast(x, own)
        return given.restored(x, tuple(sizes))

    def _along(
        self,
        x: Any,
        lead: int,
        sizes: Sequence[int],
        dim: int,
        size: int,
        last: tuple[int, ...],
        how: Resizing,
    ) -> Any:
        """Resizes one dimension of x `[lead, *sizes, *last]`, of any shape with these elements."""
        outer = lead * math.prod(sizes[:dim])
        behind = math.prod([*sizes[dim + 1 :], *last])
        is_inner = dim + 1 < len(sizes) or bool(last)
        shape = (outer, sizes[dim], *((behind,) if is_inner else ()))
        factor, exact = how.factors[dim], (how.mode, how.align, how.antialias)
        text = text_of("resize", sizes[dim], size, *exact, factor, how.coefficient)
        return self._taps.sums.run((x.reshape(shape),), Options(text, is_inner))
