"""The largest numbers of each row, for JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from bridge.jax._adapter import arrays
from bridge.jax._adapter.arguments import compiled_for
from bridge.jax._ops.choices.functions import chosen, taken
from bridge.ops.selection import check_count, check_rows

ArrayLike = jax.typing.ArrayLike


def top_k(x: ArrayLike, k: int) -> tuple[jax.Array, jax.Array]:
    r"""The k largest numbers of each row in falling order, and their columns.

    Equal numbers come in the order of their columns, on every device, and zeros are equal. NaN is
    above all numbers; two NaN count as equal. A row's result depends on that row alone, and
    `bridge.torch` gives the same. The gradient of a chosen number goes to its place. The places of
    a row differ, so that nothing is added up. Every transformation of JAX applies, derivatives of
    any order included. Rows may be split over devices, without communication; columns are gathered.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64.
      k: an integer from 1 to 64, and at most d, known at compile time.

    Returns:
      Values `[..., k]` in x's dtype, and columns `[..., k]` in int32.

    Raises:
      TypeError: x is no array or of another dtype; k is traced or no integer.
      ValueError: x has no columns; k is out of range.

    Example:
      >>> top_k(jnp.array([[1.0, 3.0, 3.0, 2.0]]), 2)
      (Array([[3., 3.]], dtype=float32), Array([[1, 2]], dtype=int32))
    """
    (rows,) = arrays.checked("top_k", 1, x=x)
    spec = arrays.spec_of(rows)
    check_rows("top_k", "x", spec)
    k = arrays.known("top_k", "k", k, "an integer")
    return _compiled(check_count("top_k", "k", k, spec.shape[-1]))(rows)  # type: ignore[no-any-return]


@compiled_for
def _compiled(k: int) -> Callable[..., Any]:
    def top_k(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        columns = chosen(x, k)
        return taken(x, columns), columns

    return top_k
