"""A call on one shard of its arrays, with the bits of the call on the whole arrays.

The arithmetic of shard positions is in `bridge.ops.parts`; this module has the JAX operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.jax._sharded import word_pairs
from bridge.jax._sharded.row_tree import added_leaves, placed_and_added
from bridge.jax._sharded.split import Split
from bridge.ops.definition import Op
from bridge.ops.halves import half, rounds
from bridge.ops.parts import Part, call_on_part

Run = Callable[[Any, Sequence[Any], Any], tuple[Any, ...]]


def call_on_shard(
    run: Run, op: Op[Any], operands: Sequence[Any], params: Any, split: Split
) -> tuple[Any, ...]:
    """Runs the call on this shard's part of the operands; `split` is the split of the space."""
    return call_on_part(_Shard, run, op, operands, params, split)


@dataclass(frozen=True)
class _Shard(Part):
    """The part of one shard. Shards exchange values by all-reduces of integers."""

    @staticmethod
    def dtype(array: Any) -> str:
        return array.dtype.name

    @staticmethod
    def concatenate(arrays: Any, dim: int) -> Any:
        return jnp.concatenate(arrays, dim)

    @staticmethod
    def repeated(array: Any, at: int, shape: tuple[int, ...]) -> Any:
        return jnp.broadcast_to(jnp.expand_dims(array, at), shape)

    def starts(self, parts: int, width: int, given: Any | None, like: Any) -> Any:
        """Returns word pairs, `[*batch, runs·parts, 2]`, or `[*batch, 2]` for a single part."""
        shape, last = self.split.shape, len(self.split.shape) - 1
        stride = {dim: math.prod(shape[dim + 1 : last]) * width for dim in range(last)}
        offsets = np.zeros((1,), np.uint64)
        start: Any = word_pairs.constants([0])
        if last >= 0:
            own = word_pairs.times(self.split.index(last), self.split.local(last))
            start = word_pairs.add(start, own)
        for dim in range(self.batch_ndim, min(self.dim + 1, last)):
            local = self.split.local(dim)
            own = word_pairs.times(self.split.index(dim), local * stride[dim])
            start = word_pairs.add(start, own)
            if dim < self.dim:
                inner = np.arange(local, dtype=np.uint64) * np.uint64(stride[dim])
                offsets = (offsets[:, None] + inner).ravel()
        step = np.arange(parts, dtype=np.uint64) * np.uint64(self.rows // parts * width)
        start = word_pairs.add(start, word_pairs.constants((offsets[:, None] + step).ravel()))
        if self.count * parts == 1:
            start = start[0]
        start = jnp.broadcast_to(start, (*self.batch, *start.shape))
        return start if given is None else word_pairs.add(given, start)

    def exchanged(self, nodes: Any, parts: int) -> Any:
        """Exchanges nodes in one all-reduce: each number comes from one shard, the others add 0."""
        split, columns = self.split, nodes.shape[-1]
        outer = range(self.batch_ndim, self.dim)
        inner = (split.parts(self.dim), parts, columns)
        whole = (*self.batch, *(split.shape[dim] for dim in outer), *inner)
        starts = (split.index(dim) * split.local(dim) for dim in outer)
        at = (*(0 for _ in self.batch), *starts, split.index(self.dim), 0, 0)
        own = nodes.reshape(*self.batch, *self.outer, 1, parts, columns)
        gathered = placed_and_added(own, whole, at, self.axes())
        return gathered.reshape(*self.batch, -1, columns)

    def rows_added(self, rows: Any, dtype: str) -> Any:
        return self.folded(added_leaves(self, rows), dtype)

    def of_all_columns(self, own: Any) -> Any:
        return lax.all_gather(own, self.split.axes[-1], axis=own.ndim - 1)

    def halves_of_columns(self, array: Any) -> Any:
        """Runs two permutations of the devices; each device sends one of two blocks in either."""
        parts, index = self._columns()
        sent = rounds(parts)
        return self._permuted(array, half(index, parts), sent, index % 2)

    def halves_as_they_lie(self, array: Any) -> Any:
        parts, index = self._columns()
        first, second = ([(to, of) for of, to in each] for each in rounds(parts))
        return self._permuted(array, index % 2, (first, second), half(index, parts))

    def _columns(self) -> tuple[int, Any]:
        last = len(self.split.shape) - 1
        return self.split.parts(last), self.split.index(last)

    def _permuted(self, array: Any, sent: Any, permutations: Any, received: Any) -> Any:
        """Returns the array with its blocks, which are its halves, exchanged among devices.

        Args:
          sent, received: the block, 0 or 1, that is sent or received in the first permutation.
        """
        # Bits travel as integers: a conversion to float32 on XLA's CPU would change those of a NaN.
        narrow = np.dtype(array.dtype).itemsize == 2
        bits = lax.bitcast_convert_type(array, np.uint16) if narrow else array
        width, dim, whole = array.shape[-1] // 2, array.ndim - 1, bits
        axes, number = self.split.in_order_of_mesh(dim)
        for turn, permutation in enumerate(permutations):
            own = lax.dynamic_slice_in_dim(whole, (sent ^ turn) * width, width, dim)
            other = lax.ppermute(own, axes, [(number[of], number[to]) for of, to in permutation])
            at = (received ^ turn) * width
            bits = lax.dynamic_update_slice_in_dim(bits, other, at, dim)
        return lax.bitcast_convert_type(bits, array.dtype) if narrow else bits

    def own(self, table: Any) -> Any:
        return jnp.asarray(table, np.int32)[self.split.index(len(self.split.shape) - 1)]

    @staticmethod
    def padded(array: Any, before: Any, width: int) -> Any:
        empty = jnp.full((*array.shape[:-1], width), -0.0, array.dtype)
        return lax.dynamic_update_slice_in_dim(empty, array, before, array.ndim - 1)

    @staticmethod
    def taken(array: Any, columns: Any) -> Any:
        # JAX may misread a 64-bit index after a change of jax_enable_x64.
        if isinstance(columns, np.ndarray):
            columns = columns.astype(np.int32)
        return array[..., columns]

    @staticmethod
    def integers(array: Any) -> Any:
        return array.astype(np.int32)

    @property
    def total(self) -> int:
        """The number of runs that make up the rows of one batch element of the whole array."""
        split = self.split
        outer = range(self.batch_ndim, self.dim)
        return math.prod(split.shape[dim] for dim in outer) * split.parts(self.dim)

    def numbers(self) -> Any:
        """Returns the numbers of this shard's runs among them."""
        split = self.split
        number: Any = np.zeros((1,), np.int32)
        for dim in range(self.batch_ndim, self.dim):
            local = split.local(dim)
            own = split.index(dim) * local + np.arange(local, dtype=np.int32)
            number = (number[:, None] * split.shape[dim] + own).reshape(-1)
        return number * split.parts(self.dim) + split.index(self.dim)

    def axes(self) -> tuple[str, ...]:
        """Returns the mesh axes that split the rows."""
        dims = range(self.batch_ndim, len(self.split.shape) - 1)
        return tuple(name for dim in dims for name in self.split.axes[dim])
