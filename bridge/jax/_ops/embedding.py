"""Rows of a table by number, for JAX."""

from __future__ import annotations

from collections.abc import Callable

import jax

from bridge.jax._adapter import arrays
from bridge.jax._adapter.arguments import compiled_for
from bridge.jax._adapter.avals import unsplit
from bridge.jax._adapter.embeddings import rows_of
from bridge.jax._ops.labels import as_signed, check_labels
from bridge.ops.embedding import NAME, check

ArrayLike = jax.typing.ArrayLike


def embedding(ids: ArrayLike, weight: ArrayLike) -> jax.Array:
    r"""Rows of `weight` by number: y[…, :] = weight[ids[…], :].

    The gradient of a row adds the cotangents of the positions with its number in increasing order,
    in the tree of column sums, in float32 or float64, and is rounded once. So its bits depend on
    these positions alone: not on the number of threads, the instruction set or the device, and they
    are those of `bridge.torch`. Nothing is added atomically. Every transformation of JAX applies,
    derivatives of any order included.

    Args:
      ids: `[...]` of any integer dtype: numbers of rows, from 0 on. A negative number does not
        count from the end.
      weight: `[n, d]` of dtype float16, bfloat16, float32 or float64.

    Returns:
      `[..., d]`, of weight's dtype. A row of NaN, which has no gradient, for an id out of range
      that could not be checked before: on a GPU and under transforms. Split arrays are gathered
      for the gradient, and on a mesh with explicit axes for the value too.

    Raises:
      TypeError: an argument is no array or of another dtype.
      ValueError: weight has another number of dimensions; an id out of range.

    Example:
      >>> embedding(jnp.array([2, 0]), jnp.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]))
      Array([[4., 5.],
             [0., 1.]], dtype=float32)
    """
    numbers, table = arrays.checked(NAME, 2, ("ids",), ids=ids, weight=weight)
    check(arrays.spec_of(numbers), arrays.spec_of(table))
    # The check reads the given ids: without x64, an array of JAX has 32 bits of a number.
    check_labels(NAME, ids, table, table.shape[0], names=("ids", "rows"))
    return _compiled()(numbers, table)  # type: ignore[no-any-return]


@compiled_for
def _compiled() -> Callable[..., jax.Array]:
    def embedding(ids: jax.Array, weight: jax.Array) -> jax.Array:
        ids, weight = (unsplit(x, slice(None)) for x in (ids, weight))
        signed = as_signed(ids, -1)[0]  # a number that does not fit becomes -2
        found = rows_of(weight[None], signed.reshape(1, ids.size))
        return found.reshape(*ids.shape, weight.shape[1])

    return embedding
