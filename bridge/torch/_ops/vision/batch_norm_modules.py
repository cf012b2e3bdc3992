"""Batch norm as modules, with the constructors and state dicts of `torch.nn`."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

from typing import Any

import torch
from torch import Tensor

from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._ops.vision.batch_norm import batch_norm


def normalised(module: Any, name: str, input: Tensor) -> Tensor:
    """Computes a module of batch norm, and counts batches as torch's modules do."""
    momentum = 0.0 if module.momentum is None else module.momentum
    if module.training and module.track_running_stats and module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        if module.momentum is None:  # a cumulative average
            momentum = 1.0 / float(module.num_batches_tracked)
    has_statistics = module.running_mean is not None or module.running_var is not None
    are_kept = not module.training or module.track_running_stats
    return _checked(
        name,
        input,
        module.num_features,
        module.running_mean if are_kept else None,
        module.running_var if are_kept else None,
        module.weight,
        module.bias,
        (module.training or not has_statistics, momentum, module.eps),
    )


_DIMENSIONS = {"BatchNorm1d": (2, 3), "BatchNorm2d": (4,), "BatchNorm3d": (5,)}


def _checked(
    name: str,
    input: Tensor,
    features: int,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    options: tuple[Any, ...],
) -> Tensor:
    """Computes `batch_norm` after the check of the number of dimensions.

    A function, so that torch.fx records a call of it and does not read properties of the input.
    """
    if is_overridden((input,)):
        return hand_over((input,))  # type: ignore[no-any-return]
    check_tensors(name, 1, input=input)
    expected = _DIMENSIONS[name]
    if input.ndim not in expected:
        raise ValueError(
            f"{name}: input has shape {list(input.shape)}, expected "
            f"{' or '.join(map(str, expected))} dimensions"
        )
    if input.shape[1] != features:
        raise ValueError(
            f"{name}: input has shape {list(input.shape)}, expected {features} channels in "
            "dimension 1"
        )
    return batch_norm(input, running_mean, running_var, weight, bias, *options)


class BatchNorm1d(torch.nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` by `batch_norm`: the same constructor, state dict and statistics.

    Input is `[n, c]` or `[n, c, places]`.

    Example:
      >>> BatchNorm1d(8)(torch.randn(2, 8)).shape
      torch.Size([2, 8])
    """

    def forward(self, input: Tensor) -> Tensor:
        return normalised(self, "BatchNorm1d", input)


class BatchNorm2d(torch.nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d` by `batch_norm`: the same constructor, state dict and statistics.

    Input is `[n, c, height, width]`, contiguous or in the memory format channels last.

    Example:
      >>> BatchNorm2d(8)(torch.randn(2, 8, 4, 4)).shape
      torch.Size([2, 8, 4, 4])
    """

    def forward(self, input: Tensor) -> Tensor:
        return normalised(self, "BatchNorm2d", input)


class BatchNorm3d(torch.nn.BatchNorm3d):
    """`torch.nn.BatchNorm3d` by `batch_norm`: the same constructor, state dict and statistics.

    Input is `[n, c, depth, height, width]`.

    Example:
      >>> BatchNorm3d(8)(torch.randn(2, 8, 2, 4, 4)).shape
      torch.Size([2, 8, 2, 4, 4])
    """

    def forward(self, input: Tensor) -> Tensor:
        return normalised(self, "BatchNorm3d", input)
