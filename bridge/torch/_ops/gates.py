"""The public gated units for PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

from torch import Tensor

from bridge.catalogue import gates
from bridge.catalogue.gates import FORMS, OPERANDS, Glu, one_a_row
from bridge.catalogue.quantization import Quantization
from bridge.catalogue.quantized_gates import QuantizedGates
from bridge.declared import DeclaredOp
from bridge.ops.specialised import specialised
from bridge.torch._adapter import arrays
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.declared import DeclaredEntry


class GluEntry(DeclaredEntry):
    """The path from a public function into `glu`, in one of three forms."""

    def __init__(self, name: str, forms: Sequence[DeclaredOp] = FORMS) -> None:
        super().__init__(forms[0], name)
        self._glu = Glu(arrays, name, forms)

    def resolve(self, operands: tuple[Any, ...], *values: Any) -> Any:
        *static, interleaved, _ = values
        entry, operands = self._glu.form(operands, interleaved)
        return entry.resolve(operands, *static)

    def composed(self, operands: tuple[Any, ...], out: Any, *values: Any) -> Any:
        blocks = values[-1]
        is_one = type(blocks) is int and blocks == 1
        return None if is_one else self._glu.run(operands, out, *values)


class _PublicGlu(GluEntry):
    """The same with `quantize`, the last of the static arguments."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._quantized = QuantizedGates(arrays, name)

    def resolve(self, operands: tuple[Any, ...], *values: Any) -> Any:
        return super().resolve(operands, *values[:-1])

    def composed(self, operands: tuple[Any, ...], out: Any, *values: Any) -> Any:
        *static, interleaved, blocks, quantize = values
        if quantize is None:
            return super().composed(operands, out, *values[:-1])
        check_tensors(self.name, 1, **dict(zip(OPERANDS, operands, strict=True)))
        _refuse_out(self.name, out)
        return self._quantized.glu(operands, quantize, tuple(static), interleaved, blocks)


def _refuse_out(name: str, out: Any) -> None:
    if out is not None:
        raise ValueError(f"{name}: out is given with quantize, expected one of the two")


class _SquaredReLU(DeclaredEntry):
    _quantized = QuantizedGates(arrays, "squared_relu")

    def composed(self, operands: tuple[Any, ...], out: Any, *values: Any) -> Any:
        if (quantize := values[0]) is None:
            return None
        check_tensors(self.name, 1, x=operands[0], weight=operands[1])
        _refuse_out(self.name, out)
        return self._quantized.squared_relu(operands[0], operands[1], quantize)

    def resolve(self, operands: tuple[Any, ...], *values: Any) -> Any:
        x, weight = operands
        return super().resolve((x, one_a_row(x, weight)), *values[1:])


_glu = _PublicGlu("glu")
_squared_relu = _SquaredReLU(gates.squared_relu)


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
    entry, doc = _PublicGlu(name), f'`glu` with `activation="{activation}"`: {words}.'
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
