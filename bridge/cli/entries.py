"""Descriptions of ops for parity, bench and tests: operands by role, and a reference form."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.cli.frozen_random import FrozenRandom

Random = FrozenRandom | np.random.Generator
Shape = tuple[int, ...]
Operands = Mapping[str, Any]  # arrays of a framework by name; the first one is "x"

# Shapes by role, for rows `[*rows, d]`. A table has one row per position, the last dimension of
# `rows`.
_SHAPES: dict[str, Callable[[Shape, int], Shape]] = {
    "full": lambda rows, d: (*rows, d),
    "packed": lambda rows, d: (*rows, 2 * d),
    "row": lambda rows, d: (d,),
    "packed row": lambda rows, d: (2 * d,),
    "number": lambda rows, d: (1,),
    "three numbers": lambda rows, d: (3,),
    "per row": lambda rows, d: rows,
    "label": lambda rows, d: rows,  # integers below d
    "residual": lambda rows, d: (*rows, d),  # it decides the dtype of the result
    "like x": lambda rows, d: (*rows, d),  # a result in the dtype of x, whatever the others have
    "integer": lambda rows, d: (),
    # Masks broadcast from the right, as [batch, heads, queries, keys].
    "mask": lambda rows, d: (*rows, d),
    "byte mask": lambda rows, d: (*rows, d),
    "mask of keys": lambda rows, d: (d,),
    "byte mask of queries": lambda rows, d: (rows[-1], 1),
    "mask of batches and keys": lambda rows, d: (rows[0], *(1,) * (len(rows) - 1), d),
    "mask of batches": lambda rows, d: (*rows[:1], *(1,) * (len(rows) - 2), *rows[1:][-1:], d),
    "byte mask of heads": lambda rows, d: (1, rows[1], *(1,) * (len(rows) - 1)),
    "causal mask": lambda rows, d: (rows[-1], d),
    "sink": lambda rows, d: (*rows, 1),
    "table": lambda rows, d: (*rows[-1:], d),
    # Factors of a matrix product. Each row has its own few features; each feature has one column.
    "hidden": lambda rows, d: (*rows, math.prod(rows) * _own(d)),
    "projection": lambda rows, d: (d, math.prod(rows) * _own(d)),
    "offset": lambda rows, d: (d,),
    # Products, of a space [*batch, m, n, k]; "mirrored" operands have sums that cancel.
    "left": lambda rows, d: (*rows[:-1], d),
    "left transposed": lambda rows, d: (*rows[:-2], d, rows[-2]),
    "left mirrored": lambda rows, d: (*rows[:-1], d),
    "right": lambda rows, d: (d, rows[-1]),
    "right of batches": lambda rows, d: (*rows[:-2], d, rows[-1]),
    "right mirrored": lambda rows, d: (d, rows[-1]),
    "layer": lambda rows, d: (rows[-1], d),
    "columns": lambda rows, d: rows[-1:],
    "product": lambda rows, d: rows,
    "layer of logits": lambda rows, d: (rows[-1], d),
    "logits bias": lambda rows, d: rows[-1:],
    "label of rows": lambda rows, d: rows[:-1],  # integers below n
    "losses": lambda rows, d: rows[:-1],
    # Attention, of a space [batch, heads, key heads, queries, keys, d].
    "queries": lambda rows, d: (rows[0], rows[1], rows[3], d),
    "keys": lambda rows, d: (rows[0], rows[2], rows[4], d),
    "keys mirrored": lambda rows, d: (rows[0], rows[2], rows[4], d),
    "values": lambda rows, d: (rows[0], rows[2], rows[4], d + 3),
    "values mirrored": lambda rows, d: (rows[0], rows[2], rows[4], d + 3),
    "attended": lambda rows, d: (rows[0], rows[1], rows[3], d + 3),
    "sinks": lambda rows, d: rows[1:2],
    "mask of pairs": lambda rows, d: rows[3:5],
    # Embedding, of a space [*ids, n, d].
    "vocabulary": lambda rows, d: (rows[-1], d),
    "ids": lambda rows, d: rows[:-1],  # integers below n
    "embedded": lambda rows, d: (*rows[:-1], d),
    # Convolutions, of a space [n, c, channels of a group, o, *kernel, *sizes, *places].
    "image": lambda rows, d: (*rows[:2], *_parts((*rows, d), 4, 3)[1]),
    "kernel": lambda rows, d: (rows[3], rows[2], *_parts((*rows, d), 4, 3)[0]),
    "kernel transposed": lambda rows, d: (rows[1], rows[2], *_parts((*rows, d), 4, 3)[0]),
    "convolved": lambda rows, d: (rows[0], rows[3], *_parts((*rows, d), 4, 3)[2]),
    # Pools and interpolation, of a space [n, c, *sizes, *places].
    **dict.fromkeys(
        ("planes", "planes of levels", "planes of special levels"),
        lambda rows, d: (*rows[:2], *_parts((*rows, d), 2, 2)[0]),
    ),
    "resized": lambda rows, d: (*rows[:2], *_parts((*rows, d), 2, 2)[1]),
    # Batch norm, of a space [n, c, *places].
    **dict.fromkeys(("channels", "means", "variances"), lambda rows, d: (*rows, d)[1:2]),
    "statistics": lambda rows, d: (2, *(*rows, d)[1:2]),  # means and variances
    # The k largest, of a space [*rows, columns, k].
    **dict.fromkeys(("levels", "special levels"), lambda rows, d: rows),
    "chosen": lambda rows, d: (*rows[:-1], d),
    "numbers of many sizes": lambda rows, d: (*rows, d),
    # Optimizers: a parameter, and a gradient for each of three steps.
    "parameter": lambda rows, d: (*rows, d),
    "steps": lambda rows, d: (3, *rows, d),
    "states": lambda rows, d: (3, *rows, d),  # the parameter and its state
}
ROWS = ("row", "packed row", "number", "three numbers")  # the same for all rows
ARRAYS = {"full": 1, "packed": 2, "residual": 1, "like x": 1}  # the number of elements per column
# Roles whose operands have a part for each row.
OF_ROWS = (*ARRAYS, "per row", "label", "mask", "byte mask", "sink", "hidden")
OF_ROWS += ("mask of batches", "mask of batches and keys", "image", "convolved")
OF_ROWS += ("planes", "planes of levels", "planes of special levels", "resized", "levels")
OF_ROWS += ("special levels", "chosen", "numbers of many sizes")
FACTORS = ("hidden", "projection")
MASKS = tuple(role for role in _SHAPES if "mask" in role)
FIXED = ("label", "table", "offset", "integer", *MASKS)  # roles without gradients here
FIXED += ("label of rows", "ids", "parameter", "steps", "means", "variances")
LIKE_X = ("like x", "attended", "embedded", "resized", "chosen")  # in the dtype of x alone
PROMOTED = ("full", "packed", "product", "convolved")  # results in the promoted dtype


def _own(d: int) -> int:
    """Returns the number of features that belong to one row."""
    return min(d, 8)


def _parts(space: Shape, start: int, count: int) -> tuple[Shape, ...]:
    """Returns the parts of equal length after the first dimensions of a space."""
    length = (len(space) - start) // count
    return tuple(space[start + i * length :][:length] for i in range(count))


def shape_of(role: str, space: Shape) -> Shape:
    return _SHAPES[role](space[:-1], space[-1]) if space else ()


def draw(role: str, space: Shape, dtype: Any, random: Random) -> np.ndarray:
    """Draws an operand of a role; floating operands are normal numbers in a NumPy dtype."""
    shape = shape_of(role, space)
    if role == "label":
        return np.asarray(random.integers(0, space[-1], shape))
    if role in ("label of rows", "ids"):
        return np.asarray(random.integers(0, space[-2], shape))
    if role == "integer":
        return random.integers(-(2**63), 2**63 - 1, shape, endpoint=True)
    if role == "causal mask":
        return np.triu(np.ones(shape, bool), shape[1] - shape[0] + 1)
    if role in MASKS:
        hidden = random.random(shape) < 0.3
        # Each non-zero byte hides.
        bytes_of = random.choice(np.array([1, 2, 128, 255], np.uint8), shape)
        return np.where(hidden, bytes_of, np.uint8(0)) if "byte" in role else hidden
    if role in FACTORS:
        return _factor(role, space, random).astype(dtype)
    if role == "offset":  # added to an exact product, also without a rounding
        return (random.integers(-64, 64, shape) / 16).astype(dtype)
    if "levels" in role:
        return rounded(_levels(random, shape, "special" in role), dtype)
    if role == "numbers of many sizes":
        sizes = np.ldexp(1.0, random.integers(-9, 10, shape))
        sizes[:1] = 0.0  # a row of zeros
        return rounded(random.standard_normal(shape) * sizes, dtype)
    if role == "variances":
        return rounded(0.5 + np.abs(random.standard_normal(shape)), dtype)
    if "mirrored" in role:
        return rounded(_mirrored(role, random.standard_normal(shape)), dtype)
    return rounded(random.standard_normal(shape), dtype)


def _levels(random: Random, shape: Shape, is_special: bool) -> np.ndarray:
    """Returns few different numbers, so that many are equal, and perhaps some not finite."""
    finite = np.array([-1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 1.5])
    chosen = finite[random.integers(0, len(finite), shape)]
    if not is_special:
        return chosen
    others = np.array([-np.inf, np.nan, np.inf])
    places = random.integers(0, 4 * len(others), shape)
    return np.where(places < len(others), others[places % len(others)], chosen)


def _mirrored(role: str, array: Any) -> np.ndarray:
    """Repeats the first half of a contraction backwards, with signs so that sums of it are 0.

    The rounding errors remain: results have other bits if a sum has another order, in 16 bits too,
    because the factor 8 keeps the errors above the smallest numbers of float16.
    """
    axis = -1 if role.startswith("left") else -2
    half = np.moveaxis(array, axis, 0)
    half = half[: len(half) // 2]
    half = half if role.startswith("keys") else 8.0 * half
    sign = -1.0 if role in ("left mirrored", "values mirrored") else 1.0
    return np.ascontiguousarray(np.moveaxis(np.concatenate((half, sign * half[::-1])), 0, axis))


def rounded(values: Any, dtype: Any) -> np.ndarray:
    """Returns float64 numbers in a NumPy dtype, with the same bits in each version of ml_dtypes."""
    if np.dtype(dtype).itemsize == 2:  # float64 may reach bfloat16 in one rounding, or in two
        values = np.asarray(values, np.float32)
    # In 0 dimensions, NumPy's arithmetic returns a scalar instead of an array.
    return np.asarray(values, dtype)


def _factor(role: str, space: Shape, random: Random) -> np.ndarray:
    """Returns a factor of a product that is exact, and whose derivatives are exact.

    Each sum of the product has one nonzero term, made of powers of two: a framework may add the
    terms in any order.
    """
    shape = shape_of(role, space)
    powers = 1.0 + random.integers(0, 2, shape)
    return np.where(is_filled(role, space), powers * random.choice([-1, 1], shape), 0.0)


def is_filled(role: str, space: Shape) -> np.ndarray:
    """Returns a mask of the nonzero elements: each feature belongs to one row and one column."""
    shape = shape_of(role, space)
    features = np.arange(shape[-1])
    belongs = features // _own(space[-1]) if role == "hidden" else features % space[-1]
    return (belongs == np.arange(math.prod(shape[:-1]))[:, None]).reshape(shape)


@dataclass(frozen=True)
class Comparison:
    """The part of an entry that parity alone uses.

    Attributes:
      op: the family of ops in the report and in --ops.
      exact: the expression in float64, of tensors by name; None if `in_torch` is exact.
      at_value: True if the derivatives are taken at the value that the op returned, rounded to its
        dtype; `exact` finds this value in operand "y".
      second_order, hessian: True to compare the gradients of gradients, and products of the Hessian
        with vectors.
      widest: x is also compared with values from -widest to widest, where each number is judged by
        itself and not as a part of its row; 0 for ops whose rows are judged as a whole.
      extremes: True if x and the cotangent are also compared with infinities, NaN and extremes.
      dimensions: the least number of dimensions of x.
      are_rows_independent: True if the results of a row depend on the operands of this row alone.
      own: True if the frameworks' own ops compute the same.
      shapes: further shapes, for value, gradients and tangent.
      own_shapes: shapes before them, at which the frameworks' own ops are measured too.
      bounds: bounds(case, operands) returns the values and bounds of quantities, derived by an
        error analysis; None if the judge measures how results change with the operands.
      differentiable: False for an op that is compared by its value alone.
      usual: True if the op is compared at the places that all ops share; `shapes` alone otherwise.
    """

    op: str = "catalogue"
    exact: Callable[[Operands], Any] | None = None
    at_value: bool = False
    second_order: bool = False
    hessian: bool = False
    widest: float = 0.0
    extremes: bool = False
    dimensions: int = 1
    are_rows_independent: bool = True
    own: bool = True
    shapes: tuple[Shape, ...] = ()
    own_shapes: tuple[Shape, ...] = ()
    bounds: Callable[[Any, Operands], Mapping[str, Any]] | None = None
    differentiable: bool = True
    usual: bool = True


@dataclass(frozen=True)
class Entry:
    """An op with operands.

    Attributes:
      name: the name of the public function, with a suffix if it has several entries.
      roles: the roles of the operands by name.
      results: the roles of the results; call returns a tuple if there are several.
      call: call(ops, operands) with `ops` bridge.torch or bridge.jax.
      in_torch, in_jax: the same with a framework's own operations.
      added: two operands whose sum is first rounded to an array's dtype.
      moved: the least number of arrays of a row's size that the forward and the backward pass read
        or write. None means all operands, and in the backward pass also their gradients.
      compared: the part that parity alone uses.
    """

    name: str
    roles: dict[str, str]
    results: tuple[str, ...]
    call: Callable[[Any, Operands], Any]
    in_torch: Callable[[Operands], Any]
    in_jax: Callable[[Operands], Any]
    added: tuple[str, ...] = ()
    moved: tuple[float, float] | None = None
    compared: Comparison = Comparison()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Operands that the op is differentiated by."""
        if not self.compared.differentiable:
            return ()
        return tuple(name for name, role in self.roles.items() if role not in FIXED)

    def has_rows(self, operand: str) -> bool:
        """True if an operand `[rows, d]`, or a cotangent, has a part for each row."""
        return self.roles.get(operand, "full") in (*OF_ROWS, "table")

    @property
    def arrays_moved(self) -> tuple[float, float]:
        """The least number of arrays of a row's size that each pass reads or writes."""
        if self.moved is not None:
            return self.moved
        operands = sum(ARRAYS.get(role, 0) for role in self.roles.values())
        results = sum(ARRAYS.get(role, 0) for role in self.results)
        # The sum of two summands is read again instead of them; both have the same gradient.
        again = operands - (1 if self.added else 0)
        return operands + results, 2 * again + results
