"""The softmax functions with a sink, for PyTorch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bridge.catalogue.sinks import SoftmaxWithSink
from bridge.ops.scalars import LARGEST_FLOAT32, real_number
from bridge.torch._adapter import arrays
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.entry import fixed
from bridge.torch._adapter.overrides import hand_over, is_overridden

Sink = Tensor | float | None

sinks = SoftmaxWithSink(arrays)


def softmax_with_sink(
    function: str,
    x: Tensor,
    mask: Tensor | None,
    scale: Any,
    sink: Tensor | float,
    *,
    masked: bool = False,
    causal: bool = False,
    argument: str = "sink",
    out: Tensor | None = None,
) -> Tensor:
    """Computes the softmax with a sink, and with a mask or the causal rule if asked for."""
    check_tensors(function, 1 + masked, x=x, mask=mask)
    sink = as_sink(function, argument, sink, x)
    check_tensors(function, 2, **{"x": x, argument: sink})
    return sinks.run(function, x, mask, fixed(scale), sink, causal, argument, out)  # type: ignore[no-any-return]


def as_sink(function: str, argument: str, sink: Any, x: Tensor) -> Tensor:
    """Returns the sink as a tensor; a number is not rounded to x's dtype.

    Raises:
      TypeError: it is neither.
    """
    if isinstance(sink, Tensor):
        return sink
    number = real_number(function, argument, fixed(sink), "a tensor or a number")
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    if wide is torch.float32 and abs(number) > LARGEST_FLOAT32:  # torch.full would raise
        number = math.copysign(math.inf, number)
    return torch.full((), number, dtype=wide, device=x.device)


def with_sink(
    function: str, x: Any, mask: Any, scale: Any, sink: Any, out: Any, **kind: Any
) -> Any:
    if is_overridden(given := (x, mask, sink, out)):
        return hand_over(given, depth=2)
    return softmax_with_sink(function, x, mask, scale, sink, out=out, **kind)
