"""Casts operands to the dtype of autocast, as torch does for matrix products."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_DEVICES = ("cpu", "cuda")  # meta has no autocast


def cast(*tensors: Any) -> tuple[Any, ...]:
    """Returns the tensors in autocast's dtype, if autocast is on for the first tensor's device.

    float64 tensors, integer tensors and other values stay as they are.
    """
    device = tensors[0].device.type if isinstance(tensors[0], Tensor) else ""
    if device not in _DEVICES or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        t.to(dtype)
        if isinstance(t, Tensor) and t.is_floating_point() and t.dtype != torch.float64
        else t
        for t in tensors
    )


def without_autocast(device: str) -> Any:
    """Returns a context in which autocast is off on the devices of a type."""
    return torch.autocast(device, enabled=False) if device in _DEVICES else contextlib.nullcontext()


def joined(arrays: Sequence[Tensor], dim: int) -> Tensor:
    """Concatenates arrays of one dtype along a dimension.

    Under autocast, torch.cat refuses a 16-bit dtype other than autocast's own.
    """
    dtype, device = arrays[0].dtype, arrays[0].device.type
    if (
        dtype in (torch.float16, torch.bfloat16)
        and device in _DEVICES
        and torch.is_autocast_enabled(device)
        and dtype != torch.get_autocast_dtype(device)
    ):
        # torch.export would lose a nested autocast, so the concatenation runs in float32.
        return torch.cat([array.float() for array in arrays], dim).to(dtype)
    return torch.cat(arrays, dim)  # type: ignore[arg-type]
