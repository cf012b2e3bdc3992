"""The public softmax functions for PyTorch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bridge._private.torch import constant_to_dynamo
from bridge.catalogue.softmax import backward_params, forward_params
from bridge.catalogue.softmax_programs import text_of
from bridge.ops import PROGRAM
from bridge.torch._adapter.arrays import last_columns
from bridge.torch._adapter.checks import check_flags, check_tensors
from bridge.torch._adapter.entry import entry
from bridge.torch._adapter.kernels import spec_of
from bridge.torch._ops.sinks import Sink, with_sink


def scaled_softmax(
    x: Tensor, scale: float = 1.0, *, sink: Sink = None, out: Tensor | None = None
) -> Tensor:
    r"""softmax(scale·x) over the last dimension, in one pass over memory.

    y = exp(scale·x − max) / Σ exp(scale·x − max). 16-bit and float32 tensors are computed in
    float32, float64 in float64, and rounded once; `scale` is never rounded to the dtype of x. The
    tree of a sum depends on the length of the row alone: the same input gives the same bits in
    `bridge.jax`, on every device and with any number of threads. Rows may have any length.

    A row whose elements are all −∞ is all zeros with zero gradient; a NaN or scale·x = +∞ makes its
    row NaN.

    A sink is one more logit, which takes part in the sum and has no place in the result: y =
    exp(scale·x − m) / (Σ exp(scale·x − m) + exp(sink − m)), m the largest of them all. It is not
    scaled; 0 is "softmax off by one", −∞ is no sink. Its gradient is −y_sink·Σ g·y, summed over the
    dimensions along which the sink was broadcast. With a sink the residuals are x and two numbers
    for each row.

    Differentiable to any order, in reverse and forward mode, and under `torch.func`. The only
    residual is y: dx = scale·y·(g − Σ g·y), one kernel, which does not change g. Works under
    `torch.compile(fullgraph=True)`, `torch.export`, autocast (which does not change it) and CUDA
    graphs; never synchronises with the device.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64, on the CPU or a CUDA device.
        Rows need not be contiguous in memory (a slice of columns costs no copy).
      scale: a finite number. Multiply x by a scale that is a tensor.
      sink: a number, or a tensor of any of these dtypes: `[heads]`, one for each index of x's third
        dimension from the end, or of a shape that broadcasts to `[..., 1]`.
      out: a tensor for the result, of x's shape and dtype, of any strides. May be x itself; must
        not share memory with an argument otherwise.

    Returns:
      A contiguous tensor of x's shape and dtype (or `out`).

    Raises:
      TypeError: an argument is not a dense tensor, or has another dtype; scale is not a real
        number.
      ValueError: x is 0-dimensional; scale is not finite; a sink that does not broadcast; an `out`
        of another shape or device, or that overlaps an operand. Then nothing has been written.
      RuntimeError: `out` is given, and an argument requires a gradient.

    Example:
      >>> scaled_softmax(torch.zeros(2, 4), 0.5)[0]
      tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    if sink is None:
        return _scaled(scale, (x,), out)
    return with_sink("scaled_softmax", x, None, scale, sink, out)


def scaled_masked_softmax(
    x: Tensor, mask: Tensor, scale: float = 1.0, *, sink: Sink = None, out: Tensor | None = None
) -> Tensor:
    r"""softmax(scale·x) over the elements of the last dimension that `mask` does not hide.

    `mask` is True where an element is masked OUT. The mask of
    `torch.nn.functional.scaled_dot_product_attention` has the opposite polarity: True for elements
    that take part. Pass its `~mask`.

    Hidden elements are exactly 0 in y and in dx, even if x is NaN or ±∞ there. A row with every
    element hidden, or whose other elements are all −∞, is all zeros with zero gradient. The mask is
    read through its strides, never expanded in memory, and is not a residual. Everything else is as
    for `scaled_softmax`.

    Under `torch.func.vmap`, a batched mask with an x that is not batched repeats x.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64.
      mask: bool, or uint8 with non-zero for True, on the device of x. Its shape broadcasts to x's
        from the right: each of its dimensions is 1 or equal to x's.
      scale, sink, out: as for `scaled_softmax`.

    Returns:
      A contiguous tensor of x's shape and dtype (or `out`).

    Raises:
      TypeError, RuntimeError: as for `scaled_softmax`.
      ValueError: also for a mask that does not broadcast to x, or is on another device.

    Example:
      >>> scaled_masked_softmax(torch.zeros(3), torch.tensor([False, False, True]))
      tensor([0.5000, 0.5000, 0.0000])
    """
    if sink is None:
        return _masked(scale, (x, mask), out)
    return with_sink("scaled_masked_softmax", x, mask, scale, sink, out, masked=True)


