"""The drop-in for Liger-Kernel's distillation from hidden states and the last layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._ops.linear_cross_entropy import linear_cross_entropy
from bridge.torch._ops.post_training.linear_numbers import linear_divergence


class LigerFusedLinearJSDFunction(torch.autograd.Function, metaclass=DropIn):
    """Liger's distillation, by `linear_divergence` and `linear_cross_entropy`."""

    @staticmethod
    def apply(  # type: ignore[override]
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        true_labels: Tensor,
        student_bias: Tensor | None = None,
        teacher_bias: Tensor | None = None,
        weight_hard_loss: float = 0.5,
        weight_soft_loss: float = 0.5,
        beta: float = 0.5,
        ignore_index: int = -100,
        temperature: float = 1.0,
        compiled: bool = True,
        chunk_size: int = 1024,
        return_soft_hard_loss: bool = False,
    ) -> Any:
        """Returns the weighted loss, and the soft and the hard loss where they are asked for.

        The soft loss is KL(teacher ‖ student) for beta = 0 and KL(student ‖ teacher) for beta = 1.
        The teacher has no gradient.

        Args:
          student_input: `[..., features]`.
          student_weight: `[V, features]`.
          teacher_input: `[..., features]`.
          teacher_weight: `[V, features]`.
          true_labels: `[...]`, the labels of the hard loss.
          student_bias: `[V]` or None.
          teacher_bias: `[V]` or None.
          weight_hard_loss: the weight of the cross-entropy.
          weight_soft_loss: the weight of the divergence.
          beta: the weight of the mixture.
          ignore_index: the label of a token that does not count.
          temperature: a positive number, by which logits are divided.
          compiled: of no effect.
          chunk_size: of no effect: chunks have the rows of `linear_token_log_probs`.
          return_soft_hard_loss: True to return both losses beside the weighted one.
        """
        hard = linear_cross_entropy(
            student_input,
            student_weight,
            true_labels,
            bias=student_bias,
            ignore_index=ignore_index,
        )
        mask = true_labels != ignore_index
        student = _wider(student_input, student_weight, student_bias, len(teacher_weight))
        teacher: list[Any] = [
            None if x is None else x.detach().to(student_input.dtype)
            for x in (teacher_input, teacher_weight, teacher_bias)
        ]
        sides = (student, teacher) if beta == 1 else (teacher, student)
        (p, p_weight, p_bias), (q, q_weight, q_bias) = sides
        losses = linear_divergence(
            p,
            p_weight,
            q,
            q_weight,
            p_bias=p_bias,
            q_bias=q_bias,
            temperature=temperature,
            **({"kind": "kl"} if beta in (0, 1) else {"kind": "js", "beta": beta}),
        )
        soft = torch.where(mask, losses, 0.0).sum() / mask.sum().clamp_min(1)
        loss = weight_hard_loss * hard + weight_soft_loss * soft
        return (loss, soft.detach(), hard.detach()) if return_soft_hard_loss else loss


def _wider(x: Tensor, weight: Tensor, bias: Tensor | None, columns: int) -> list[Any]:
    """Returns the layer with logits of 0 in the columns that a teacher has beyond its own."""
    more = columns - len(weight)
    if more > 0:
        weight = torch.nn.functional.pad(weight, (0, 0, 0, more))
        bias = None if bias is None else torch.nn.functional.pad(bias, (0, more))
    return [x, weight, bias]
