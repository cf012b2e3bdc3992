"""Checks of labels on the host, before a kernel reads them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge import _native
from bridge._private.torch import functorch_active
from bridge.catalogue.labels import LABELS, check_range
from bridge.torch._adapter.autograd import is_watched


def check_ignored(function: str, labels: Any, ignore_index: int) -> None:
    """Torch's labels have up to 64 bits, as ignore_index has."""


def check_labels(
    function: str,
    labels: Any,
    rows: Any,
    columns: int,
    ignore_index: int | None = None,
    names: tuple[str, str] = LABELS,
) -> None:
    """Raises ValueError for a label out of range, if the labels can be read without waiting.

    Args:
      names: the words for the labels and for the columns in the message.
    """
    if torch.compiler.is_dynamo_compiling():
        return
    # This takes a tenth of the time of the code below, which finds the label for the message.
    is_plain = type(labels) is Tensor and labels.is_cpu and not functorch_active()
    is_plain = is_plain and labels.data_ptr() % labels.element_size() == 0
    if is_plain and _native.are_columns(labels, columns, ignore_index):
        return
    if is_watched((labels,)):
        return
    if labels.device.type != "cpu" or labels.numel() == 0:
        return
    is_unsigned, labels = labels.dtype is torch.uint64, labels.to(torch.int64)
    least, largest = _ends(labels)
    if is_unsigned and least < 0:  # the upper half of uint64: neither a column nor ignored
        check_range(function, least + 2**64, least + 2**64, columns, names)
    if ignore_index in (least, largest):  # otherwise no ignored label can matter
        labels = labels[labels != ignore_index]
        if labels.numel() == 0:
            return
        least, largest = _ends(labels)
    check_range(function, least, largest, columns, names)


def readable(function: str, labels: Any, ignore_index: Any) -> Any:
    """Returns uint64 labels as int64, with the upper half as an invalid label that is not ignored.

    Kernels would read the upper half as 2**63 - 1, which may be `ignore_index`. Other labels stay
    as they are.
    """
    if getattr(labels, "dtype", None) is not torch.uint64:
        return labels
    signed = labels.to(torch.int64)
    return torch.where(signed < 0, -2 if ignore_index == -1 else -1, signed)


def _ends(labels: Tensor) -> tuple[int, int]:
    least, largest = torch.aminmax(labels)
    return int(least), int(largest)
