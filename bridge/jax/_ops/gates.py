"""The public gated units of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from bridge.catalogue import gates
from bridge.catalogue.gates import FORMS, SPLITS, one_a_row, run_glu, run_glu_in_blocks
from bridge.jax._adapter.arguments import refuse_traced
from bridge.jax._adapter.declared import declared_function

ArrayLike = jax.typing.ArrayLike


def _entry(name: str) -> Callable[..., Any]:
    """Returns a function that runs `glu` under the name of a public function."""
    ops = [declared_function(op.declaration, name) for op in FORMS]
    splits = [declared_function(op.declaration, name) for op in SPLITS]

    def run(
        gate: Any,
        up: Any,
        bias: Any,
        weight: Any,
        activation: str,
        limit: Any,
        offset: Any,
        interleaved: Any,
        blocks: Any,
    ) -> Any:
        refuse_traced(name, "limit", limit)
        refuse_traced(name, "linear_offset", offset)
        refuse_traced(name, "interleaved", interleaved, "True or False")
        given = (gate, up, bias, weight, activation, limit, offset, interleaved)
        refuse_traced(name, "blocks", blocks)
        if type(blocks) is int and blocks == 1:
            return run_glu(name, ops, splits, *given)
        return run_glu_in_blocks(name, ops, splits, *given, blocks)

    return run


_glu = _entry("glu")


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
    static = (activation, limit, linear_offset, interleaved, blocks)
    return _glu(gate, up, bias, weight, *static)  # type: ignore[no-any-return]


def _named(name: str, activation: str, words: str) -> Callable[..., jax.Array]:
    def run(
        gate: ArrayLike,
        up: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        *,
        weight: ArrayLike | None = None,
        limit: float | None = None,
        linear_offset: float = 0.0,
        interleaved: bool = False,
        blocks: int = 1,
    ) -> jax.Array:
        static = (activation, limit, linear_offset, interleaved, blocks)
        return entered(gate, up, bias, weight, *static)  # type: ignore[no-any-return]

    entered = _entry(name)
    run.__name__ = run.__qualname__ = name
    run.__doc__ = f'`glu` with `activation="{activation}"`: {words}.'
    return run


swiglu = _named("swiglu", "silu", "x·σ(x)")
geglu = _named("geglu", "gelu", "x·Φ(x)")
reglu = _named("reglu", "relu", "max(x, 0), whose derivative at 0 is 0")


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
    return gates.squared_relu.jax(x, one_a_row(x, weight))  # type: ignore[no-any-return]
