"""Attention for JAX."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from bridge.catalogue.attention import NAME, Attention
from bridge.catalogue.attention_arguments import Prepared, checked_options
from bridge.jax._adapter import arrays
from bridge.jax._adapter.arguments import as_array_likes, as_arrays, compiled_for
from bridge.jax._compositions import functions
from bridge.jax._compositions.composition import Composition
from bridge.jax._ops.sinks import as_sink, sinks
from bridge.jax._ops.softmax import as_mask

ArrayLike = jax.typing.ArrayLike


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    sink: ArrayLike | None = None,
    softcap: float | None = None,
) -> jax.Array:
    r"""softmax(scale·q kᵀ) v, a few rows of queries at a time: attention.

        y[i] = Σ_j p[i, j]·v[j],   p[i] = softmax_j(s[i, j]) over the keys that query i sees
        s[i, j] = scale·Σ_c q[i, c]·k[j, c], with a softcap c: c·tanh(s[i, j] / c)

    **The mask is True where a key is masked OUT**, as in `scaled_masked_softmax`. The mask of
    `jax.nn.dot_product_attention` has the opposite polarity: pass its `~mask`.

    Same bits in `bridge.torch` and `bridge.jax`, for values and all gradients. **The result of a
    query depends on that query and on the keys and values that it sees, in their order, and on
    nothing else**: a query that is decoded alone against a cache of n keys has the bits of position
    n of a whole sequence, in any batch. A key that a query does not see is absent from its sums,
    whatever k and v hold there (NaN included). A query that sees no key gives 0 and no gradient.
    Derivatives of gradients need finite numbers in hidden keys too.

    Scores and their softmax are computed in float32 (float64 for float64). p is rounded once to
    the dtype of q, for the product with v. Memory is proportional to a chunk of rows times the
    keys: the backward pass stores q, k, v, the sinks and the mask, and computes the probabilities
    of a chunk again.

    Every transformation of JAX applies: `jit`, `grad` of any order, `jvp`, `vmap`, `scan`,
    `checkpoint`, `shard_map` over batches and heads. Derivatives of gradients differentiate the
    parts one by one: they store the probabilities.

    Args:
      q: `[..., heads, queries, d]` of dtype float16, bfloat16, float32 or float64.
      k: `[..., key heads, keys, d]` of q's dtype. The number of key heads divides that of heads:
        query heads h·g to h·g + g − 1 share key head h, g = heads / key heads.
      v: `[..., key heads, keys, d of v]` of q's dtype.
      mask: bool, or uint8 with non-zero for True; broadcasts to `[..., heads, queries, keys]` from
        the right. It is read through its strides, never expanded in memory.
      causal: query i sees key j only if j ≤ i + (keys − queries): the last query sees every key.
      window: with `causal`, query i sees only the last `window` of these keys.
      scale: a finite number; None is 1/√d.
      sink: a number, or `[heads]` of any of these dtypes: one more logit of each query of a head,
        which takes part in the sum of the softmax and has no value. It is neither scaled nor
        capped.
      softcap: a positive number c, or None.

    Returns:
      `[..., heads, queries, d of v]` of q's dtype.

    Raises:
      TypeError: an argument is not an array of an allowed dtype, or the dtypes of q, k and v
        differ; an option has a wrong type, or is traced.
      ValueError: shapes that do not fit; heads that do not divide; a window without `causal`, or
        less than 1; a scale that is not finite; a softcap that is not positive.

    Source: Vaswani et al., "Attention Is All You Need", arXiv:1706.03762; grouped queries: Ainslie
    et al., arXiv:2305.13245; chunks that are computed again: Rabe and Staats, arXiv:2112.05682.

    Example:
      >>> attention(jnp.ones((1, 2, 4)), jnp.ones((1, 2, 4)), jnp.eye(2)[None], causal=True)
      Array([[[1. , 0. ],
              [0.5, 0.5]]], dtype=float32)
    """
    q, k, v = as_array_likes(NAME, 3, q=q, k=k, v=v)
    mask = None if mask is None else as_mask(NAME, mask)
    sink = None if sink is None else as_sink(NAME, sink, q)
    d = (np.shape(q) or (0,))[-1]
    options = checked_options(arrays, d, causal, window, scale, softcap)
    return _compiled(options)(q, k, v, mask, sink)  # type: ignore[no-any-return]


_attention = Attention(functions)
_prepared = Prepared(arrays, sinks)
_composition = Composition(_attention)


@compiled_for
def _compiled(options: Any) -> Any:
    def run(q: Any, k: Any, v: Any, mask: Any, sink: Any) -> jax.Array:
        operands = _prepared.operands(*as_arrays(q, k, v, mask, sink))
        return _composition.run(operands, options)

    run.__name__ = NAME
    return run
