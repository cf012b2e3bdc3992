"""Attention in the form that Flax's modules call."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax.nnx.nn.dtypes import promote_dtype as flax_promote_dtype

from bridge.jax._ops.attention import attention

_NAME = "attention_fn"


def attention_fn(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: Any = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    module: Any = None,
    promote_dtype: Any = flax_promote_dtype,
    is_causal: bool = False,
) -> jax.Array:
    """`bridge.jax.attention` for `nnx.MultiHeadAttention(..., attention_fn=attention_fn)`.

    The signature and layout are those of `flax.nnx.dot_product_attention`. The original gives a
    query that sees no key the mean of all values; here it gets 0.

    Args:
      query: `[..., queries, heads, d]`.
      key: `[..., keys, key heads, d]`.
      value: `[..., keys, key heads, d of value]`.
      bias: None: scores have no bias.
      mask: broadcasts to `[..., heads, queries, keys]`, of any dtype; **0 hides a key**, as in
        Flax. `bridge.jax.attention` has the opposite polarity.
      dropout_rate: 0, unless `deterministic`.
      deterministic: no dropout.
      dtype, promote_dtype: the dtype of the operands, as in the original.
      module: None: no module gets the probabilities, because they are not stored.
      is_causal: query i sees keys 0 to i, as in the original.
      broadcast_dropout, dropout_rng, precision: without effect.

    Returns:
      `[..., queries, heads, d of value]`.

    Raises:
      ValueError: a bias, dropout, or a module; else as `bridge.jax.attention`.
      TypeError: as `bridge.jax.attention`.

    Example:
      >>> attend = nnx.MultiHeadAttention(2, 8, rngs=nnx.Rngs(0), attention_fn=attention_fn)
      >>> attend(jnp.ones((1, 3, 8)), decode=False).shape
      (1, 3, 8)
    """
    for name, given in (("bias", bias), ("module", module)):
        if given is not None:
            why = "scores have no bias" if name == "bias" else "the probabilities are not stored"
            raise ValueError(f"{_NAME}: {name} is given, expected None: {why}")
    if not deterministic and dropout_rate:  # a traced rate has no effect beside deterministic
        raise ValueError(
            f"{_NAME}: dropout_rate is {dropout_rate} and deterministic is False, expected no "
            "dropout of probabilities: pass deterministic=True, or drop out the result"
        )
    query, key, value = promote_dtype((query, key, value), dtype=dtype)
    hidden = None if mask is None else jnp.asarray(mask) == 0
    if is_causal and query.ndim > 2 and key.ndim > 2 and query.shape[-3] != key.shape[-3]:
        # The original aligns the first query and the first key; `causal` aligns the last ones.
        behind = jnp.arange(query.shape[-3])[:, None] < jnp.arange(key.shape[-3])
        hidden, is_causal = behind if hidden is None else hidden | behind, False
    q, k, v = (jnp.swapaxes(x, -2, -3) if x.ndim > 2 else x for x in (query, key, value))
    return jnp.swapaxes(attention(q, k, v, mask=hidden, causal=bool(is_causal)), -2, -3)
