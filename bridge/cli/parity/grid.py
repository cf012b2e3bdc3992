"""The grid: layouts, places and cases of the catalogue's entries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from bridge.cli.catalogue import COMPARED
from bridge.cli.entries import (
    ARRAYS,
    FACTORS,
    LIKE_X,
    OF_ROWS,
    PROMOTED,
    ROWS,
    Comparison,
    Entry,
    draw,
    rounded,
    shape_of,
)
from bridge.cli.frozen_random import FrozenRandom
from bridge.cli.parity.places import (
    NUMPY,
    PLACES,
    Array,
    Place,
    few_special_values,
    special_values,
)
from bridge.cli.parity.quantities import quantities
from bridge.lang.dtypes import FLOATING, promote

# The seed of all operands. Another one makes every table of hashes worthless.
SEED = 1

Operands = dict[str, Array]

# The names of the entries of each op.
OPS: dict[str, tuple[str, ...]] = {
    op: tuple(name for name, entry in COMPARED.items() if entry.compared.op == op)
    for op in dict.fromkeys(entry.compared.op for entry in COMPARED.values())
}

# The first dtype is for operands of the rows' size, the second for weights, biases and row weights.
_MIXED = (("bfloat16", "float32"), ("float32", "bfloat16"), ("float16", "bfloat16"))
_OF_PRODUCTS = ("right", "right of batches", "layer", "columns", "sinks")
_OF_IMAGES = ("kernel", "kernel transposed", "channels", "means", "variances", "statistics")
_OTHERS = (*ROWS, "per row", "sink", "residual", *_OF_PRODUCTS, *_OF_IMAGES)


def places(compared: Comparison) -> tuple[Place, ...]:
    """Returns the places of an entry."""
    usual = tuple(
        place
        for place in PLACES
        if len(place.shape) >= compared.dimensions
        and (compared.widest or place.values != "wide")
        and (compared.extremes or place.values != "special g")
    )
    own = (Place(shape, quick=True, own=True) for shape in compared.own_shapes)
    return (*(usual if compared.usual else ()), *own, *map(Place, compared.shapes))


def cases(quick: bool, forms: tuple[str, ...] = tuple(COMPARED)) -> Iterator[Case]:
    """Yields the grid, or a small part of it that has every dtype, form and quantity."""
    for i, form in enumerate(forms):
        roles, found = {*COMPARED[form].roles.values()}, places(COMPARED[form].compared)
        ordinary = [p for p in found if p.own] or [*found[:1]]
        unusual = [p for p in found if p.quick and not p.own] or ordinary
        pairs: list[tuple[str, str]] = [(dtype, dtype) for dtype in FLOATING]
        if not roles.isdisjoint(_OTHERS):
            pairs.extend(_MIXED)
        chosen = [*itertools.product(pairs, found)]
        if quick:  # ordinary values in two dtypes, and one other place in one of the other dtypes
            usual = [pair for pair in pairs if pair[0] == pair[1] in ("float32", "bfloat16")]
            rest = [pair for pair in pairs if pair not in usual]
            one = rest[i % len(rest)], unusual[i // 2 % len(unusual)]
            chosen = [*itertools.product(usual, ordinary), one]
        for (x, of_others), place in chosen:
            # A label needs a column, and torch's tangent of a sum over no columns is NaN.
            has_number = "label" in roles or "per row" in COMPARED[form].results
            is_left_out = place.shape[-1:] == (0,) and has_number
            # Matrix products of special values are not exact.
            is_left_out |= place.values != "normal" and not roles.isdisjoint(FACTORS)
            # One pair of two dtypes runs everywhere, the others at one place.
            is_left_out |= (x, of_others) in _MIXED[1:] and place != ordinary[0]
            if not is_left_out:
                yield Case(form, x, of_others, place)


@dataclass(frozen=True)
class Case:
    """One point of the grid.

    An entry's operands have names: its inputs are the operands that it is differentiated by. In
    addition, g is a cotangent of its result, t_… a tangent of an input, and v_… a cotangent of an
    input's gradient.

    Attributes:
      form: the name of the entry.
      x: the dtype of operands of the rows' size, and of tables.
      others: the dtype of the other floating operands.
    """

    form: str
    x: str
    others: str
    place: Place

    @property
    def entry(self) -> Entry:
        return COMPARED[self.form]

    @property
    def op(self) -> str:
        return self.entry.compared.op

    @property
    def second_order(self) -> bool:
        is_special = "special" in self.place.values
        is_further = self.entry.compared.usual and self.place.shape in self.entry.compared.shapes
        return self.entry.compared.second_order and not is_special and not is_further

    @property
    def hessian(self) -> bool:
        return self.entry.compared.hessian and self.second_order

    @property
    def dtypes(self) -> str:
        """The text for the dtypes in tables."""
        return self.x if self.x == self.others else f"{self.x} + {self.others}"

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.entry.inputs

    @property
    def quantities(self) -> tuple[str, ...]:
        """The names of all quantities that are compared."""
        if not self.entry.compared.differentiable:
            return ("forward",)
        return quantities(self.inputs, self.second_order, self.hessian)

    def compared(self, result: Array) -> Array:
        """Returns a result in a form that has the same bits in both frameworks."""
        # A framework's own product may give a sum of zeros either sign.
        is_product = any(role in FACTORS for role in self.entry.roles.values())
        return result + result.dtype.type(0) if is_product else result

    @property
    def own(self) -> bool:
        """True if the frameworks' own ops are measured too."""
        # In float64 the frameworks' own ops are the reference.
        is_same = self.entry.compared.own and self.x == self.others != "float64"
        return self.place.own and is_same

    @property
    def arithmetic(self) -> str:
        """The dtype that the contract computes in."""
        return "float64" if self.x == "float64" else "float32"

    @property
    def split(self) -> tuple[str, ...]:
        """Operands to cut along the first dimension for the same result in pieces, if any."""
        compared, dimensions = self.entry.compared, len(self.place.shape)
        # A row of several dimensions, as of causal softmax, is cut in the dimensions before them.
        is_row_op = compared.are_rows_independent or compared.dimensions > 1
        if dimensions <= compared.dimensions or not is_row_op:
            return ()
        is_cut = len(self.place.shape) == 2  # a table of positions, with the rows
        roles = (*OF_ROWS, "table") if is_cut else OF_ROWS
        return tuple(name for name in (*self.entry.roles, "g") if self.role_of(name) in roles)

    @property
    def mapped(self) -> tuple[str, ...]:
        """Operands to map over their first dimension (vmap) for the same result, if any."""
        is_small = len(self.place.shape) > 2 and self.place.shape[0] in (1, 2, 3)
        # The mask of heads keeps a dimension for the batch.
        has_other_rank = "byte mask of heads" in self.entry.roles.values()
        return self.split if is_small and not has_other_rank else ()

    def role_of(self, operand: str) -> str:
        if operand == "g":  # two results are compared side by side
            return "packed" if len(self.entry.results) > 1 else self.entry.results[0]
        return self.entry.roles[operand.removeprefix("t_").removeprefix("v_")]

    def has_rows(self, operand: str) -> bool:
        return self.role_of(operand) in OF_ROWS

    def dtype_of(self, operand: str) -> str:
        role = self.role_of(operand)
        if operand == "g":
            if role in PROMOTED:
                floating = [name for name in self.inputs if self.role_of(name) != "sink"]
                return promote(*(self.dtype_of(name) for name in floating))
            if role in LIKE_X:
                return self.x
            return self.others if role in ("residual", "statistics") else self.arithmetic
        return self.others if role in _OTHERS else self.x

    def operands(self) -> Operands:
        """Returns the operands as dense arrays, before their view."""
        random, filled = self.random(), Operands()
        beside = [f"{kind}_{name}" for kind in "tv" for name in self.inputs]
        for name in (*self.entry.roles, "g", *beside):
            dtype = NUMPY[self.dtype_of(name)]
            array = draw(self.role_of(name), self.place.shape, dtype, random)
            if self._is_laid_out(name):
                array = np.resize(array, self.place.layout.dense(array.shape))
            filled[name] = array
        if self.place.values == "wide":
            widest = self.entry.compared.widest
            x = filled["x"]
            x[::2] = rounded(random.uniform(-widest, widest, x[::2].shape), x.dtype)
        elif self.place.values != "normal":
            self._put_special(filled)
        elif not self.place.own:
            mask = self._drawn_mask(filled)
            if mask is not None and mask.shape[-2:-1] > (2,):
                mask[..., 0, :], mask[..., 1, :] = True, False
        return filled

    def _drawn_mask(self, filled: Operands) -> Array | None:
        return None if self.entry.roles.get("mask") == "causal mask" else filled.get("mask")

    def _put_special(self, filled: Operands) -> None:
        x, g, mask = filled["x"], filled["g"], self._drawn_mask(filled)
        small = few_special_values(self.x, 2 * x.shape[-1]).reshape(2, -1)
        if self.place.values == "special g":
            g[1:3], g[3, 5], g[4, 6] = small.astype(g.dtype), np.inf, np.nan
            return
        if not self.entry.compared.extremes:
            x[1:3] = small
            # In a row with hidden elements a NaN spreads in the plain form, while the op has 0.
            if len(self.entry.results) == 1 and mask is None:
                x[4, 5] = np.nan
            return
        for name, role in self.entry.roles.items():
            if role in ROWS:  # adding -0.0 changes no number, not even -0.0
                filled[name] = np.full_like(filled[name], -0.0)
        columns = x.shape[-1]
        every = special_values(self.x, columns)
        is_finite = np.isfinite(every.astype(np.float64))
        x[0] = np.where(is_finite & (every != 0), every, every.dtype.type(-np.inf))
        x[1, columns // 2], x[2, columns // 3], x[3] = np.inf, np.nan, -np.inf
        x[4], x[5, ::3] = ml_dtypes.finfo(x.dtype).max, -np.inf
        x[6] = x[7] = every
        x[8] = special_values(self.x, columns, infinite=False)
        if mask is not None:  # row 6: only finite numbers remain visible
            mask[0], mask[6], mask[8] = False, ~is_finite, True

    def _is_laid_out(self, name: str) -> bool:
        return not name.startswith(("t_", "v_")) and self.role_of(name) in ARRAYS

    def all_viewed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns operands of NumPy, torch or JAX in their layout."""
        return {name: self._viewed(name, array) for name, array in given.items()}

    def _viewed(self, name: str, array: Any) -> Any:
        if not self._is_laid_out(name):
            return array
        return self.place.layout.view(array, shape_of(self.role_of(name), self.place.shape))

    def call(self, ops: Any, p: Mapping[str, Any]) -> Any:
        return _side_by_side(self.entry.call(ops, p))

    def own_torch(self, p: Mapping[str, Any]) -> Any:
        return _side_by_side(self.entry.in_torch(p))

    def own_jax(self, p: Mapping[str, Any]) -> Any:
        return _side_by_side(self.entry.in_jax(p))

    def exact(self, p: Mapping[str, Any]) -> Any:
        return _side_by_side((self.entry.compared.exact or self.entry.in_torch)(p))

    def random(self) -> FrozenRandom:
        """Returns random numbers: the same in every run on every machine, others for each case."""
        return FrozenRandom(f"{SEED} {self.form} {self.dtypes} {self.place}")


def _side_by_side(results: Any) -> Any:
    if not isinstance(results, tuple):
        return results
    if hasattr(results[0], "astype"):
        import jax.numpy as jnp

        return jnp.concatenate(results, -1)
    import torch

    return torch.cat(results, -1)
