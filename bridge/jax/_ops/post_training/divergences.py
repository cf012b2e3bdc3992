"""The entropy of a softmax, and divergences between two of them, for JAX."""

from __future__ import annotations

import jax

from bridge.catalogue.post_training import divergences

ArrayLike = jax.typing.ArrayLike

_entropy = divergences.entropy.entry("jax").run
_kl_div = divergences.kl_div.entry("jax").run
_js_div = divergences.js_div.entry("jax").run
_tv_distance = divergences.tv_distance.entry("jax").run


def entropy(logits: ArrayLike, *, scale: float = 1.0) -> jax.Array:
    r"""−Σ p·log p over the last dimension, with p = softmax(scale·logits): the entropy in nats.

    Reads the logits once and makes no array of their size. A row's bits depend on that row alone,
    and `bridge.torch` gives the same bits. Differentiable to any order, in reverse and forward
    mode; the residuals are the logits and a few numbers for each row.

    Args:
      logits: `[..., V]` of dtype float16, bfloat16, float32 or float64, of any strides.
      scale: a finite number, known at compile time: one over the temperature.

    Returns:
      `[...]` in float32, for float64 in float64. A logit of −∞ adds 0. NaN for a row that
      is all −∞ or has +∞ or NaN; its gradient has NaN too.

    Raises:
      TypeError: logits are no array or have another dtype; scale is traced or no real number.
      ValueError: logits are 0-dimensional; scale is not finite.

    Example:
      >>> entropy(jnp.zeros((1, 2)))
      Array([0.6931472], dtype=float32)
    """
    return _entropy((logits,), None, scale)  # type: ignore[no-any-return]


def kl_div(p_logits: ArrayLike, q_logits: ArrayLike, *, temperature: float = 1.0) -> jax.Array:
    r"""Σ p·(log p − log q), with p and q the softmaxes of two rows of logits over a temperature.

    The Kullback-Leibler divergence KL(p ‖ q) in nats.
    Both rows are read once, and no array of their size is made. Otherwise as `entropy`.

    Args:
      p_logits, q_logits: `[..., V]` of one shape, each of dtype float16, bfloat16, float32 or
        float64, of any strides. Both have a gradient.
      temperature: a positive number, known at compile time, by which both are
        divided. The value is not multiplied by its square.

    Returns:
      `[...]` in float32, for float64 in float64. A column with p = 0 adds 0, and
      one with q = 0 below p > 0 makes it +∞: the gradient of q's logits is finite there, and the
      gradient of p's is not. NaN if a row of either is all −∞ or has +∞ or
      NaN; the gradients have NaN too.

    Raises:
      TypeError: an operand is no array or has another dtype; temperature is
        traced or no real number.
      ValueError: shapes that do not fit; an operand is 0-dimensional; temperature is out of
        range.

    Example:
      >>> kl_div(jnp.zeros((1, 2)), jnp.array([[0.0, -jnp.inf]]))
      Array([inf], dtype=float32)
    """
    return _kl_div((p_logits, q_logits), None, temperature)  # type: ignore[no-any-return]


def js_div(
    p_logits: ArrayLike, q_logits: ArrayLike, *, beta: float = 0.5, temperature: float = 1.0
) -> jax.Array:
    r"""β·KL(p ‖ m) + (1 − β)·KL(q ‖ m), with the mixture m = β·p + (1 − β)·q of two softmaxes.

    The generalised Jensen-Shannon divergence in nats (arXiv:2306.13649).
    Both rows are read once, and no array of their size is made. Otherwise as `entropy`.

    Args:
      p_logits, q_logits: `[..., V]` of one shape, each of dtype float16, bfloat16, float32 or
        float64, of any strides. Both have a gradient.
      beta: the weight of p in the mixture, above 0 and below 1, known at compile time. At both ends
        the value would be 0 for all rows: `js_div/beta` tends to KL(p ‖ q) for beta → 0.
      temperature: a positive number, known at compile time, by which both are
        divided. The value is not multiplied by its square.

    Returns:
      `[...]` in float32, for float64 in float64. A column with p = 0 or q = 0 adds
      a finite number. NaN if a row of either is all −∞ or has +∞ or NaN;
      the gradients have NaN too.

    Raises:
      TypeError: an operand is no array or has another dtype; beta or temperature is
        traced or no real number.
      ValueError: shapes that do not fit; an operand is 0-dimensional; beta or temperature is out of
        range.

    Example:
      >>> js_div(jnp.zeros((1, 2)), jnp.array([[0.0, -jnp.inf]]))
      Array([0.21576154], dtype=float32)
    """
    return _js_div((p_logits, q_logits), None, beta, temperature)  # type: ignore[no-any-return]


def tv_distance(p_logits: ArrayLike, q_logits: ArrayLike, *, temperature: float = 1.0) -> jax.Array:
    r"""½ Σ |p − q|, with p and q the softmaxes of two rows of logits over a temperature.

    The total variation distance, from 0 to 1.
    Both rows are read once, and no array of their size is made. Otherwise as `entropy`.

    Args:
      p_logits, q_logits: `[..., V]` of one shape, each of dtype float16, bfloat16, float32 or
        float64, of any strides. Both have a gradient.
      temperature: a positive number, known at compile time, by which both are
        divided. The value is not multiplied by its square.

    Returns:
      `[...]` in float32, for float64 in float64. Where p = q, |p − q| has the
      derivative 0. NaN if a row of either is all −∞ or has +∞ or NaN;
      the gradients have NaN too.

    Raises:
      TypeError: an operand is no array or has another dtype; temperature is
        traced or no real number.
      ValueError: shapes that do not fit; an operand is 0-dimensional; temperature is out of
        range.

    Example:
      >>> tv_distance(jnp.zeros((1, 2)), jnp.array([[0.0, -jnp.inf]]))
      Array([0.5], dtype=float32)
    """
    return _tv_distance((p_logits, q_logits), None, temperature)  # type: ignore[no-any-return]
