"""The public gated units of JAX."""

from __future__ import annotations

from collections.abc import Callable

import jax

from bridge.catalogue import gates
from bridge.catalogue.gates import OPERANDS, Glu, one_a_row
from bridge.jax._adapter import arrays
from bridge.ops.specialised import specialised

ArrayLike = jax.typing.ArrayLike


_glu = Glu(arrays, "glu")
_squared_relu = gates.squared_relu.entry("jax").run


def glu(
    gate: ArrayLike,
    up: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    activation: str = "silu",
    weight: ArrayLike | None = None,
    limit: float | None = None,
    linear_offset: float = 0.0,
    interleaved: bool = False,
    blocks: int = 1,
) -> jax.Array:
    r"""activation(gate)·(up + linear_offset)·weight, in one pass over memory.

    16-bit arrays and float32 are computed in float32, float64 in float64, and rounded once; the
    same input gives the same bits in `bridge.torch`. Differentiable to any order, in reverse and
    forward mode. The residuals for the backward pass are the arguments; the gradient of a packed
    array is one packed array.

    Args:
      gate: `[..., d]` of dtype float16, bfloat16, float32 or float64. Without `up`, a packed array
        `[..., 2d]`: the gate in the first half and `up` in the second.
      up: an array of gate's shape, or None.
      bias: added first: `[d]` to the gate, or `[2d]` to the packed array, in the same layout.
      activation: "silu", "gelu" (x·Φ(x)), "gelu_tanh", "gelu_sigmoid" (x·σ(1.702·x)), "relu" or
        "sigmoid".
      weight: one number per row, `[...]` or `[..., 1]`, such as the probability of a router.
      limit: c > 0: clips the gate to at most c and `up` to [−c, c]. NaN stays NaN; clipped values
        have the gradient 0.
      linear_offset: a finite number.
      interleaved: True if gate and `up` alternate in the packed array, gate first.
      blocks: the number of packed blocks side by side in the packed array, each with a part of the
        gate and then the same part of `up`, as in tensor parallelism. A packed bias has the same
        layout.

    Returns:
      `[..., d]` in the promoted dtype of all arrays.

    Raises:
      TypeError: an argument is no array or of another dtype; a number is none.
      ValueError: a shape that does not fit gate's; an unknown activation; a limit that is not
        positive; an offset that is not finite; `up` together with `interleaved` or `blocks`;
        `interleaved` together with `blocks`.

    Example:
      >>> glu(jnp.array([[-1.0, 2.0]]), jnp.array([[3.0, 5.0]]), activation="relu")
      Array([[ 0., 10.]], dtype=float32)

    Source: Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202.
    """
    operands = gate, up, bias, weight
    return _glu.run(operands, None, activation, limit, linear_offset, interleaved, blocks)  # type: ignore[no-any-return]


def _with(activation: str, name: str, words: str) -> Callable[..., jax.Array]:
    run, doc = Glu(arrays, name).run, f'`glu` with `activation="{activation}"`: {words}.'
    return specialised(glu, OPERANDS, run, name, doc, activation=activation)


swiglu = _with("silu", "swiglu", "x·σ(x)")
geglu = _with("gelu", "geglu", "x·Φ(x)")
reglu = _with("relu", "reglu", "max(x, 0), whose derivative at 0 is 0")


def squared_relu(x: ArrayLike, weight: ArrayLike | None = None) -> jax.Array:
    """max(x, 0)²·weight, in one pass over memory; NaN stays NaN.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64.
      weight: one number per row, `[...]` or `[..., 1]`.

    Returns:
      An array of x's shape in the promoted dtype of both.

    Raises:
      TypeError: an argument is no array or of another dtype.
      ValueError: x is 0-dimensional; weight has another shape.

    Example:
      >>> squared_relu(jnp.array([-1.0, 3.0]))
      Array([0., 9.], dtype=float32)

    Source: So et al., "Primer", arXiv:2109.08668.
    """
    return _squared_relu((x, one_a_row(x, weight)), None)  # type: ignore[no-any-return]
