"""The public gated units for PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from torch import Tensor

from bridge.catalogue import gates
from bridge.catalogue.gates import OPERANDS
from bridge.catalogue.quantization import Quantization
from bridge.ops.specialised import specialised
from bridge.torch._ops.quantized_entries import PublicGlu, SquaredReLU

_glu = PublicGlu("glu")
_squared_relu = SquaredReLU(gates.squared_relu)


@overload
def glu(
    gate: Tensor,
    up: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    activation: str = ...,
    weight: Tensor | None = ...,
    limit: float | None = ...,
    linear_offset: float = ...,
    interleaved: bool = ...,
    blocks: int = ...,
    quantize: None = None,
    out: Tensor | None = ...,
) -> Tensor: ...
@overload
def glu(
    gate: Tensor,
    up: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    activation: str = ...,
    weight: Tensor | None = ...,
    limit: float | None = ...,
    linear_offset: float = ...,
    interleaved: bool = ...,
    blocks: int = ...,
    quantize: Quantization,
) -> tuple[Tensor, Tensor]: ...
def glu(
    gate: Tensor,
    up: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    activation: str = "silu",
    weight: Tensor | None = None,
    limit: float | None = None,
    linear_offset: float = 0.0,
    interleaved: bool = False,
    blocks: int = 1,
    quantize: Quantization | None = None,
    out: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""activation(gate)·(up + linear_offset)·weight, in one pass over memory.

    16-bit tensors and float32 are computed in float32, float64 in float64, and rounded once; the
    same input gives the same bits in `bridge.jax`. Differentiable to any order, in reverse and
    forward mode. The arguments are the only residuals; the gradient of a packed tensor is written
    as one packed tensor.

    Args:
      gate: `[..., d]` of dtype float16, bfloat16, float32 or float64. Without `up`, a packed tensor
        `[..., 2d]`: the gate in the first half and `up` in the second.
      up: of gate's shape.
      bias: added first: `[d]` to the gate, or `[2d]` to the packed tensor, in its layout.
      activation: "silu", "gelu" (x·Φ(x)), "gelu_tanh", "gelu_sigmoid" (x·σ(1.702·x)), "relu" or
        "sigmoid".
      weight: a number for each row, `[...]` or `[..., 1]`, such as a router's probability.
      limit: c > 0: the gate is clamped to at most c and `up` to [−c, c]. NaN stays; a clamped
        element has the gradient 0.
      linear_offset: a finite number.
      interleaved: in a packed tensor the columns alternate, gate first.
      blocks: number of packed blocks, side by side, of a packed tensor. Each has a part of the gate
        and then the same part of `up`, as tensor parallelism stores them. A packed bias has the
        same layout.
      quantize: a `bridge.Quantization`: the result is rounded to its dtype and then quantised, as
        by `quantize`, in the same pass. Both results are then constants to derivatives. Not with
        several `blocks`.
      out: a tensor for the result, of its shape and dtype.

    Returns:
      `[..., d]` in the promoted dtype of all tensors; with `quantize`, values and scales.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype; limit or linear_offset is
        not a number.
      ValueError: a shape that does not fit gate's; an unknown activation; a limit that is not
        positive; an offset that is not finite; `interleaved` together with `up`; `blocks` together
        with either.

    Example:
      >>> glu(torch.tensor([[-1.0, 2.0]]), torch.tensor([[3.0, 5.0]]), activation="relu")
      tensor([[ 0., 10.]])

    Source: Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202.
    """
    operands = gate, up, bias, weight
    return _glu.run(operands, out, activation, limit, linear_offset, interleaved, blocks, quantize)  # type: ignore[no-any-return]


def _with(activation: str, name: str, words: str) -> Callable[..., Any]:
    entry, doc = PublicGlu(name), f'`glu` with `activation="{activation}"`: {words}.'
    entry.public = specialised(glu, OPERANDS, entry.run, name, doc, activation=activation)
    return entry.public


swiglu = _with("silu", "swiglu", "x·σ(x)")
geglu = _with("gelu", "geglu", "x·Φ(x)")
reglu = _with("relu", "reglu", "max(x, 0), whose derivative at 0 is 0")


@overload
def squared_relu(
    x: Tensor, weight: Tensor | None = None, *, quantize: None = None, out: Tensor | None = ...
) -> Tensor: ...
@overload
def squared_relu(
    x: Tensor, weight: Tensor | None = None, *, quantize: Quantization
) -> tuple[Tensor, Tensor]: ...
def squared_relu(
    x: Tensor,
    weight: Tensor | None = None,
    *,
    quantize: Quantization | None = None,
    out: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """max(x, 0)²·weight, in one pass over memory; NaN stays.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64.
      weight: a number for each row, `[...]` or `[..., 1]`.
      quantize: as for `glu`.
      out: a tensor for the result, of its shape and dtype.

    Returns:
      A tensor of x's shape in the promoted dtype of both; with `quantize`, values and scales.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype.
      ValueError: x is 0-dimensional; weight has another shape.

    Example:
      >>> squared_relu(torch.tensor([-1.0, 3.0]))
      tensor([0., 9.])

    Source: So et al., "Primer", arXiv:2109.08668.
    """
    return _squared_relu.run((x, weight), out, quantize)  # type: ignore[no-any-return]
