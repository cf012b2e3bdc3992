"""Tokens drawn from logits, for JAX."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge.catalogue.choices.sampling import NAME, check_offsets, checked
from bridge.jax._adapter import arrays
from bridge.jax._adapter.arguments import compiled_for
from bridge.jax._adapter.integers import as_integer, refuse_no_seed, words
from bridge.jax._adapter.selections import columns_of
from bridge.ops.selection import Selection

ArrayLike = jax.typing.ArrayLike


def seeded_sample(
    logits: ArrayLike,
    seed: Any,
    offset: Any,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> jax.Array:
    r"""A token for each row, drawn from softmax(logits/temperature), from a seed and an offset.

    The same logits, seed and offset give the same token in `bridge.torch`, on every device, and for
    any other rows beside it. The filters apply in the order top_k, top_p, min_p, each to what the
    one before has left. Columns count from the most probable one on, equal logits in the order of
    their columns.

    Column j takes word j mod 4 of Philox4x32-10 with the 64-bit key `seed` and the counter
    (j ÷ 4, offset), as u = (word + ½)/2³². The token is the column with the largest sum of
    logits/temperature and −log(−log u): Gumbel noise, so that its probability is that of the
    softmax. The arithmetic is float64 for every dtype. The sums of top_p are exact: probabilities
    count in units of 2⁻⁴⁰ of the largest. Tokens have no gradient.

    Under `jax.vmap` rows are counted from the start in each batch element.

    Args:
      logits: `[..., V]` of dtype float16, bfloat16, float32 or float64. Rows may be split over
        devices; columns are gathered.
      seed: an integer from −2⁶³ to 2⁶⁴ − 1, a 0-dimensional integer array, or a key of
        `jax.random`, as for `bias_dropout_add`.
      offset: of an integer dtype, `[...]`: a number for each row. Or one integer: then row i,
        counted in row-major order, has offset + i. Use each (seed, offset) once.
      temperature: from 0 on, known at compile time, as all that follow; 0 gives the first column
        with the largest logit.
      top_k: draw from so many most probable columns, from 1 to V.
      top_p: draw from the fewest most probable columns whose probabilities sum up to at least this
        part, above 0 and at most 1.
      min_p: draw from columns with at least this part of the largest probability, from 0 to 1.

    Returns:
      Columns `[...]` in int32; −1 for a row with NaN or with nothing but −∞.

    Raises:
      TypeError: logits are no array or have another dtype; a number is traced or none.
      ValueError: logits have no columns; offset has another shape; a number is out of range.

    Example:
      >>> seeded_sample(jnp.array([[0.0, 5.0, 1.0]]), 0, 0, temperature=0.0)
      Array([1], dtype=int32)

    Source: Gumbel noise, Maddison et al., arXiv:1411.0030; top_p, arXiv:1904.09751; min_p,
    arXiv:2407.01082.
    """
    (rows,) = arrays.checked(NAME, 1, logits=logits)
    spec = arrays.spec_of(rows)
    params = checked(arrays, spec, temperature, top_k, top_p, min_p)
    refuse_no_seed(NAME, seed)
    if getattr(offset, "shape", ()) and not hasattr(offset, "__jax_array__"):
        number: Any = offset if isinstance(offset, np.ndarray) else jnp.asarray(offset)
        check_offsets(arrays.spec_of(number), spec.shape[:-1])
        if isinstance(number, np.ndarray) and number.dtype.itemsize == 8:
            # Its words are taken here, because JAX keeps 32 bits while jax_enable_x64 is off.
            number = (np.stack([number & 0xFFFFFFFF, number >> 32]).astype(np.uint32),)
    else:
        number = as_integer(NAME, "offset", offset)
    return _compiled(params)(rows, as_integer(NAME, "seed", seed), number)  # type: ignore[no-any-return]


@compiled_for
def _compiled(params: Selection) -> Callable[..., jax.Array]:
    def seeded_sample(logits: jax.Array, seed: Any, offset: Any) -> jax.Array:
        rows = logits.shape[:-1]
        key = words(NAME, "seed", seed, is_alone=False)
        if isinstance(offset, tuple) and offset[0].ndim > 1:
            low, high = offset[0]
        elif not isinstance(offset, tuple) and offset.ndim:
            low, high = _halves(offset)
        else:
            first = words(NAME, "offset", offset)
            row = jnp.arange(math.prod(rows), dtype=np.uint32).reshape(rows)
            low = first[0] + row
            high = first[1] + (low < row).astype(np.uint32)
        parts = [*(jnp.broadcast_to(half, rows) for half in (key[0], key[1])), low, high]
        return columns_of(logits, jnp.stack(parts, -1), params)[..., 0]  # type: ignore[no-any-return]

    return seeded_sample


def _halves(numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the low and the high words of integers, with their sign."""
    if numbers.dtype.itemsize == 8:
        return numbers.astype(np.uint32), (numbers >> 32).astype(np.uint32)
    if jnp.issubdtype(numbers.dtype, jnp.signedinteger):
        low = numbers.astype(np.int32)
        return low.astype(np.uint32), (low >> 31).astype(np.uint32)
    return numbers.astype(np.uint32), jnp.zeros_like(numbers, np.uint32)
