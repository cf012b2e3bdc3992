"""Logarithms of softmax, for JAX."""

from __future__ import annotations

import jax
import numpy as np

from bridge.catalogue import log_probs
from bridge.jax._ops.labels import check_labels

ArrayLike = jax.typing.ArrayLike


_log_softmax, _logsumexp, _token_log_probs = (
    op.entry("jax").run
    for op in (log_probs.log_softmax, log_probs.logsumexp, log_probs.token_log_probs)
)


def log_softmax(x: ArrayLike, scale: float = 1.0) -> jax.Array:
    r"""scale·x − log Σ exp(scale·x) over the last dimension, without overflow.

    16-bit arrays and float32 are computed in float32, float64 in float64, and rounded once. The
    bits of a row depend on that row alone, and are the same in `bridge.torch`. Every transformation
    of JAX applies, derivatives of any order included. The residuals for the backward pass are x and
    one number per row.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64, of any strides.
      scale: a finite number, known at compile time.

    Returns:
      An array of x's shape and dtype. In a row of −∞, or with +∞ or NaN, each element
      is NaN or −∞.

    Raises:
      TypeError: an argument is no array or of another dtype; scale is traced or no real number.
      ValueError: x is 0-dimensional; scale is not finite.

    Example:
      >>> log_softmax(jnp.zeros((1, 2)))
      Array([[-0.6931472, -0.6931472]], dtype=float32)
    """
    return _log_softmax((x,), None, scale)  # type: ignore[no-any-return]


def logsumexp(x: ArrayLike, scale: float = 1.0) -> jax.Array:
    r"""log Σ exp(scale·x) over the last dimension, without overflow.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64, of any strides.
      scale: a finite number, known at compile time.

    Returns:
      `[...]` in float32, for float64 in float64; −∞ for a row of −∞.

    Raises:
      TypeError, ValueError: as for `log_softmax`.

    Example:
      >>> logsumexp(jnp.zeros((1, 2)))
      Array([0.6931472], dtype=float32)
    """
    return _logsumexp((x,), None, scale)  # type: ignore[no-any-return]


def token_log_probs(logits: ArrayLike, labels: ArrayLike, *, scale: float = 1.0) -> jax.Array:
    r"""scale·logits[label] − log Σ exp(scale·logits): the log-probability of each row's label.

    The logits are read once; no array of their size is made. The bits of a row depend on that row
    alone, not on its batch: training and inference compute the same values.

    Args:
      logits: `[..., V]` of dtype float16, bfloat16, float32 or float64, of any strides.
      labels: `[...]` of any integer dtype.
      scale: a finite number, known at compile time, such as the inverse of the temperature.

    Returns:
      `[...]` in float32, for float64 in float64. NaN if the label is out of range and could not be
      checked before the call: on a GPU and under transforms.

    Raises:
      TypeError: an argument is no array or of another dtype; scale is traced or no real number.
      ValueError: shapes that do not fit; scale is not finite; a label out of range.

    Example:
      >>> token_log_probs(jnp.zeros((2, 4)), jnp.array([0, 3]))
      Array([-1.3862944, -1.3862944], dtype=float32)
    """
    results = _token_log_probs((logits, labels), None, scale)
    check_labels("token_log_probs", labels, logits, np.shape(logits)[-1])
    return results  # type: ignore[no-any-return]
