"""The norms over several trailing dimensions, in the dtype of the input."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._ops.norms import layer_norm, rms_norm


def layer_norm_over(
    shape: int | Sequence[int], x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """`layer_norm` over trailing dimensions of this shape, in the promoted dtype of all tensors."""
    if type(x) is not Tensor and is_overridden(given := (x, weight, bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    sizes = sizes_of(shape)
    x, weight, bias = _in_one("layer_norm", sizes, x=x, weight=weight, bias=bias)
    return _apart(layer_norm(x, weight, bias, eps=eps), sizes)


def rms_norm_over(
    shape: int | Sequence[int], x: Tensor, weight: Tensor | None, eps: float
) -> Tensor:
    """`rms_norm` over trailing dimensions of this shape, in the promoted dtype of both tensors."""
    if type(x) is not Tensor and is_overridden(given := (x, weight)):
        return hand_over(given)  # type: ignore[no-any-return]
    sizes = sizes_of(shape)
    x, weight = _in_one("rms_norm", sizes, x=x, weight=weight)
    return _apart(rms_norm(x, weight, eps=eps), sizes)


def sizes_of(shape: int | Sequence[int]) -> tuple[int, ...]:
    """Returns a normalized_shape, a number or several as in the originals, as a tuple."""
    sizes = (shape,) if isinstance(shape, numbers.Integral) else tuple(shape)  # type: ignore[arg-type]
    if not sizes:
        raise ValueError("normalized_shape is empty, expected the sizes of trailing dimensions")
    return sizes  # type: ignore[return-value]


def _in_one(function: str, sizes: tuple[int, ...], x: Any, **rows: Any) -> list[Any]:
    """Flattens the trailing dimensions, of these sizes, of all tensors into one."""
    given = {"x": x, **rows}
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor) or tensor.is_nested:
            continue  # the op refuses it with its own message, unless it is None
        found = tuple(tensor.shape[-len(sizes) :]) if name == "x" else tuple(tensor.shape)
        if found != sizes:
            raise ValueError(
                f"{function}: {name} has shape {list(tensor.shape)}, expected {list(sizes)}"
                f"{' in the last dimensions' if name == 'x' else ''}"
            )
        if len(sizes) > 1:
            given[name] = tensor.flatten(-len(sizes))
    return list(given.values())


def _apart(y: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return y.unflatten(-1, sizes) if len(sizes) > 1 else y
