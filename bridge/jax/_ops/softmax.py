"""The public softmax functions of JAX."""

from __future__ import annotations

from typing import Any

import jax

from bridge.catalogue.softmax import MASK_EXPECTED, check_scale, forward_params
from bridge.jax._adapter import arrays
from bridge.jax._adapter.arguments import as_array_like, as_arrays, compiled_for, refuse_traced
from bridge.jax._adapter.avals import spec_of
from bridge.jax._adapter.primitive import call
from bridge.jax._ops.sinks import softmax_with_sink
from bridge.lang.dtypes import OF_MASKS
from bridge.ops import PROGRAM

ArrayLike = jax.typing.ArrayLike


def scaled_softmax(x: ArrayLike, scale: float = 1.0, *, sink: ArrayLike | None = None) -> jax.Array:
    r"""softmax(scale·x) over the last dimension, in one pass over memory.

    y = exp(scale·x − max) / Σ exp(scale·x − max), computed in float32 for 16-bit types and in the
    type itself otherwise, and rounded once; `scale` is never rounded to the dtype of x. The sums
    are taken over a fixed tree, so the bits depend on neither the number of threads nor the device.

    A row whose elements are all −∞ gives zeros with zero gradient. A NaN or scale·x = +∞ makes its
    row NaN.

    A sink is one more logit that takes part in the sum and has no element in the result: y =
    exp(scale·x − m) / (Σ exp(scale·x − m) + exp(sink − m)), where m is the maximum of all logits.
    It is not scaled. The sink 0 is "softmax off by one"; −∞ is no sink. Its gradient is −y_sink·Σ
    g·y, summed over the dimensions along which the sink was repeated. With a sink the residuals for
    the backward pass are x and two numbers per row.

    The residual for the backward pass is y alone: dx = scale·y·(g − Σ g·y), one kernel. Every
    transformation of JAX applies, derivatives of any order included. Donated memory is reused in
    place: under `jax.jit(f, donate_argnums=0)` the result takes the memory of x if x is an
    argument of f itself and this is its last use in f. `jax.export` must be told about the kernels:
    `disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("bridge_program")]`.

    Args:
      x: `[..., d]`, float16, bfloat16, float32 or float64.
      scale: a finite number, known at compile time; a new value compiles again. If the scale is an
        array, multiply x by it instead.
      sink: a number, or an array of any of these dtypes: `[heads]`, one number for each index of
        x's third dimension from the end, or of a shape that broadcasts to `[..., 1]`.

    Returns:
      An array of the shape and dtype of x.

    Raises:
      TypeError: if x is no array or has another dtype, or scale is traced or no number.
      ValueError: if x is 0-dimensional, scale is not finite, or a sink does not broadcast.

    Example:
      >>> scaled_softmax(jnp.zeros((2, 4)), 0.5)[0]
      Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """
    return softmax("scaled_softmax", x, None, scale, sink)


def scaled_masked_softmax(
    x: ArrayLike, mask: ArrayLike, scale: float = 1.0, *, sink: ArrayLike | None = None
) -> jax.Array:
    r"""softmax(scale·x) over the elements of the last dimension that `mask` does not hide.

    `mask` is True where an element is masked OUT. The mask of `jax.nn.dot_product_attention` (and
    of PyTorch's `scaled_dot_product_attention`) has the opposite meaning: True marks elements that
    take part. Pass its `~mask`.

    Hidden elements are exactly 0 in y and in dx, whatever x holds there (NaN and ±∞ included). A
    row with every element hidden, or whose other elements are all −∞, gives zeros with zero
    gradient. The mask is read in its own shape, never expanded in memory, and is no residual of the
    backward pass. Otherwise as `scaled_softmax`.

    Under `jax.vmap`, a batched mask with an x that is not batched repeats x.

    Args:
      x: `[..., d]`, float16, bfloat16, float32 or float64.
      mask: bool, or uint8 with non-zero for True, of a shape that broadcasts to the shape of x.
      scale, sink: as for `scaled_softmax`.

    Returns:
      An array of the shape and dtype of x.

    Raises:
      TypeError: if x or mask is no array or has another dtype, or scale is traced or no number.
      ValueError: if x is 0-dimensional, mask does not broadcast to it, or scale is not finite.

    Example:
      >>> scaled_masked_softmax(jnp.zeros(3), jnp.asarray([False, False, True]))
      Array([0.5, 0.5, 0. ], dtype=float32)
    """
    name = "scaled_masked_softmax"
    return softmax(name, x, as_mask(name, mask), scale, sink)


def scaled_causal_softmax(
    x: ArrayLike, scale: float = 1.0, *, sink: ArrayLike | None = None
) -> jax.Array:
    r"""softmax(scale·x) over the keys that each query sees, in the last dimension.

    In `[..., queries, keys]`, query i sees key j iff j ≤ i + (keys − queries): the last query sees
    every key. A query before the first key sees none, and its row is zeros. Elements above that
    diagonal are never read; they are exactly 0 in y and in dx. Otherwise as `scaled_softmax`.

    Args:
      x: `[..., queries, keys]`, float16, bfloat16, float32 or float64.
      scale, sink: as for `scaled_softmax`.

    Returns:
      An array of the shape and dtype of x.

    Raises:
      TypeError: if x is no array or has another dtype, or scale is traced or no number.
      ValueError: if x has fewer than two dimensions, or scale is not finite.

    Example:
      >>> scaled_causal_softmax(jnp.zeros((2, 2)))
      Array([[1. , 0. ],
             [0.5, 0.5]], dtype=float32)
    """
    return softmax("scaled_causal_softmax", x, None, scale, sink, causal=True)


def as_mask(function: str, mask: Any) -> Any:
    """Returns the mask in a form that a jitted function accepts."""
    return as_array_like(function, "mask", mask, OF_MASKS, MASK_EXPECTED)


def softmax(
    function: str, x: Any, mask: Any, scale: Any, sink: Any = None, *, causal: bool = False
) -> jax.Array:
    """The common part of the public functions; `function` is the name in messages."""
    x = as_array_like(function, "x", x)
    scale = as_scale(function, scale)
    if sink is None:
        return _compiled(function, scale, causal)(x, mask)
    return softmax_with_sink(function, x, mask, scale, sink, causal)


def as_scale(function: str, scale: Any) -> float:
    """Returns the scale as a finite float, or raises."""
    refuse_traced(function, "scale", scale)
    return check_scale(function, scale)


@compiled_for
def _compiled(function: str, scale: float, causal: bool) -> Any:
    def run(x: Any, mask: Any) -> jax.Array:
        x, mask = as_arrays(x, mask)
        params = forward_params(function, scale, spec_of(x), spec_of(mask), causal=causal)
        given = (x, mask, arrays.last_columns(x) if causal else None)
        return call(PROGRAM, tuple([each for each in given if each is not None]), params)[0]

    run.__name__ = function
    return run
