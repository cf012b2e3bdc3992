"""The softmax functions with a sink, for PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge.catalogue import sinks
from bridge.ops.scalars import real_number
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.entry import fixed
from bridge.torch._adapter.kernels import spec_of
from bridge.torch._adapter.overrides import hand_over, is_overridden

Sink = Tensor | float | None


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
    if not isinstance(sink, Tensor):
        number = real_number(function, argument, fixed(sink), "a tensor or a number")
        sink = torch.full(
            (),
            number,
            dtype=torch.float64 if x.dtype == torch.float64 else torch.float32,
            device=x.device,
        )
    check_tensors(function, 2, **{"x": x, argument: sink})
    return sinks.run_softmax(  # type: ignore[no-any-return]
        _WITH_SINK, function, x, mask, fixed(scale), sink, causal, argument=argument, out=out
    )


def last_columns(x: Any) -> Any:
    """Returns `[*rows]`, without a copy: the last column that each query sees.

    None for an x that the checks refuse.
    """
    if not isinstance(x, Tensor) or x.dim() < 2:
        return None
    queries, keys = x.shape[-2:]
    return torch.arange(keys - queries, keys, device=x.device).expand(x.shape[:-1])


# Make the declared functions now: a first call under torch.compile could not make them.
_WITH_SINK = sinks.Framework(
    sinks.softmax_with_sink.torch,
    sinks.spread.torch,
    spec_of,
    lambda x, shape, dtype: x.new_zeros(shape, dtype=getattr(torch, dtype)),
    last_columns,
)


def with_sink(
    function: str, x: Any, mask: Any, scale: Any, sink: Any, out: Any, **kind: Any
) -> Any:
    if is_overridden(given := (x, mask, sink, out)):
        return hand_over(given, depth=2)
    return softmax_with_sink(function, x, mask, scale, sink, out=out, **kind)
