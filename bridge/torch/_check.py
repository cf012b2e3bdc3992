"""Checks of what only torch tensors can be: layout, device, meta."""

from __future__ import annotations

from typing import Any

import torch


def check_tensors(function: str, **arguments: Any) -> None:
    """Raises TypeError or ValueError unless every argument is a dense tensor on one device.

    Arguments that are None pass, but not the first.
    """
    first_name, first = next(iter(arguments.items()))
    for name, tensor in arguments.items():
        if tensor is None and name != first_name:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{function}: {name} has type {type(tensor).__name__}, expected torch.Tensor"
            )
        if tensor.layout is not torch.strided or tensor.is_quantized:
            what = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
            raise TypeError(f"{function}: {name} is {what}, expected a dense tensor")
        if tensor.device != first.device:
            raise ValueError(
                f"{function}: {name} is on {tensor.device}, expected {first.device}, where "
                f"{first_name} is"
            )
