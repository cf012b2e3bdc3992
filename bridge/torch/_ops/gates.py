"""The public gated units for PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from bridge.catalogue import gates
from bridge.catalogue.gates import FORMS, SPLITS, one_a_row, run_glu, run_glu_in_blocks
from bridge.declared import DeclaredOp
from bridge.torch._adapter.declared import declared_entry, declared_function
from bridge.torch._adapter.overrides import hand_over, is_overridden

# Make it now: a first call under torch.compile could not make it.
_squared_relu = gates.squared_relu.torch


def glu_entry(name: str, forms: Sequence[DeclaredOp] = FORMS) -> Any:
    """Returns the function that runs `glu`, in one of three forms, under a public function's name.

    Its attribute `in_blocks(operands, out, *static, blocks)` runs packed tensors of several blocks.
    """
    functions = tuple([declared_function(op.declaration, name) for op in forms])

    def resolver(function: Any) -> Callable[..., Any]:
        def resolve(*operands: Any, **static: Any) -> Any:
            return function.resolve(operands, *static.values())

        return resolve

    resolvers = tuple(map(resolver, functions))
    splits = tuple([declared_function(op.declaration, name) for op in SPLITS])

    def resolve(operands: tuple[Any, ...], *static: Any) -> Any:
        return run_glu(name, resolvers, splits, *operands, *static)  # type: ignore[arg-type]

    def in_blocks(operands: tuple[Any, ...], out: Any, *static: Any) -> Any:
        if is_overridden(given := (*operands, out)):
            return hand_over(given, depth=2, function=getattr(run, "public", None))
        return run_glu_in_blocks(name, functions, splits, *operands, *static, out=out)  # type: ignore[arg-type]

    run = declared_entry(name, resolve)
    run.in_blocks = in_blocks
    return run


_glu = glu_entry("glu")


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
    out: Tensor | None = None,
) -> Tensor:
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
      out: a tensor for the result, of its shape and dtype.

    Returns:
      `[..., d]` in the promoted dtype of all tensors.

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
    given = gate, up, bias, weight
    if type(blocks) is not int or blocks != 1:
        static = activation, limit, linear_offset, interleaved, blocks
        return _glu.in_blocks(given, out, *static)  # type: ignore[no-any-return]
    return _glu(given, out, activation, limit, linear_offset, interleaved)  # type: ignore[no-any-return]


def _named(name: str, activation: str, words: str) -> Callable[..., Tensor]:
    def run(
        gate: Tensor,
        up: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        weight: Tensor | None = None,
        limit: float | None = None,
        linear_offset: float = 0.0,
        interleaved: bool = False,
        blocks: int = 1,
        out: Tensor | None = None,
    ) -> Tensor:
        given = gate, up, bias, weight
        if type(blocks) is not int or blocks != 1:
            static = activation, limit, linear_offset, interleaved, blocks
            return entered.in_blocks(given, out, *static)  # type: ignore[no-any-return]
        return entered(given, out, activation, limit, linear_offset, interleaved)  # type: ignore[no-any-return]

    entered = glu_entry(name)
    entered.public = run
    run.__name__ = run.__qualname__ = name
    run.__doc__ = f'`glu` with `activation="{activation}"`: {words}.'
    return run


swiglu = _named("swiglu", "silu", "x·σ(x)")
geglu = _named("geglu", "gelu", "x·Φ(x)")
reglu = _named("reglu", "relu", "max(x, 0), whose derivative at 0 is 0")


def squared_relu(x: Tensor, weight: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
    """max(x, 0)²·weight, in one pass over memory; NaN stays.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64.
      weight: a number for each row, `[...]` or `[..., 1]`.
      out: a tensor for the result, of its shape and dtype.

    Returns:
      A tensor of x's shape in the promoted dtype of both.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype.
      ValueError: x is 0-dimensional; weight has another shape.

    Example:
      >>> squared_relu(torch.tensor([-1.0, 3.0]))
      tensor([0., 9.])

    Source: So et al., "Primer", arXiv:2109.08668.
    """
    if is_overridden(given := (x, weight, out)):
        return hand_over(given)  # type: ignore[no-any-return]
    return _squared_relu(x, one_a_row(x, weight), out=out)  # type: ignore[no-any-return]
