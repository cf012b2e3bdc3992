"""What autocast asks of functions: its dtype, as torch's matrix products have it, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_DEVICES = ("cpu", "cuda")  # meta has no autocast


def cast(*tensors: Any) -> tuple[Any, ...]:
    """The tensors in the dtype of autocast, where that is on for the first one's device.

    float64, integers and what is no tensor stay as they are.
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


def joined(arrays: Sequence[Tensor], dim: int) -> Tensor:
    """Arrays of one dtype, put together along a dimension.

    torch.cat refuses the 16-bit type which is not that of an autocast around it.
    """
    dtype, device = arrays[0].dtype, arrays[0].device.type
    if (
        dtype in (torch.float16, torch.bfloat16)
        and device in _DEVICES
        and torch.is_autocast_enabled(device)
        and dtype != torch.get_autocast_dtype(device)
    ):
        # Another autocast in it would not be in what torch.export keeps.
        return torch.cat([array.float() for array in arrays], dim).to(dtype)
    return torch.cat(arrays, dim)  # type: ignore[arg-type]
