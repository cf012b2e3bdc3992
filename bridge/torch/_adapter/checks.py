"""Checks of properties that only torch tensors have: layout, device, memory for results."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge.ops import Spec
from bridge.torch._adapter.kernels import spec_of
from bridge.torch._adapter.overrides import is_overridden

_DEVICES = ("cpu", "cuda", "meta")  # meta tensors have a shape and no values


def is_strided(tensor: Tensor) -> bool:
    """True if the layout is strided. Dynamo knows no layouts in a user's backward function."""
    if torch.compiler.is_dynamo_compiling():
        return not tensor.is_sparse
    return tensor.layout is torch.strided


def check_tensors(function: str, required: int = 1, /, **arguments: Any) -> None:
    """Raises TypeError or ValueError unless every argument is a dense tensor on one device.

    The first `required` arguments must be present; later ones may be None.
    """
    first_name, first = next(iter(arguments.items()))
    for i, (name, tensor) in enumerate(arguments.items()):
        if tensor is None and i >= required:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{function}: {name} has type {type(tensor).__name__}, expected torch.Tensor"
            )
        if tensor.is_nested:
            raise TypeError(f"{function}: {name} is nested, expected a dense tensor")
        if not is_strided(tensor) or tensor.is_quantized:
            what = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
            raise TypeError(f"{function}: {name} is {what}, expected a dense tensor")
        if tensor.device.type not in _DEVICES:
            raise ValueError(
                f"{function}: {name} is on {tensor.device}, expected the CPU, a CUDA device or meta"
            )
        if tensor.device != first.device:
            raise ValueError(
                f"{function}: {name} is on {tensor.device}, expected {first.device}, where "
                f"{first_name} is"
            )


def checked_call(module: str, /, **arguments: Any) -> bool:
    """Runs `check_tensors` for the call of a module, all of whose arguments are required.

    Returns:
      False if the call goes to `__torch_function__`: then nothing has been checked here.
    """
    tensors = tuple(arguments.values())
    # Nested tensors override every torch function; they are refused here.
    is_nested = any(isinstance(t, Tensor) and t.is_nested for t in tensors)
    if is_overridden(tensors) and not is_nested:
        return False
    check_tensors(module, len(arguments), **arguments)
    return True


def check_flags(function: str, /, **flags: Any) -> None:
    """Raises TypeError unless every flag has a truth value."""
    for name, flag in flags.items():
        try:
            bool(flag)
        except (TypeError, ValueError, RuntimeError):  # arrays of several elements
            raise TypeError(
                f"{function}: {name} has type {type(flag).__name__}, expected True or False"
            ) from None


def check_destination(function: str, first_name: str, first: Any, expected: Spec, out: Any) -> None:
    """Raises TypeError or ValueError unless `out` can take the only result of a call.

    Args:
      first: the call's first operand.
        expected: shape and dtype of the result.
    """
    check_tensors(function, 2, **{first_name: first}, out=out)
    found: Spec = spec_of(out)
    if found.dtype != expected.dtype:
        raise TypeError(f"{function}: out has dtype {found.dtype}, expected {expected.dtype}")
    if not found.has_shape(expected.shape):
        raise ValueError(
            f"{function}: out has shape {list(found.shape)}, expected {list(expected.shape)}"
        )
    if not torch.compiler.is_compiling() and out.is_neg():
        raise ValueError(f"{function}: out has its negative bit set; call resolve_neg() first")
