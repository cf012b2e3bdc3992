"""The drop-in for Liger-Kernel's policy gradients from hidden states and the last layer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._ops.post_training.linear_numbers import linear_token_log_probs
from bridge.torch._ops.post_training.policy_loss import policy_loss

_KINDS = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")


class LigerFusedLinearGRPOFunction(torch.autograd.Function, metaclass=DropIn):
    """Liger's policy gradients, by `linear_token_log_probs` and `policy_loss`."""

    @staticmethod
    def apply(  # type: ignore[override]
        _input: Tensor,
        weight: Tensor,
        selected_token_ids: Tensor,
        attention_mask: Tensor,
        advantages: Tensor,
        bias: Tensor | None = None,
        ref_per_token_logps: Tensor | None = None,
        old_per_token_logps: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        beta: float = 0.04,
        epsilon_low: float = 0.2,
        epsilon_high: float = 0.2,
        loss_type: str = "dapo",
        max_completion_length: int | None = None,
        importance_sampling_level: str = "token",
        sapo_temperature_pos: float = 1.0,
        sapo_temperature_neg: float = 1.05,
        temperature: float = 1.0,
        compiled: bool = True,
        use_ref_model: bool = True,
        chunk_size: int = 1,
        vllm_is_ratio: Tensor | None = None,
        delta: float | None = None,
        use_bias_correction_kl: bool = False,
        vespo_k_pos: float = 2.0,
        vespo_lambda_pos: float = 3.0,
        vespo_k_neg: float = 3.0,
        vespo_lambda_neg: float = 2.0,
        num_items_in_batch: Any = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Returns the loss, and the statistics.

        These are the mean divergence from the reference, where beta is not 0, and the fraction of
        clipped tokens.

        Args:
          _input: `[answers, tokens, features]`, the chosen answers before the rejected ones.
          weight: `[V, features]` of the linear layer.
          selected_token_ids: `[sequences, tokens]`, the sampled tokens.
          attention_mask: `[sequences, tokens]`, 1 where a token counts.
          advantages: `[sequences]`.
          bias: `[V]` or None.
          ref_per_token_logps: log-probabilities of the reference, or None.
          old_per_token_logps: log-probabilities at the time of sampling, or None.
          ref_input: hidden states of the reference model, or None.
          ref_weight: the weight of the reference model, or None.
          ref_bias: `[V]` of the reference, or None.
          beta: the weight of the divergence from the reference.
          epsilon_low: how far below 1 the ratio is clipped.
          epsilon_high: how far above 1 the ratio is clipped.
          loss_type: the name of the loss.
          max_completion_length: the divisor of "dr_grpo".
          importance_sampling_level: "token" or "sequence".
          sapo_temperature_pos: the temperature of "sapo" for positive advantages.
          sapo_temperature_neg: the temperature of "sapo" for negative ones.
          temperature: a positive number, by which logits are divided.
          compiled: of no effect.
          use_ref_model: True to compare with a reference.
          chunk_size: of no effect: chunks have the rows of `linear_token_log_probs`.
          vllm_is_ratio: ratios by which tokens are weighted, or None.
          delta: an upper limit of the ratio, or None.
          use_bias_correction_kl: True to weight the divergence by the ratio.
          vespo_k_pos: an option of "vespo".
          vespo_lambda_pos: an option of "vespo".
          vespo_k_neg: an option of "vespo".
          vespo_lambda_neg: an option of "vespo".
          num_items_in_batch: the number of tokens of all processes, or None.

        Raises:
          ValueError: an unknown loss type or level, or two that do not go together.
        """
        level, temperature = importance_sampling_level, float(temperature)
        _check(loss_type, level, max_completion_length, delta)
        log_probs, _ = linear_token_log_probs(
            _input, weight, selected_token_ids, bias=bias, temperature=temperature
        )
        old = log_probs.detach() if old_per_token_logps is None else old_per_token_logps
        reference = ref_per_token_logps
        if reference is None and use_ref_model:
            if ref_input is None or ref_weight is None:
                raise ValueError(
                    "LigerFusedLinearGRPO: use_ref_model is True, expected ref_per_token_logps or "
                    "ref_input and ref_weight"
                )
            with torch.no_grad():
                reference, _ = linear_token_log_probs(
                    ref_input,
                    ref_weight,
                    selected_token_ids,
                    bias=ref_bias,
                    temperature=temperature,
                )
        reference = log_probs.detach() if reference is None else reference
        mask, a = attention_mask.to(torch.bool), advantages[:, None]
        ratio = log_probs - old
        if level == "sequence":
            ratio = _mean(ratio, mask)[:, None]
        ratio = torch.exp(ratio)
        ratios = vllm_is_ratio
        if ratios is not None and ratios.ndim == 1:
            ratios = ratios[:, None]
        if loss_type == "vespo":
            numbers = (vespo_k_pos, vespo_lambda_pos), (vespo_k_neg, vespo_lambda_neg)
            with torch.no_grad():
                phi = _vespo(a, log_probs - old, mask, ratios, *numbers)
            losses = -phi * a * log_probs
        elif loss_type == "cispo":
            losses = -ratio.clamp(max=epsilon_high).detach() * a * log_probs
        elif delta is not None and loss_type != "sapo":
            clipped = ratio.clamp(1 - epsilon_low, 1 + epsilon_high)
            losses = -torch.min(ratio.clamp(max=delta) * a, clipped * a)
        else:
            sharpness = (float(sapo_temperature_pos), float(sapo_temperature_neg))
            more: Any = {"temperatures": sharpness} if loss_type == "sapo" else {}
            losses = policy_loss(
                log_probs,
                old.to(log_probs.dtype),
                advantages.to(log_probs.dtype),
                mask,
                kind="sapo" if loss_type == "sapo" else "grpo",
                clip=(epsilon_low, epsilon_high),
                level=level,
                reduction="none",
                **more,
            )
        is_whole = loss_type == "luspo" and level == "sequence"
        if is_whole:
            # One number for all tokens of a sequence, padding included, as in the original.
            losses = _mean(losses.expand_as(log_probs), mask)[:, None].expand_as(log_probs)
        if ratios is not None and loss_type != "vespo":
            losses = losses * ratios
        metrics = []
        if beta:
            away = reference - log_probs
            kl = torch.expm1(away) - away
            kl = kl * ratio if use_bias_correction_kl else kl
            losses = losses + beta * kl
            metrics.append(_of_tokens(kl, mask))
        if not is_whole:
            losses = torch.where(mask, losses, 0.0)
        loss = _reduced(losses, mask, loss_type, max_completion_length, num_items_in_batch)
        metrics.append(_of_tokens(_clipped(ratio, a, loss_type, epsilon_low, epsilon_high), mask))
        return loss, [each.detach() for each in metrics]


def _check(loss_type: str, level: str, longest: Any, delta: Any) -> None:
    if loss_type not in _KINDS:
        raise ValueError(f"Unknown loss type: {loss_type}")
    if level not in ("token", "sequence"):
        raise ValueError(
            f"Unknown importance sampling level: {level}. Possible values are 'token' and "
            "'sequence'."
        )
    if level == "sequence" and loss_type in ("cispo", "sapo", "vespo"):
        raise ValueError(
            f"Sequence-level importance sampling is not supported for loss_type='{loss_type}'"
        )
    if loss_type == "dr_grpo" and longest is None:
        raise ValueError("max_completion_length must be provided for loss_type 'dr_grpo'")
    if delta is not None and delta <= 0:
        raise ValueError(f"delta must be positive, got {delta}")


def _mean(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, x, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)


def _of_tokens(x: Tensor, mask: Tensor) -> Tensor:
    """Returns the mean over the tokens that count."""
    return torch.where(mask, x, 0.0).sum() / mask.sum().clamp(min=1)


def _vespo(a: Tensor, ratio: Tensor, mask: Tensor, ratios: Any, up: Any, down: Any) -> Tensor:
    """Returns exp(λ)·wᵏ·exp(−λ·w) of each sequence, w the product of its tokens' ratios."""
    least, most = math.log(1e-8), 20.0
    total = torch.where(mask, ratio.clamp(-most, most), 0.0).sum(-1, keepdim=True)
    if ratios is not None:
        total = total + ratios.log().clamp(least, most).sum(-1, keepdim=True)
    w, is_up = total.clamp(least, most), a >= 0
    k, rate = (torch.where(is_up, *each) for each in zip(up, down, strict=True))
    rate = rate.clamp(min=1e-4)
    return torch.exp(rate + k * w - rate * w.exp()).nan_to_num(0.0, 0.0, 0.0)


def _reduced(losses: Tensor, mask: Tensor, loss_type: str, longest: Any, items: Any) -> Tensor:
    rows, counts = len(mask), mask.sum(-1)
    if loss_type in ("grpo", "sapo"):
        return (losses.sum(-1) / counts.clamp(min=1)).sum() / rows
    if loss_type == "dr_grpo":
        return losses.sum() / (rows * longest)
    if loss_type == "luspo":
        return (losses * counts[:, None]).sum() / losses.numel()
    if loss_type == "bnpo":
        return losses.sum() / counts.sum().clamp(min=1)
    return losses.sum() / tokens_of_a_batch(mask, items)


def tokens_of_a_batch(mask: Tensor, items: Any = None) -> Tensor:
    """Returns the number of tokens of a batch over the number of processes, at least 1."""
    count, processes = mask.sum().float(), 1
    is_on = torch.distributed.is_available() and torch.distributed.is_initialized()
    if is_on:
        processes = torch.distributed.get_world_size()
    if items is not None:
        count = torch.as_tensor(items, device=mask.device, dtype=torch.float32)
    elif is_on:
        torch.distributed.all_reduce(count)
    return (count / processes).clamp(min=1.0)


def _clipped(ratio: Tensor, a: Tensor, loss_type: str, low: float, high: float) -> Tensor:
    """Returns 1 for each token whose ratio is clipped."""
    if loss_type in ("sapo", "vespo"):
        return torch.zeros_like(ratio)
    if loss_type == "cispo":
        return ((ratio > high) & (a > 0)).to(ratio.dtype)
    return (((ratio < 1 - low) & (a < 0)) | ((ratio > 1 + high) & (a > 0))).to(ratio.dtype)
