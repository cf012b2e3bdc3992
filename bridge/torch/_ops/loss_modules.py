"""Losses as modules, with the constructors of `torch.nn`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge.torch._adapter.checks import check_tensors
from bridge.torch._ops.cross_entropy import cross_entropy


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss` for labels, by `cross_entropy`.

    The loss of 16-bit logits is float32, and a mean in which every label is ignored is 0, not NaN.

    Args:
      weight: None: classes have no weights.
      size_average, reduce: as in torch, where `reduction` has taken their place.
      ignore_index, reduction, label_smoothing: as for `cross_entropy`.
      z_loss, softcap: as there.

    Raises:
      ValueError: weight is given.

    Example:
      >>> CrossEntropyLoss()(torch.zeros(2, 4), torch.tensor([0, 3]))
      tensor(1.3863)
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        z_loss: float = 0.0,
        softcap: float | None = None,
    ) -> None:
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        if weight is not None:
            raise ValueError("CrossEntropyLoss: weight is given, expected None")
        self.z_loss, self.softcap = z_loss, softcap

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of logits `[C]`, `[N, C]` or `[N, C, ...]` and labels without that dimension."""
        check_tensors("CrossEntropyLoss", required=2, input=input, target=target)
        return cross_entropy(
            input.movedim(1, -1) if input.ndim > 2 else input,
            target,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
            softcap=self.softcap,
        )
