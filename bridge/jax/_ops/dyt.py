"""The public dyt and poly_norm of JAX."""

from __future__ import annotations

import jax

from bridge.catalogue.dyt import Dyt, PolyNorm
from bridge.jax._adapter import arrays

ArrayLike = jax.typing.ArrayLike

_dyt, _poly_norm = Dyt(arrays), PolyNorm(arrays)


def dyt(
    x: ArrayLike, alpha: ArrayLike, weight: ArrayLike | None = None, bias: ArrayLike | None = None
) -> jax.Array:
    r"""tanh(alpha·x)·weight + bias, with one number alpha for all elements, in one pass.

    16-bit arrays and float32 are computed in float32, float64 in float64, and rounded once. A row's
    bits depend on that row alone, and `bridge.torch` gives the same bits. Every transformation of
    JAX applies, derivatives of any order included. The backward pass saves the arguments alone, and
    one kernel computes all gradients. That of alpha adds the rows first, and then the columns.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64.
      alpha: one number, `[]` or `[1]`, of any of these dtypes.
      weight, bias: `[d]`, of any of these dtypes.

    Returns:
      An array of x's shape in the promoted dtype of all four.

    Raises:
      TypeError: an argument is no array or has another dtype.
      ValueError: x is 0-dimensional; a shape that does not fit.

    Example:
      >>> dyt(jnp.array([[-8.0, 0.0, 8.0]]), jnp.array(0.5), jnp.full((3,), 2.0))
      Array([[-1.9986587,  0.       ,  1.9986587]], dtype=float32)

    Source: Zhu et al., "Transformers without Normalization", arXiv:2503.10622.
    """
    x, alpha, weight, bias = arrays.checked("dyt", 2, x=x, alpha=alpha, weight=weight, bias=bias)
    return _dyt.run(x, alpha, weight, bias)  # type: ignore[no-any-return]


def poly_norm(
    x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, *, eps: float = 1e-6
) -> jax.Array:
    r"""weight₀·norm(x³) + weight₁·norm(x²) + weight₂·norm(x) + bias, in one pass.

    norm(u) is u/√(mean(u²) + eps) over the last dimension. 16-bit arrays and float32 are computed
    in float32, float64 in float64, and rounded once. A row's bits depend on that row alone, and
    `bridge.torch` gives the same bits. A norm whose sum of squares overflows is 0, for x³ from
    about |x| = 2.6·10⁶ in float32, and NaN where the power itself overflows. Every transformation
    of JAX applies, derivatives of any order included. The backward pass saves the arguments and
    three numbers per row.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64.
      weight: three numbers, `[3]`, of any of these dtypes: for x³, x² and x.
      bias: one number, `[]` or `[1]`, of any of these dtypes.
      eps: a positive finite number.

    Returns:
      An array of x's shape in the promoted dtype of all three.

    Raises:
      TypeError: an argument is no array or has another dtype; eps is traced or no number.
      ValueError: x is 0-dimensional; a shape that does not fit; eps is not positive or not finite.

    Example:
      >>> poly_norm(jnp.array([[1.0, -1.0]]), jnp.array([0.5, 0.25, 1.0]), eps=1e-12)
      Array([[ 1.75, -1.25]], dtype=float32)

    Source: Zhuo et al., "Polynomial Composition Activations", arXiv:2411.03884.
    """
    x, weight, bias = arrays.checked("poly_norm", 2, x=x, weight=weight, bias=bias)
    return _poly_norm.run(x, weight, bias, eps)  # type: ignore[no-any-return]
