"""Functions that run in autocast's dtype, as torch's matrix products do."""

from __future__ import annotations

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
