"""Cross-entropy under the names of Megatron-LM and apex."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge.ops.scalars import real_number
from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._ops.cross_entropy import cross_entropy


class _VocabParallelCrossEntropy(torch.autograd.Function, metaclass=DropIn):
    """Megatron-LM's function of this name: `megatron/core/fusions/fused_cross_entropy.py`."""

    @staticmethod
    def apply(vocab_parallel_logits: Tensor, target: Tensor, tp_group: Any) -> Tensor:  # type: ignore[override]
        """Returns the loss of each row of logits split over the ranks of `tp_group`, in float32."""
        return vocab_parallel_cross_entropy(vocab_parallel_logits, target, 0.0, tp_group)


def fused_vocab_parallel_cross_entropy(
    vocab_parallel_logits: Tensor, target: Tensor, tp_group: Any
) -> Tensor:
    """Returns the loss of each row of logits split over the ranks of `tp_group`, in float32.

    Args:
      vocab_parallel_logits: `[..., V / ranks]`; target: `[...]`, numbers of columns of the whole.
      tp_group: a process group; None, or a group of one rank, for whole rows.

    Source: `megatron/core/fusions/fused_cross_entropy.py` of Megatron-LM.
    """
    return vocab_parallel_cross_entropy(vocab_parallel_logits, target, 0.0, tp_group)


def vocab_parallel_cross_entropy(
    vocab_parallel_logits: Tensor,
    target: Tensor,
    label_smoothing: float = 0.0,
    tp_group: Any = None,
) -> Tensor:
    """The same loss with the label smoothing of `megatron/core/tensor_parallel/cross_entropy.py`.

    The smoothing spreads ε·V/(V − 1) over all V columns, so that the columns other than the label
    get ε in sum.

    Args:
      vocab_parallel_logits: `[..., V / ranks]`, of a floating-point dtype.
      target: `[...]`, integers: numbers of columns of the whole.
      label_smoothing: ε, from 0 to (V − 1) / V.
      tp_group: a process group; None, or a group of one rank, for whole rows.
    """
    name = "vocab_parallel_cross_entropy"
    spread = spread_smoothing(name, label_smoothing, vocab_parallel_logits, tp_group)
    return split_losses(vocab_parallel_logits, target, tp_group, label_smoothing=spread)


def ranks_in(group: Any) -> int:
    """Returns the number of ranks that share a row."""
    return 1 if group is None else group.size()  # type: ignore[no-any-return]


def spread_smoothing(function: str, label_smoothing: float, logits: Tensor, group: Any) -> float:
    """Converts the label smoothing of Megatron-LM to the one of `cross_entropy`."""
    label_smoothing = real_number(function, "label_smoothing", label_smoothing)
    if not label_smoothing:
        return 0.0
    columns = logits.shape[-1] * ranks_in(group)
    if not 0 <= label_smoothing * columns <= columns - 1:
        raise ValueError(
            f"{function}: label_smoothing is {label_smoothing}, expected 0 to {columns - 1} / "
            f"{columns}, the share of all columns except the label's"
        )
    return label_smoothing * columns / (columns - 1)


def split_losses(logits: Tensor, target: Tensor, group: Any, **options: Any) -> Tensor:
    """Returns the loss of each row; the row is whole if the group has one rank."""
    shared = group if ranks_in(group) > 1 else None
    return cross_entropy(logits, target, reduction="none", group=shared, **options)


class SoftmaxCrossEntropyLoss(torch.autograd.Function, metaclass=DropIn):
    """apex's function of this name: `apex/contrib/xentropy/softmax_xentropy.py`."""

    @staticmethod
    def apply(  # type: ignore[override]
        logits: Tensor,
        labels: Tensor,
        smoothing: float = 0.0,
        padding_idx: int = 0,
        half_to_float: bool = False,
    ) -> Tensor:
        """Returns the loss of each row, 0 if the label is `padding_idx`.

        It has the dtype of the logits; for 16-bit logits with `half_to_float` it is float32.
        """
        losses = cross_entropy(
            logits,
            labels,
            reduction="none",
            ignore_index=padding_idx,
            label_smoothing=smoothing,
        )
        return losses if half_to_float else losses.to(logits.dtype)
