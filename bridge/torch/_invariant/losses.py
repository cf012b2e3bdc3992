"""`torch.nn.functional.cross_entropy` by bridge's ops, with all its arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge.catalogue import cross_entropy as losses
from bridge.catalogue import framework_functions as forms
from bridge.torch._invariant.forms import REFUSED, cast
from bridge.torch._invariant.tensors import is_dense, obstacle, result_dtype
from bridge.torch._ops.labels import check_labels

_row_losses, _counted_losses = losses.row_losses.torch, losses.counted_losses.torch
_weighted_losses = forms.weighted_losses.torch
_probability_losses = forms.probability_losses.torch
_total, _mean, _weighted_mean = losses.total.torch, forms.mean.torch, forms.weighted_mean.torch
_OF_LABELS = (torch.int64, torch.uint8)


def cross_entropy(
    input: Any = None,
    target: Any = None,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: Any = -100,
    reduce: Any = None,
    reduction: Any = "mean",
    label_smoothing: Any = 0.0,
) -> Any:
    """Returns the loss in torch's dtype, or the reason why the call passes by, as in forms.py."""
    weights = [] if weight is None else [weight]
    if (reason := obstacle(input, *weights)) is not None:
        return reason
    if not isinstance(target, Tensor) or not is_dense(target):
        return "an operand is sparse, nested or no tensor"
    if size_average is not None or reduce is not None:
        return "size_average or reduce is given"
    if reduction not in losses.REDUCTIONS or not isinstance(ignore_index, int):
        return REFUSED
    if not isinstance(label_smoothing, (int, float)) or not 0 <= label_smoothing <= 1:
        return REFUSED
    if input.ndim == 0 or target.device != input.device:
        return REFUSED
    dim = 0 if input.ndim == 1 else 1
    if not (columns := input.shape[dim]):
        return "the rows are empty"
    if weight is not None:
        if tuple(weight.shape) != (columns,):
            return REFUSED
        if weight.requires_grad:
            return "weight requires a gradient"
    rows = input if dim == input.ndim - 1 else input.movedim(dim, -1)
    smoothing = float(label_smoothing)
    if tuple(target.shape) == tuple(input.shape):
        return _of_probabilities(
            input, rows, target, weights, dim, ignore_index, reduction, smoothing
        )
    if target.dtype not in _OF_LABELS or tuple(target.shape) != tuple(rows.shape[:-1]):
        return REFUSED
    dtype = result_dtype("cross_entropy", (input, *weights))
    if dtype is None:
        return REFUSED
    try:
        check_labels("cross_entropy", target, input, columns, ignore_index)
    except ValueError:
        return REFUSED
    if weight is not None:
        found, counts = _weighted_losses(
            rows, weight, target, ignore_index=ignore_index, label_smoothing=smoothing
        )
    elif reduction == "mean":
        found, counts = _counted_losses(
            rows, target, ignore_index=ignore_index, label_smoothing=smoothing
        )
    else:
        found = _row_losses(rows, target, ignore_index=ignore_index, label_smoothing=smoothing)
    if reduction == "mean":
        return cast(_weighted_mean(found.flatten(), counts.flatten()), dtype)
    return cast(found if reduction == "none" else _total(found.flatten()), dtype)


def _of_probabilities(
    input: Tensor,
    rows: Tensor,
    target: Tensor,
    weights: list[Tensor],
    dim: int,
    ignore_index: int,
    reduction: str,
    smoothing: float,
) -> Any:
    if (reason := obstacle(target)) is not None:
        return reason
    if ignore_index >= 0:
        return REFUSED
    dtype = result_dtype("cross_entropy of probabilities", (input, target, *weights))
    if dtype is None:
        return REFUSED
    if dim != input.ndim - 1:
        target = target.movedim(dim, -1)
    found = _probability_losses(rows, target, *weights, label_smoothing=smoothing)
    if reduction == "mean":
        return cast(_mean(found.flatten()), dtype)
    return cast(found if reduction == "none" else _total(found.flatten()), dtype)
