"""The public bias_gelu of JAX."""

from __future__ import annotations

import jax

from bridge.catalogue import bias_gelu as _declared

_bias_gelu = _declared.bias_gelu.entry("jax").run


def bias_gelu(
    x: jax.typing.ArrayLike, bias: jax.typing.ArrayLike | None = None, *, approximate: str = "tanh"
) -> jax.Array:
    r"""GELU of `x + bias` in one pass over memory.

    With h = x + bias, computed in float32 for 16-bit types and in the type itself otherwise:

    - `"tanh"`: 0.5·h·(1 + tanh(√(2/π)·(h + 0.044715·h³)))
    - `"none"`: h·Φ(h), Φ the distribution function of the normal distribution
    - `"sigmoid"`: h·σ(1.702·h)

    h = −∞ gives −0 with derivative 0, +∞ gives +∞ with derivative 1, NaN gives NaN.

    The residuals for the backward pass are x and bias; one kernel computes both gradients. The bias
    gradient is summed in float32 (float64 for float64) over a fixed tree and rounded once, so its
    bits depend on neither the number of threads nor the device. Every transformation of JAX
    applies, derivatives of any order included.

    Donated memory is reused in place: under `jax.jit(f, donate_argnums=0)` the result takes the
    memory of x without a copy if x is an argument of f itself and this is its last use in f
    (otherwise XLA copies x first). `jax.export` must be told about the kernel:
    `disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("bridge_program")]`.

    Args:
      x: `[..., d]`, float16, bfloat16, float32 or float64.
      bias: `[d]`, of any of these dtypes, or None. A weakly typed argument takes the dtype of the
        other one, as in jax.numpy.
      approximate: the formula of GELU, see above.

    Returns:
      An array of the shape of x, in the promoted dtype of x and bias (float32 for float16 with
      bfloat16). Each gradient has the dtype of its argument.

    Raises:
      TypeError: if x or bias is no array, or has another dtype.
      ValueError: if bias is not `[d]`, or for an unknown `approximate`.

    Example:
      >>> x, bias = jnp.ones((4, 3), jnp.bfloat16), jnp.arange(3.0)
      >>> bias_gelu(x, bias).dtype
      dtype('float32')
      >>> jax.grad(lambda b: bias_gelu(x, b, approximate="none").sum())(bias).shape
      (3,)

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", arXiv:1606.08415.
    """
    return _bias_gelu((x, bias), None, approximate)  # type: ignore[no-any-return]
