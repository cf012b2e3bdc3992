"""Inputs of vision ops in torch: their layout in memory, and the compositions of pools."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge.catalogue.vision.pooling import Laid, Pools, dimensions, laid
from bridge.catalogue.vision.taps import Taps
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.entry import fixed
from bridge.torch._compositions import functions
from bridge.torch._compositions.composition import Composition


def prepared(name: str, input: Any, size: Any) -> Laid:
    """Returns the input in its layout, after the checks."""
    check_tensors(name, 1, input=input)
    refuse_dtensor(name, input)
    count, has_images = dimensions(name, input, size)
    channel = int(has_images)
    own = laid(functions.moved, input, count, channel, channels_lie_last(input, channel))
    return Laid(own.x, own.inner, tuple(map(fixed, own.sizes)), own.restored)


def channels_lie_last(input: Tensor, channel: int) -> bool:
    """True if the channels lie side by side in memory."""
    return not input.is_contiguous() and input.movedim(channel, -1).is_contiguous()


def refuse_dtensor(name: str, input: Any) -> None:
    if type(input).__name__ == "DTensor":
        raise TypeError(
            f"{name}: input is a DTensor, expected an ordinary tensor: call it with each process's "
            "own images, x.to_local()"
        )


taps = Taps(functions, Composition)
pools = Pools(taps, torch.Tensor.detach)
