"""Splits of an array over devices: the part of a split that a call can keep, in any framework."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from bridge.ops.definition import Op, Role


@dataclass(frozen=True)
class AnySplit:
    """The mesh axes over which each dimension of a space is split, the slowest axis first.

    Attributes:
      shape: of the whole space.
      axes: for each dimension, axes of the mesh, in the framework's own form.
    """

    shape: tuple[int, ...]
    axes: tuple[tuple[Any, ...], ...]

    def size(self, axis: Any) -> int:
        """Returns the number of devices along an axis of the mesh."""
        raise NotImplementedError

    def parts(self, dim: int) -> int:
        return math.prod([self.size(axis) for axis in self.axes[dim]])

    def local(self, dim: int) -> int:
        return self.shape[dim] // self.parts(dim)

    def is_one_group(self, dim: int) -> bool:
        """True if all devices that share a dimension can exchange data in one step."""
        return True


Split = TypeVar("Split", bound=AnySplit)


def counts_elements(op: Op[Any], params: Any) -> bool:
    """True if a call numbers the elements of the array."""
    return op.counts_from(params) is not None


def adds_rows(op: Op[Any], params: Any) -> bool:
    """True if a call adds up the rows."""
    return Role.ROW in wanted_roles(op, params)


def wanted_roles(op: Op[Any], params: Any) -> list[Role]:
    """Returns the roles of the results that are wanted."""
    results = zip(op.result_roles(params), op.result_dtypes(params), strict=True)
    return [role for role, dtype in results if dtype is not None]


def row_dims(split: AnySplit, params: Any) -> range:
    return range(params.batch_ndim, len(split.shape) - 1)


def without(split: Split, dims: Collection[int]) -> Split:
    """Returns the split without these dimensions, which become whole."""
    axes = tuple(() if dim in dims else own for dim, own in enumerate(split.axes))
    return replace(split, axes=axes)


def has_whole_rows(
    op: Op[Any], params: Any, operands: Sequence[Role], columns: int, *, alone: bool = False
) -> bool:
    """True if a call on rows of `columns` elements cannot run on parts of them.

    `operands`, `alone`: as in `supported`.
    """
    if alone and has_halves(op, params, operands):
        return True
    return op.tells_columns_apart(params) and (alone or op.reductions(params, columns) is None)


def has_halves(op: Op[Any], params: Any, operands: Sequence[Role]) -> bool:
    """True if an array has halves: a part of its columns holds other columns (`halves`)."""
    return Role.HALVES in (*operands, *wanted_roles(op, params))


def supported(
    op: Op[Any], params: Any, operands: Sequence[Role], split: Split, *, alone: bool = False
) -> Split:
    """Returns the part of a split that a call can keep; other dimensions are gathered.

    `operands`: the roles of the present operands.
    `alone`: True if shards can neither know their number nor communicate.
    """
    ndim = len(split.shape)
    whole: set[int] = set()
    if ndim <= params.batch_ndim:  # a batch of numbers
        whole.update(range(ndim))
    elif has_whole_rows(op, params, operands, split.shape[-1], alone=alone):
        whole.add(ndim - 1)
    if has_halves(op, params, operands) and not split.is_one_group(ndim - 1):
        whole.add(ndim - 1)
    if alone and (counts_elements(op, params) or adds_rows(op, params)):
        whole.update(row_dims(split, params))
    if alone and counts_elements(op, params):
        whole.add(ndim - 1)
    for dim, size in enumerate(split.shape):
        if size == 0 or size % split.parts(dim):
            whole.add(dim)
    return without(split, whole)


def dims_of(role: Role, shape: Sequence[int], split: AnySplit, batch_ndim: int) -> list[int | None]:
    """Maps the dimensions of an operand or a result to those of the split space; None: no such one.

    The last dimension of a Halves or Pairs array maps to the columns: a part has twice as many.
    The further dimensions of an integer, such as its two words, map to None.
    """
    ndim = len(split.shape)
    if role.fills_space:
        return list(range(ndim))
    if role.has_all_rows:
        return [*range(ndim - 1), *[None] * bool(role.block)]
    if role is Role.ROW:
        return [*range(batch_ndim), ndim - 1]
    if role is Role.INTEGER:
        return [*range(batch_ndim), *[None] * (len(shape) - batch_ndim)]
    first = ndim - len(shape)
    return [
        first + i if size == split.shape[first + i] and size > 1 else None
        for i, size in enumerate(shape)
    ]
