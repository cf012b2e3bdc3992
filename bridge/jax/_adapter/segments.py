"""Ops of segments on arrays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge.jax._adapter.arguments import (
    as_array_like,
    as_arrays,
    compiled_for,
    refuse_traced,
)
from bridge.jax._adapter.arrays import parts
from bridge.jax._adapter.avals import spec_of, unsplit
from bridge.jax._adapter.declared import DeclaredFunction
from bridge.jax._adapter.embeddings import rows_of
from bridge.jax._adapter.integers import as_integer
from bridge.jax._adapter.moves import moved
from bridge.lang import roles
from bridge.ops.definition import Spec
from bridge.ops.form import INTEGERS, dtypes_of_role
from bridge.ops.scalars import told_apart
from bridge.ops.segmented import COLUMNS, Segmented
from bridge.ops.segments import (
    Sizes,
    plan_of,
    positions_of,
    traced_sizes,
)
from bridge.ops.traced import function_of


class _Integers:
    """The functions of integer arrays that make a plan."""

    def arange(self, like: jax.Array, count: int) -> jax.Array:
        return jnp.arange(count, dtype=like.dtype)

    def where(self, condition: Any, x: Any, y: Any) -> jax.Array:
        return jnp.where(condition, x, y)

    def cumsum(self, x: jax.Array) -> jax.Array:
        return jnp.cumsum(x)

    def concatenate(self, arrays: Sequence[jax.Array]) -> jax.Array:
        return jnp.concatenate([*arrays])

    def order(self, x: jax.Array) -> jax.Array:
        return jnp.argsort(x, stable=True).astype(x.dtype)

    def counts(self, x: jax.Array, count: int) -> jax.Array:
        return jnp.zeros(count, x.dtype).at[x].add(1)

    def clip(self, x: jax.Array, low: int, high: int) -> jax.Array:
        return jnp.clip(x, low, high)


class _Moves:
    """The functions that move tokens."""

    def moved(self, x: jax.Array, to: jax.Array, back: jax.Array, marks: bool) -> jax.Array:
        return moved(x, to, back, marks)

    def taken(self, x: jax.Array, places: jax.Array) -> jax.Array:
        if x.shape[-1] == 0:
            return jnp.zeros((*x.shape[:-1], places.shape[0]), x.dtype)
        found = jnp.take(x, jnp.maximum(places, 0), axis=-1, mode="clip")
        return jnp.where(places < 0, jnp.zeros((), x.dtype), found)

    def joined(self, arrays: Sequence[jax.Array]) -> jax.Array:
        return jnp.concatenate([*arrays], -1)

    def parts(self, x: jax.Array, sizes: Sequence[int]) -> Sequence[jax.Array]:
        return parts(x, sizes) if len(sizes) > 1 else [x]

    def spread(self, x: jax.Array, shape: Sequence[int]) -> jax.Array:
        return jnp.broadcast_to(x, tuple(shape))

    def columns(self, table: jax.Array, count: int) -> jax.Array:
        like = jnp.broadcast_to(jax.lax.stop_gradient(table), (*table.shape[:-1], count))
        return _columns.run((like, table), None)  # type: ignore[no-any-return]

    def rows_of_table(self, table: jax.Array, positions: jax.Array) -> jax.Array:
        return rows_of(table[None], positions[None])[0]


_columns = DeclaredFunction(COLUMNS, "columns")


class SegmentedFunction:
    """The function of an op of segments on arrays, `public`."""

    def __init__(self, segmented: Segmented, name: str = "") -> None:
        self.segmented = segmented
        self.name = name or segmented.public.name
        self.rows = DeclaredFunction(segmented.op_of_rows, self.name)
        self.public = function_of(segmented.public, "jax", None, self.run)

    def run(self, operands: tuple[Any, ...], _: None, *values: Any) -> Any:
        """Returns the result of the op; absent operands are None."""
        segmented, name = self.segmented, self.name
        static, longest = segmented.divided(values)
        refuse_traced(name, "max_seqlen", longest)
        given: list[Any] = []
        for parameter, value in zip(segmented.public.parameters, operands, strict=True):
            if value is None and parameter.optional:
                given.append(None)
            elif parameter.role is roles.Integer:
                given.append(as_integer(name, parameter.name, value))
            else:
                dtypes = _dtypes(parameter.role)
                expected = f"one of {', '.join(dtypes)}"
                given.append(as_array_like(name, parameter.name, value, dtypes, expected))
        specs = [
            None
            if value is None or parameter.role is roles.Integer
            else spec_of(jnp.asarray(value))
            for parameter, value in zip(segmented.public.parameters, given, strict=True)
        ]
        segmented.check(name, specs, longest)
        total, ends = segmented.total(specs), given[segmented.place]
        known = _known(ends)
        if known is not None:
            segmented.check_known(name, specs, known, longest)
            if (
                longest is None and segmented.is_cut
            ):  # a power of 2, so that few lengths compile anew
                longest = (
                    1
                    << max(int(np.diff(known.astype(np.int64)).max(initial=0)) - 1, 0).bit_length()
                )
        sizes: Sizes = ()
        if segmented.is_cut:
            most = total if longest is None else min(int(longest), total)
            sizes = traced_sizes(ends.shape[0] - 1, total, most)
        absent = tuple([value is None for value in given])
        compiled = _compiled(self, absent, sizes, len(static), *static, *map(told_apart, static))
        return compiled(*itertools.compress(given, [not each for each in absent]))


def _spec(value: Any) -> Spec:
    array = value if hasattr(value, "dtype") else np.asarray(value)
    return Spec(tuple(array.shape), array.dtype.name)


def _dtypes(role: Any) -> tuple[str, ...]:
    if role in roles.OF_SEGMENTS:
        return INTEGERS
    return dtypes_of_role(roles.Table if role is roles.PerPosition else role)


def _known(ends: Any) -> Any:
    """Returns the ends as a NumPy array, or None if they cannot be read without waiting."""
    if isinstance(ends, jax.core.Tracer):
        return None
    if isinstance(ends, jax.Array) and not (
        ends.is_fully_addressable and all(d.platform == "cpu" for d in ends.devices())
    ):
        return None
    return np.asarray(ends)


@compiled_for
def _compiled(
    function: SegmentedFunction, absent: tuple[bool, ...], sizes: Any, count: int, *static: Any
) -> Any:
    segmented = function.segmented

    def declared(*given: Any) -> Any:
        present = iter(given)
        operands = [None if is_absent else next(present) for is_absent in absent]
        for place, parameter in enumerate(segmented.public.parameters):
            if operands[place] is not None and parameter.role is not roles.Integer:
                (array,) = as_arrays(operands[place])
                operands[place] = unsplit(array, slice(None)) if array.ndim else array
        ends: Any = operands[segmented.place]
        ends = ends.astype(jax.dtypes.canonicalize_dtype(np.int64))
        total = segmented.total([spec_of(operands[0])])
        if segmented.is_cut:
            at: Any = plan_of(_Integers(), ends, total, sizes)
        else:
            at = positions_of(_Integers(), ends, total)
        return segmented.run(_Moves(), function.rows, operands, static[:count], at)

    declared.__name__ = function.name
    return declared