def scaled_causal_softmax(
    x: Tensor, scale: float = 1.0, *, sink: Sink = None, out: Tensor | None = None
) -> Tensor:
    r"""softmax(scale·x) over the keys of the last dimension that a query sees.

    In `[..., queries, keys]`, query i sees key j iff j ≤ i + (keys − queries): the last query sees
    every key, and a query before the first key sees none and gives zeros. Elements above that
    diagonal are never read; they are exactly 0 in y and in dx. Everything else is as for
    `scaled_softmax`; one integer for each query is a residual too.

    Args:
      x: `[..., queries, keys]` of dtype float16, bfloat16, float32 or float64.
      scale, sink, out: as for `scaled_softmax`.

    Returns:
      A contiguous tensor of x's shape and dtype (or `out`).

    Raises:
      TypeError, RuntimeError: as for `scaled_softmax`.
      ValueError: x has fewer than two dimensions; else as for `scaled_softmax`.

    Example:
      >>> scaled_causal_softmax(torch.zeros(2, 2))
      tensor([[1.0000, 0.0000],
              [0.5000, 0.5000]])
    """
    if sink is None:
        return _causal(scale, (x, last_columns(x)), out)
    return with_sink("scaled_causal_softmax", x, None, scale, sink, out, causal=True)


def scaled_softmax_backward(
    g: Tensor, y: Tensor, scale: float = 1.0, *, causal: bool = False, out: Tensor | None = None
) -> Tensor:
    r"""scale·y·(g − Σ g·y): the cotangent of x, from the cotangent of y = softmax(scale·x).

    The backward pass of the functions above, for code that calls it itself. It needs no mask: where
    y is 0, the result is 0, even if g is NaN or infinite there. Differentiable towards g and y.

    Args:
      g: `[..., d]`, the cotangent of y, of the dtype of y.
      y: `[..., d]`, the result of `scaled_softmax`, `scaled_masked_softmax` or (with `causal`)
        `scaled_causal_softmax`.
      scale: the scale of that call.
      causal: do not read g and y where a query does not see the key.
      out: a tensor for the result, as for `scaled_softmax`; may be g or y itself.

    Returns:
      A contiguous tensor of y's shape and dtype (or `out`).

    Raises:
      TypeError, ValueError, RuntimeError: as for `scaled_softmax`, and if g is not of the shape,
        dtype and device of y.
    """
    if causal is not True and causal is not False:
        check_flags("scaled_softmax_backward", causal=causal)
    if causal:
        return _causal_backward(scale, (y, g, last_columns(y)), out)
    return _backward(scale, (y, g), out)


# Dynamo must not trace the tracing of a program: its text is a constant of the graph.
constant_to_dynamo(text_of)


def program_entry(
    function: str, names: tuple[str, ...], params: Any, *, causal: bool = False
) -> Any:
    """Returns run(scale, operands, out) for operands of these names, then last columns if `causal`.

    params(function, scale, *specs, causal=causal) checks them and returns the call's parameters.
    """

    def check(scale: Any, operands: tuple[Any, ...]) -> Any:
        given = dict(zip(names, operands, strict=False))  # without the last columns
        check_tensors(function, len(names), **given)
        return params(function, scale, *map(spec_of, given.values()), causal=causal)

    return entry(function, PROGRAM, float, check)


_scaled = program_entry("scaled_softmax", ("x",), forward_params)
_masked = program_entry("scaled_masked_softmax", ("x", "mask"), forward_params)
_causal = program_entry("scaled_causal_softmax", ("x",), forward_params, causal=True)
_backward, _causal_backward = (
    program_entry("scaled_softmax_backward", ("y", "g"), backward_params, causal=causal)
    for causal in (False, True)
)
