"""Cross-entropy under the names of Megatron-LM, apex and Liger-Kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge.torch._drop_ins.functions import DropIn
from bridge.torch._ops.cross_entropy import cross_entropy
from bridge.torch._ops.linear_cross_entropy import linear_cross_entropy
from bridge.torch._ops.log_probs import logsumexp


class _VocabParallelCrossEntropy(torch.autograd.Function, metaclass=DropIn):
    """Megatron-LM's function of this name: `megatron/core/fusions/fused_cross_entropy.py`."""

    @classmethod
    def apply(cls, vocab_parallel_logits: Tensor, target: Tensor, tp_group: Any) -> Tensor:  # type: ignore[override]
        """The loss of each row of logits that the ranks of `tp_group` share, in float32."""
        return vocab_parallel_cross_entropy(vocab_parallel_logits, target, 0.0, tp_group)


def fused_vocab_parallel_cross_entropy(
    vocab_parallel_logits: Tensor, target: Tensor, tp_group: Any
) -> Tensor:
    """The loss of each row of logits that the ranks of `tp_group` share, in float32.

    Args:
      vocab_parallel_logits: `[..., V / ranks]`; target: `[...]`, numbers of columns of the whole.
      tp_group: a process group; None, or one of a single rank, for whole rows.

    Source: `megatron/core/fusions/fused_cross_entropy.py` of Megatron-LM.
    """
    return vocab_parallel_cross_entropy(vocab_parallel_logits, target, 0.0, tp_group)


def vocab_parallel_cross_entropy(
    vocab_parallel_logits: Tensor,
    target: Tensor,
    label_smoothing: float = 0.0,
    tp_group: Any = None,
) -> Tensor:
    """The same with label smoothing, that of `megatron/core/tensor_parallel/cross_entropy.py`.

    It spreads ε·V/(V − 1) over all V columns, so that ε is what the others than the label get.
    """
    size = 1 if tp_group is None else tp_group.size()
    columns = vocab_parallel_logits.shape[-1] * size
    return cross_entropy(
        vocab_parallel_logits,
        target,
        reduction="none",
        label_smoothing=label_smoothing * columns / (columns - 1) if label_smoothing else 0.0,
        group=tp_group if size > 1 else None,
    )


class SoftmaxCrossEntropyLoss(torch.autograd.Function, metaclass=DropIn):
    """apex's function of this name: `apex/contrib/xentropy/softmax_xentropy.py`."""

    @classmethod
    def apply(  # type: ignore[override]
        cls,
        logits: Tensor,
        labels: Tensor,
        smoothing: float = 0.0,
        padding_idx: int = 0,
        half_to_float: bool = False,
    ) -> Tensor:
        """The loss of each row, 0 where the label is `padding_idx`.

        It has the dtype of the logits, and float32 for 16-bit ones with `half_to_float`.
        """
        losses = cross_entropy(
            logits,
            labels,
            reduction="none",
            ignore_index=padding_idx,
            label_smoothing=smoothing,
        )
        return losses if half_to_float else losses.to(logits.dtype)


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
    **others: Any,
) -> Any:
    """The loss of `[rows, V]`; with `return_z_loss` also the part that `lse_square_scale` adds.

    Source: `liger_kernel/transformers/functional.py` of Liger-Kernel.
    """
    _refuse(
        "liger_cross_entropy", weight=weight, size_average=size_average, reduce=reduce, **others
    )
    loss = cross_entropy(
        input,
        target,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        z_loss=lse_square_scale,
        softcap=softcap,
    )
    if not return_z_loss:
        return loss
    capped = input if softcap is None else softcap * torch.tanh(input / softcap)
    is_kept = target != ignore_index
    squares = torch.where(is_kept, lse_square_scale * logsumexp(capped).square(), 0.0)
    if reduction == "none":
        return loss, squares
    total = squares.sum()
    return loss, total / is_kept.sum().clamp(min=1) if reduction == "mean" else total


def liger_fused_linear_cross_entropy(
    input: Tensor,
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
    **others: Any,
) -> Tensor:
    """`linear_cross_entropy`. Gradients of 16-bit weights are always summed in float32.

    Source: `liger_kernel/transformers/functional.py` of Liger-Kernel.
    """
    del accum_dtype
    _refuse(
        "liger_fused_linear_cross_entropy",
        ce_weight=ce_weight,
        return_z_loss=return_z_loss,
        **others,
    )
    return linear_cross_entropy(
        input,
        weight,
        target,
        bias=bias,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        z_loss=lse_square_scale,
        softcap=softcap,
    )


class _LigerLoss(torch.nn.Module):
    """A loss that keeps what its constructor is told as attributes."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._names = tuple(options)
        for name, value in options.items():
            setattr(self, name, value)

    @property
    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}


class LigerCrossEntropyLoss(_LigerLoss):
    """Liger-Kernel's module: `liger_kernel/transformers/cross_entropy.py`."""

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        return_z_loss: bool = False,
        **others: Any,
    ) -> None:
        _refuse("LigerCrossEntropyLoss", weight=weight, **others)
        super().__init__(
            ignore_index=ignore_index,
            lse_square_scale=lse_square_scale,
            label_smoothing=label_smoothing,
            reduction=reduction,
            softcap=softcap,
            return_z_loss=return_z_loss,
        )

    def forward(self, _input: Tensor, target: Tensor) -> Any:
        """The loss, or the loss and its part of z-loss."""
        return liger_cross_entropy(_input, target, **self._options)


class LigerFusedLinearCrossEntropyLoss(_LigerLoss):
    """Liger-Kernel's module: `liger_kernel/transformers/fused_linear_cross_entropy.py`."""

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
        **others: Any,
    ) -> None:
        name = "LigerFusedLinearCrossEntropyLoss"
        _refuse(name, ce_weight=ce_weight, return_z_loss=return_z_loss, **others)
        super().__init__(
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
        """The loss of `_input @ lin_weight.T + bias`."""
        return liger_fused_linear_cross_entropy(_input, lin_weight, target, bias, **self._options)


def _refuse(function: str, **given: Any) -> None:
    """Raises ValueError for what there is no equivalent of."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise ValueError(f"{function}: {name} is given, expected None")
