"""The public gated units of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import jax

from bridge.catalogue import gates
from bridge.catalogue.gates import OPERANDS, Glu, one_a_row
from bridge.catalogue.quantization import Quantization
from bridge.catalogue.quantized_gates import QuantizedGates
from bridge.jax._adapter import arrays
from bridge.ops.specialised import specialised

ArrayLike = jax.typing.ArrayLike


class _PublicGlu:
    """`glu` under a public name, with `quantize`."""

    def __init__(self, name: str) -> None:
        self.name, self._plain = name, Glu(arrays, name)
        self._quantized = QuantizedGates(arrays, name)

    def run(self, operands: tuple[Any, ...], out: Any, *values: Any) -> Any:
        *static, interleaved, blocks, quantize = values
        if quantize is None:
            return self._plain.run(operands, out, *values[:-1])
        named = dict(zip(OPERANDS, operands, strict=True))
        operands = arrays.checked(self.name, 1, **named)
        return self._quantized.glu(operands, quantize, tuple(static), interleaved, blocks)


_glu = _PublicGlu("glu")
_quantized_relu = QuantizedGates(arrays, "squared_relu")
_squared_relu = gates.squared_relu.entry("jax").run


@overload
def glu(
    gate: ArrayLike,
    up: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    activation: str = ...,
    weight: ArrayLike | None = ...,
    limit: float | None = ...,
    linear_offset: float = ...,
    interleaved: bool = ...,
    blocks: int = ...,
    quantize: None = None,
) -> jax.Array: ...
@overload
def glu(
    gate: ArrayLike,
    up: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    activation: str = ...,
    weight: ArrayLike | None = ...,
    limit: float | None = ...,
    linear_offset: float = ...,
    interleaved: bool = ...,
    blocks: int = ...,
    quantize: Quantization,
) -> tuple[jax.Array, jax.Array]: ...
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
    quantize: Quantization | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
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
      quantize: a `bridge.Quantization`: the result is rounded to its dtype and then quantised, as
        by `quantize`, in the same pass. Both results are then constants to derivatives. Not with
        several `blocks`.

    Returns:
      `[..., d]` in the promoted dtype of all arrays; with `quantize`, values and scales.

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
    return _glu.run(operands, None, activation, limit, linear_offset, interleaved, blocks, quantize)  # type: ignore[no-any-return]


def _with(activation: str, name: str, words: str) -> Callable[..., Any]:
    run, doc = _PublicGlu(name).run, f'`glu` with `activation="{activation}"`: {words}.'
    return specialised(glu, OPERANDS, run, name, doc, activation=activation)


swiglu = _with("silu", "swiglu", "x·σ(x)")
geglu = _with("gelu", "geglu", "x·Φ(x)")
reglu = _with("relu", "reglu", "max(x, 0), whose derivative at 0 is 0")


@overload
def squared_relu(
    x: ArrayLike, weight: ArrayLike | None = None, *, quantize: None = None
) -> jax.Array: ...
@overload
def squared_relu(
    x: ArrayLike, weight: ArrayLike | None = None, *, quantize: Quantization
) -> tuple[jax.Array, jax.Array]: ...
def squared_relu(
    x: ArrayLike, weight: ArrayLike | None = None, *, quantize: Quantization | None = None
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """max(x, 0)²·weight, in one pass over memory; NaN stays NaN.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64.
      weight: one number per row, `[...]` or `[..., 1]`.
      quantize: as for `glu`.

    Returns:
      An array of x's shape in the promoted dtype of both; with `quantize`, values and scales.

    Raises:
      TypeError: an argument is no array or of another dtype.
      ValueError: x is 0-dimensional; weight has another shape.

    Example:
      >>> squared_relu(jnp.array([-1.0, 3.0]))
      Array([0., 9.], dtype=float32)

    Source: So et al., "Primer", arXiv:2109.08668.
    """
    if quantize is not None:
        x, weight = arrays.checked("squared_relu", 1, x=x, weight=weight)
        return _quantized_relu.squared_relu(x, weight, quantize)
    return _squared_relu((x, one_a_row(x, weight)), None)  # type: ignore[no-any-return]
