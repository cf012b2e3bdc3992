"""Labels that can be looked at before a kernel reads them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge import _native
from bridge._private.torch import functorch_active
from bridge.catalogue.labels import check_range
from bridge.torch._adapter.autograd import is_watched


def check_labels(function: str, labels: Any, columns: int, ignore_index: int | None = None) -> None:
    """Raises ValueError for a label out of range, where nobody waits to see it."""
    if torch.compiler.is_dynamo_compiling():
        return
    # This takes a tenth of the time of what follows, which finds the label for the message.
    is_plain = type(labels) is Tensor and labels.is_cpu and not functorch_active()
    if is_plain and _native.are_columns(labels, columns, ignore_index):
        return
    if is_watched((labels,)):
        return
    if labels.device.type != "cpu" or labels.numel() == 0:
        return
    labels = labels.to(torch.int64)
    least, largest = _ends(labels)
    if ignore_index in (least, largest):  # only then something may be left out
        labels = labels[labels != ignore_index]
        if labels.numel() == 0:
            return
        least, largest = _ends(labels)
    check_range(function, least, largest, columns)


def _ends(labels: Tensor) -> tuple[int, int]:
    least, largest = torch.aminmax(labels)
    return int(least), int(largest)
