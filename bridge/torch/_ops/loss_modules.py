"""Losses as modules, with the constructors of `torch.nn`."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

from typing import Any

import torch
from torch import Tensor

from bridge.torch._adapter.checks import checked_call
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._ops.cross_entropy import cross_entropy
from bridge.torch._ops.linear_cross_entropy import linear_cross_entropy


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss` for labels, by `cross_entropy`.

    The loss of 16-bit logits is float32. If every label is ignored, the mean is 0, not NaN.

    Args:
      weight: must be None: weights of classes are not supported.
      size_average, reduce: as in torch, which replaced them by `reduction`.
      ignore_index, reduction, label_smoothing: as for `cross_entropy`.
      z_loss, softcap: as for `cross_entropy`.

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
        """Returns the loss of logits `[C]`, `[N, C]` or `[N, C, ...]` and labels, without C."""
        checked_call("CrossEntropyLoss", input=input, target=target)
        return cross_entropy(
            classes_last(input),
            target,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
            softcap=self.softcap,
        )


def classes_last(input: Tensor) -> Tensor:
    """Moves the classes to the last dimension.

    A function, so that torch.fx records a call of it and does not read properties of the input.
    """
    if is_overridden(given := (input,)):
        return hand_over(given)  # type: ignore[no-any-return]
    return input.movedim(1, -1) if input.ndim > 2 else input


class LinearCrossEntropyLoss(torch.nn.Module):
    """A linear layer and the cross-entropy of its logits, by `linear_cross_entropy`.

    The constructor and the state dict are the same as for `torch.nn.LinearCrossEntropyLoss`, which
    is in torch from 2.13 on. The loss of 16-bit logits is float32. If every label is ignored, the
    mean is 0.

    Args:
      in_features: the size of the last dimension of the input.
      num_classes: V, the number of classes.
      out_features: must be (): each row has one label.
      bias: if true, the linear layer has a bias.
      device, dtype: the device and dtype of the layer's parameters.
      reduction, label_smoothing: as for `cross_entropy`.
      weight: must be None: weights of classes are not supported.
      ignore_index: as for `cross_entropy`; None is -100.
      options: must be None; `chunk` sets the number of rows computed at a time.
      chunk, z_loss, softcap, bits: as for `linear_cross_entropy`.

    Attributes:
      linear: the `torch.nn.Linear(in_features, num_classes, bias)`.

    Raises:
      ValueError: out_features, weight or options is given.

    Example:
      >>> loss = LinearCrossEntropyLoss(8, 100)
      >>> loss(torch.randn(2, 8), torch.tensor([0, 99])).shape
      torch.Size([])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: Any = None,
        chunk: int | None = None,
        z_loss: float = 0.0,
        softcap: float | None = None,
        bits: str | None = None,
    ) -> None:
        super().__init__()
        name = "LinearCrossEntropyLoss"
        if tuple(out_features) != ():
            raise ValueError(f"{name}: out_features is {tuple(out_features)}, expected ()")
        for argument, value in (("weight", weight), ("options", options)):
            if value is not None:
                raise ValueError(f"{name}: {argument} is given, expected None")
        self.num_classes, self.out_features = num_classes, ()
        self.reduction, self.label_smoothing = reduction, label_smoothing
        self.ignore_index = ignore_index
        self.chunk, self.z_loss, self.softcap, self.bits = chunk, z_loss, softcap, bits
        self.linear = torch.nn.Linear(in_features, num_classes, bias, device, dtype)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss of input `[..., in_features]` and labels `[...]`."""
        checked_call("LinearCrossEntropyLoss", input=input, target=target)
        return linear_cross_entropy(
            input,
            self.linear.weight,
            target,
            bias=self.linear.bias,
            chunk=self.chunk,
            reduction=self.reduction,
            ignore_index=-100 if self.ignore_index is None else self.ignore_index,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
            softcap=self.softcap,
            bits=self.bits,
        )

    def extra_repr(self) -> str:
        names = (
            "reduction",
            "ignore_index",
            "label_smoothing",
            "chunk",
            "z_loss",
            "softcap",
            "bits",
        )
        shown = {"in_features": self.linear.in_features, "num_classes": self.num_classes}
        shown |= {"bias": self.linear.bias is not None}
        shown |= {name: getattr(self, name) for name in names}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())
