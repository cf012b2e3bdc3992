"""The softmax functions: their grid, their calls, and the judge of their results."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.cli.parity import grid
from bridge.cli.parity.accuracy import FORMATS
from bridge.cli.parity.grid import Array, Operands, special_values
from bridge.cli.parity.softmax_accuracy import BOUNDS, BOUNDS_IN_WORDS, Judge
from bridge.lang.dtypes import FLOATING

__all__ = ["BOUNDS", "BOUNDS_IN_WORDS", "FORMS", "cases"]

FORMS = ("plain", "masked", "causal")

# Mask shapes by the dimensions that they distinguish. They broadcast from the right, as [b, h, sq,
# sk].
MASKS = {
    "full": lambda s: s,
    "keys": lambda s: s[-1:],
    "queries": lambda s: (s[-2], 1),
    "batch, keys": lambda s: (s[0], *(1,) * (len(s) - 2), s[-1]),
    "batch, queries, keys": lambda s: (s[0], *(1,) * (len(s) - 3), *s[-2:]),
    "heads": lambda s: (1, s[1], *(1,) * (len(s) - 2)),
}


@dataclass(frozen=True)
class Place(grid.Place):
    """A place with these kinds of values:

    - "normal";
    - "wide", whose exponentials span the whole range;
    - "special x", with zeros, denormals, infinities, NaN and extremes (also under a mask);
    - "special cotangent", with the same in the cotangent.

    Attributes:
      forms: the forms that run on it.
      scale: the factor of x, not exact in 16 bits.
      mask, mask_dtype: a kind of `MASKS`, in "bool", or in "uint8" with bytes other than 1.
      once: True to run in float32 alone.
      first: True to compute value and gradient alone, without the second order.
    """

    forms: tuple[str, ...] = FORMS
    scale: float = 0.7
    mask: str = "full"
    mask_dtype: str = "bool"
    once: bool = False
    first: bool = False

    @property
    def label(self) -> str:
        scale = "" if self.scale == 0.7 else f", scale {self.scale:g}"
        return f"{super().label}{scale}"


def _lengths(*lengths: int, **how: Any) -> tuple[Place, ...]:
    return tuple(Place((3, n), **how) for n in lengths)


_EDGES = [n + d for n in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096) for d in (-1, 0, 1)]
# The shape of attention scores, [batch, heads, queries, keys].
_SCORES = (2, 3, 5, 33)
PLACES = (
    # The kernels take different paths at some of these lengths.
    *_lengths(1, 2, 7, 8, 9, *_EDGES, 16385, forms=("plain",), first=True),
    *_lengths(1, 9, 33, 129, 513, 1025, 4097, forms=("masked", "causal"), first=True),
    Place((2, 65537), forms=("plain", "masked"), mask_dtype="uint8"),
    Place((1, 1 << 20), forms=("plain",), once=True),
    Place((0, 8), quick=True),
    Place((8, 0)),
    Place((17,), forms=("plain", "masked"), mask="keys"),
    Place((7, 13), grid.TRANSPOSED, quick=True),
    Place((17, 19), grid.EVERY_OTHER_ROW),
    Place((9, 23), grid.INNER_COLUMNS),
    Place((11, 64), grid.MISALIGNED, scale=-1.3),
    Place((3, 5, 16), grid.LEADING_SWAPPED, scale=0.0),
    Place(_SCORES, forms=("masked",), mask_dtype="uint8", quick=True),
    *(
        Place(_SCORES, forms=("masked",), mask=mask, mask_dtype=dtype)
        for mask, dtype in itertools.product(MASKS, ("bool", "uint8"))
        if (mask, dtype) != ("full", "uint8")
    ),
    Place((2, 3, 40, 33), forms=("causal",)),
    Place((2, 3, 33, 40), forms=("causal",), quick=True),
    Place((2, 2, 130, 130), forms=("causal",)),
    Place((1, 5, 1025), forms=("causal",)),
    Place((9, 70), values="special x", quick=True),
    Place((9, 1030), values="special x"),
    Place((9, 70), values="special cotangent", first=True),
    Place((64, 257), values="wide", mask="keys", quick=True, own=True),
)

# These are x, the cotangent g of y, the tangent of x, and the cotangent of x's gradient.
_OPERANDS = ("x", "g", "t_x", "v_x")


def cases(quick: bool, forms: tuple[str, ...] = FORMS) -> Iterator[Case]:
    """Yields the grid, or a small part of it that has every dtype, form and quantity."""
    for dtype, form, place in itertools.product(FLOATING, forms, PLACES):
        asked = form in place.forms and (place.quick or not quick)
        if asked and (dtype == "float32" or not place.once):
            yield Case(dtype, form, place)


@dataclass(frozen=True)
class Case(grid.Case):
    """One point of the grid.

    Attributes:
      x: the dtype.
      form: "plain", "masked" or "causal".
    """

    op = "softmax"
    deviation, widest = 3.0, 70.0

    x: str
    form: str
    place: Place

    @property
    def dtypes(self) -> str:
        return self.x

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("x",)

    @property
    def second_order(self) -> bool:  # type: ignore[override]
        return not self.place.first and "special" not in self.place.values

    @property
    def causal(self) -> bool:
        return self.form == "causal"

    @property
    def split(self) -> tuple[str, ...]:
        shape = self.place.shape
        if len(shape) < (3 if self.causal else 2):
            return ()
        if self.form != "masked":
            return ("x", "g")
        mask = MASKS[self.place.mask](shape)
        return ("x", "g", "mask") if mask[:1] == shape[:1] and len(mask) > 1 else ("x", "g")

    @property
    def mapped(self) -> tuple[str, ...]:
        shape = self.place.shape
        few = len(shape) > 2 and 0 < shape[0] < 4
        shared = self.form == "masked" and MASKS[self.place.mask](shape)[0] == 1
        return self.split if few and not shared else ()

    def dtype_of(self, operand: str) -> str | None:
        return self.x

    def operands(self) -> Operands:
        random = self.random()
        filled = self.normal(_OPERANDS, random)
        filled["mask"] = self._mask(random) if self.form == "masked" else None
        if "special" in self.place.values:
            self._put_special(filled)
        return filled

    def _mask(self, random: np.random.Generator) -> Array:
        """Returns a mask that hides a third of the elements; all in some rows, none in others."""
        shape = MASKS[self.place.mask](self.place.shape)
        hidden = random.random(shape) < 1 / 3
        if len(shape) > 1 and shape[-2] > 2:
            hidden[..., 0, :], hidden[..., 1, :] = True, False
        if self.place.mask_dtype == "bool":
            return hidden
        return np.where(hidden, random.choice(np.array([1, 2, 128, 255]), shape), 0).astype("uint8")

    def _put_special(self, filled: Operands) -> None:
        x, g, mask = filled["x"], filled["g"], filled["mask"]
        assert x is not None
        assert g is not None
        columns = x.shape[-1]
        every = special_values(self.x, columns)
        if self.place.values == "special cotangent":
            # Extremes are left out: they overflow in sums whose true value does not.
            g[1], g[2, 3], g[3, 5] = special_values(self.x, columns, infinite=False), np.inf, np.nan
            g[1][np.abs(g[1].astype(np.float64)) > 100.0] = -1.0
            return
        finite = np.where(np.isfinite(every.astype(np.float64)), every, 0).astype(x.dtype)
        x[0] = np.where(finite == 0, -np.inf, finite).astype(x.dtype)
        x[1, columns // 2] = np.inf
        x[2, columns // 3] = np.nan
        x[3] = -np.inf
        x[4] = _most(self.x)
        x[5, ::3] = -np.inf
        x[6] = x[7] = every
        x[8] = special_values(self.x, columns, infinite=False)
        if mask is not None:  # row 6: only finite numbers remain visible
            mask[0] = False
            mask[6] = ~np.isfinite(every.astype(np.float64))
            mask[8] = True

    def call(self, ops: Any, p: Mapping[str, Any]) -> Any:
        if self.form == "masked":
            return ops.scaled_masked_softmax(p["x"], p["mask"], self.place.scale)
        function = ops.scaled_causal_softmax if self.causal else ops.scaled_softmax
        return function(p["x"], self.place.scale)

    def own_torch(self, p: Mapping[str, Any]) -> Any:
        import torch

        z = p["x"] * self.place.scale
        if (hidden := self._hidden(p, torch)) is not None:
            z = z.masked_fill(hidden.to(z.device), torch.finfo(z.dtype).min)
        return torch.softmax(z, -1)

    def own_jax(self, p: Mapping[str, Any]) -> Any:
        import jax
        import jax.numpy as jnp

        z = p["x"] * jnp.asarray(self.place.scale, p["x"].dtype)
        if (hidden := self._hidden(p, jnp)) is not None:
            z = jnp.where(hidden, jnp.finfo(z.dtype).min, z)
        return jax.nn.softmax(z, axis=-1)

    def _hidden(self, p: Mapping[str, Any], library: Any) -> Any:
        """Returns the mask as booleans of torch or jax.numpy, None if nothing is hidden."""
        if self.form == "masked":
            return p["mask"] != 0
        rows, columns = self.place.shape[-2:]
        ones = library.ones((rows, columns), dtype=library.bool)
        return library.triu(ones, columns - rows + 1) if self.causal else None

    def judge(self, given: Operands) -> Judge:
        place = self.place
        return Judge(self.x, place.shape, place.scale, self.causal, self.all_viewed(given))


def _most(dtype: str) -> float:
    """Returns the largest number of a dtype."""
    fmt = FORMATS[dtype]
    return float(np.ldexp(2.0 - 2.0 ** (1 - fmt.bits), fmt.highest))
