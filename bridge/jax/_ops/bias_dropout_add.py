"""The public bias_dropout_add of JAX."""

from __future__ import annotations

from typing import Any

import jax

from bridge.catalogue.bias_dropout_add import bias_dropout_add as _declared
from bridge.catalogue.checks import probability
from bridge.jax._adapter.arguments import as_flag, refuse_traced
from bridge.jax._adapter.integers import refuse_no_seed
from bridge.ops.integers import check_integer

_NAME = "bias_dropout_add"
_bias_dropout_add = _declared.entry("jax").run


def bias_dropout_add(
    x: jax.typing.ArrayLike,
    bias: jax.typing.ArrayLike | None = None,
    residual: jax.typing.ArrayLike | None = None,
    *,
    p: float = 0.5,
    seed: Any = None,
    offset: Any = 0,
    training: bool = True,
) -> jax.Array:
    r"""residual + dropout(x + bias), in one pass over memory.

    y = residual + keep/(1 − p)·(x + bias). Each element is kept with the probability 1 − p. The
    result is computed in float32 for 16-bit types and in the widest type otherwise, and rounded
    once.

    Element i of x, counted in row-major order, takes word i mod 4 of Philox4x32-10 with the 64-bit
    key `seed` and the counter (i ÷ 4, offset), and is kept iff that word is at least round(p·2³²).
    So the same seed and offset give the same mask on every device and in `bridge.torch`. The mask
    is never stored: the backward pass draws it again. A dropped element counts as 0 even if it is
    NaN.

    The backward pass saves only the seed. One kernel computes the gradients of x and
    bias; the bias gradient is summed in float32 (float64 for float64) over a fixed tree and rounded
    once. The gradient of residual is the cotangent itself. Every transformation of JAX applies,
    derivatives of any order included. Donated memory is reused in place, as for `bias_gelu`.
    `jax.export` must be told about the kernel:
    `disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("bridge_program")]`.

    Under `jax.vmap` elements are counted from the start of each batch element: a seed that is not
    batched gives every batch element the same mask, as a loop would; a batched seed (or offset)
    gives each its own. Inside `jax.shard_map` elements are counted from the start of each shard:
    give each shard its own offset, for example with `jax.lax.axis_index`. Arrays that are sharded
    outside of it, under `jax.jit`, are counted as a whole.

    Args:
      x: `[..., d]`, float16, bfloat16, float32 or float64. A weakly typed array takes the dtype of
        the other arrays, as in jax.numpy.
      bias: `[d]`, of any of these dtypes, or None.
      residual: of the shape of x, of any of these dtypes, or None.
      p: the probability of dropping an element, from 0 to 1. It must be a number known at compile
        time; a new value compiles again.
      seed: an integer from −2⁶³ to 2⁶⁴ − 1 (negative numbers count modulo 2⁶⁴), a 0-dimensional
        integer array, or a key of `jax.random`. A new seed compiles nothing. `jax.random.key(n)`
        (and `jax.random.PRNGKey(n)`) is the seed n, for n below 2³². A key of another generator
        than threefry gives two random words as the seed. None is allowed only if no randomness is
        needed.
      offset: an integer or a 0-dimensional integer array that selects one of the 2⁶⁴ independent
        masks of this seed, for example the number of the step or of the layer. Use each (seed,
        offset) once.
      training: if False, y = residual + x + bias, for any p and seed. It must be known at compile
        time.

    Returns:
      An array of the shape of x. It has the dtype of residual if given, otherwise of x. Each
      gradient has the dtype of its argument.

    Raises:
      TypeError: if an array argument is no array, or has another dtype; if p is traced or no
        number; if training is traced or no bool; if seed or offset is no integer, or a required
        seed is None.
      ValueError: if bias is not `[d]`, residual has not the shape of x, p is not from 0 to 1, or
        seed or offset is an array with dimensions or needs more than 64 bits.

    Example:
      >>> bias_dropout_add(jnp.ones(8), p=0.5, seed=jax.random.key(0)).shape
      (8,)

    Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11.
    """
    p, seed, offset = _checked(p, seed, offset, training)
    return _bias_dropout_add((x, bias, residual, seed, offset), None, p)  # type: ignore[no-any-return]


def _checked(p: Any, seed: Any, offset: Any, training: Any) -> tuple[float, Any, Any]:
    """Returns p, the seed and the offset; 0 and None if nothing is dropped."""
    if type(p) is not float or not 0.0 <= p <= 1.0:
        refuse_traced(_NAME, "p", p)
        p = probability(_NAME, "p", p)
    if not as_flag(_NAME, "training", training) or p == 0.0:
        return 0.0, None, None
    refuse_no_seed(_NAME, seed)
    if offset is None:
        check_integer(_NAME, "offset", offset)  # raises
    return p, seed, None if type(offset) is int and offset == 0 else offset
