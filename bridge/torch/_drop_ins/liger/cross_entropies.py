"""The cross-entropies of Liger-Kernel: the files of its `ops`, `transformers` and `functional.py`.

Logits are not overwritten, a loss of 16-bit logits is float32, and a mean of no rows is 0.
"""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from bridge.catalogue.cross_entropy import options_of
from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._ops.cross_entropy import cross_entropy
from bridge.torch._ops.linear_cross_entropy import linear_cross_entropy
from bridge.torch._ops.log_probs import logsumexp


@dataclass
class CrossEntropyOutput:
    """The result of functions and modules if more than the loss is asked for.

    Attributes:
      loss: a scalar, or one number for each row.
      z_loss: the part of the loss that `lse_square_scale` adds.
      token_accuracy: the share, from 0 to 1, of the rows with the largest logit at the label, among
        the rows that are not ignored; without a reduction 0 or 1 for each row.
      predicted_tokens: the column of the largest logit of each row, −1 for an ignored row.
    """

    loss: Tensor
    z_loss: Tensor | None = None
    token_accuracy: Tensor | None = None
    predicted_tokens: Tensor | None = None


class LigerCrossEntropyFunction(Function, metaclass=DropIn):
    """`LigerCrossEntropyFunction.apply(_input, target, weight, ignore_index, ...)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        _input: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ) -> tuple[Tensor | None, ...]:
        """Returns the fields of `CrossEntropyOutput` for logits `[rows, V]`; None if not asked for.

        Raises:
          ValueError: there are class weights.
        """
        _refuse("LigerCrossEntropyFunction", weight=weight)
        loss = cross_entropy(
            _input,
            target,
            reduction=reduction,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            z_loss=lse_square_scale,
            softcap=softcap,
        )
        if not (return_z_loss or return_token_accuracy or return_predicted_tokens):
            return loss, None, None, None
        # Torch converts a number to the tensor's dtype: as uint8, -100 equals the label 156.
        target = target.to(torch.int64)
        is_kept = target != ignore_index

        def reduced(rows: Tensor) -> Tensor:
            if reduction == "none":
                return rows
            return rows.sum() / is_kept.sum().clamp(min=1) if reduction == "mean" else rows.sum()

        z_loss = accuracy = predicted = None
        if return_z_loss:
            wide = _input.to(torch.promote_types(_input.dtype, torch.float32))
            capped = _input if softcap is None else softcap * torch.tanh(wide / softcap)
            squares = lse_square_scale * logsumexp(capped).square()
            z_loss = reduced(torch.where(is_kept, squares, 0.0))
        if return_token_accuracy or return_predicted_tokens:
            predicted = torch.where(is_kept, _input.argmax(-1), -1)
        if return_token_accuracy:
            hits = (is_kept & (predicted == target)).float()
            accuracy = hits if reduction == "none" else hits.sum() / is_kept.sum().clamp(min=1)
        return loss, z_loss, accuracy, predicted if return_predicted_tokens else None


class LigerFusedLinearCrossEntropyFunction(Function, metaclass=DropIn):
    """`LigerFusedLinearCrossEntropyFunction.apply(_input, weight, target, bias, ...)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ce_weight: Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        accum_dtype: torch.dtype | None = None,
        use_token_scaling: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ) -> tuple[Tensor | None, ...]:
        """Returns the loss of `_input @ weight.T + bias`, and None three times.

        Gradients of 16-bit weights are summed in float32, whatever accum_dtype is.

        Raises:
          ValueError: ce_weight, use_token_scaling or a further result is asked for.
        """
        _refuse(
            "LigerFusedLinearCrossEntropyFunction",
            ce_weight=ce_weight,
            return_z_loss=return_z_loss,
            use_token_scaling=use_token_scaling,
            return_token_accuracy=return_token_accuracy,
            return_predicted_tokens=return_predicted_tokens,
        )
        loss = linear_cross_entropy(
            _input,
            weight,
            target,
            bias=bias,
            reduction=reduction,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            z_loss=lse_square_scale,
            softcap=softcap,
        )
        return loss, None, None, None


def liger_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    lse_square_scale: float = 0.0,
    softcap: float | None = None,
    return_z_loss: bool = False,
    return_token_accuracy: bool = False,
    return_predicted_tokens: bool = False,
) -> Any:
    """Returns the loss of `[rows, V]`, or a `CrossEntropyOutput` if more is asked for.

    Args:
      input: `[rows, V]`, of a floating-point dtype.
      target: `[rows]`, integers: the numbers of the labels.
      weight, size_average, reduce: only None.
      ignore_index: the label of rows without a loss.
      reduction: "mean", "sum" or "none".
      label_smoothing, lse_square_scale, softcap: `label_smoothing`, `z_loss` and `softcap` of
        `bridge.torch.cross_entropy`.
      return_z_loss, return_token_accuracy, return_predicted_tokens: True for this field of a
        `CrossEntropyOutput`.

    Raises:
      ValueError: weight, size_average or reduce is given.
    """
    # A False of size_average or reduce is given, too; `_refuse` alone would let it pass.
    legacy = {"size_average": size_average, "reduce": reduce}
    given = {name: None if value is None else True for name, value in legacy.items()}
    _refuse("liger_cross_entropy", weight=weight, **given)
    found = LigerCrossEntropyFunction.apply(
        input,
        target,
        None,
        ignore_index,
        lse_square_scale,
        label_smoothing,
        reduction,
        softcap,
        return_z_loss,
        return_token_accuracy,
        return_predicted_tokens,
    )
    if return_z_loss or return_token_accuracy or return_predicted_tokens:
        return CrossEntropyOutput(*found)  # type: ignore[arg-type]
    return found[0]


def liger_fused_linear_cross_entropy(
    input: Tensor, weight: Tensor, target: Tensor, *others: Any, **options: Any
) -> Tensor:
    """Returns the loss of `input @ weight.T + bias`.

    Args:
      input: `[rows, features]`; weight: `[V, features]`; target: `[rows]`.
      others, options: the further arguments of `LigerFusedLinearCrossEntropyFunction.apply`, in
        its order or by name.
    """
    found = LigerFusedLinearCrossEntropyFunction.apply(input, weight, target, *others, **options)
    return found[0]  # type: ignore[return-value]


class _LigerLoss(torch.nn.Module):
    """A loss that stores the arguments of its constructor as attributes."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._names = tuple(options)
        for name, value in options.items():
            setattr(self, name, value)
        names = ("reduction", "ignore_index", "label_smoothing", "lse_square_scale", "softcap")
        options_of(type(self).__name__, *[options[name] for name in names])  # raises

    @property
    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}


class LigerCrossEntropyLoss(_LigerLoss):
    """`liger_cross_entropy` as a module.

    Raises:
      TypeError, ValueError: an option that `bridge.torch.cross_entropy` refuses; there are class
        weights.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ) -> None:
        _refuse("LigerCrossEntropyLoss", weight=weight)
        super().__init__(
            weight=None,
            ignore_index=ignore_index,
            lse_square_scale=lse_square_scale,
            label_smoothing=label_smoothing,
            reduction=reduction,
            softcap=softcap,
            return_z_loss=return_z_loss,
            return_token_accuracy=return_token_accuracy,
            return_predicted_tokens=return_predicted_tokens,
        )

    def forward(self, _input: Tensor, target: Tensor) -> Any:
        """Returns `liger_cross_entropy(_input, target, ...)` with the module's options."""
        return liger_cross_entropy(_input, target, **self._options)


class LigerFusedLinearCrossEntropyLoss(_LigerLoss):
    """`liger_fused_linear_cross_entropy` as a module.

    Raises:
      TypeError, ValueError: as for `LigerCrossEntropyLoss`; an option that the function refuses.
    """

    def __init__(
        self,
        ce_weight: Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        accum_dtype: torch.dtype | None = None,
        use_token_scaling: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ) -> None:
        refused = {
            "ce_weight": ce_weight,
            "return_z_loss": return_z_loss,
            "use_token_scaling": use_token_scaling,
            "return_token_accuracy": return_token_accuracy,
            "return_predicted_tokens": return_predicted_tokens,
        }
        _refuse("LigerFusedLinearCrossEntropyLoss", **refused)
        super().__init__(
            **refused,
            ignore_index=ignore_index,
            lse_square_scale=lse_square_scale,
            label_smoothing=label_smoothing,
            reduction=reduction,
            softcap=softcap,
            accum_dtype=accum_dtype,
        )

    def forward(
        self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """Returns the loss of `_input @ lin_weight.T + bias`."""
        return liger_fused_linear_cross_entropy(_input, lin_weight, target, bias, **self._options)


def _refuse(function: str, **given: Any) -> None:
    """Raises ValueError for an argument that is given and has no equivalent here."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise ValueError(f"{function}: {name} is given, expected None")
