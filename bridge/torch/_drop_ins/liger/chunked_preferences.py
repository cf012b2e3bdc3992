"""Drop-ins for Liger-Kernel's losses of preferences from hidden states and the last layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._drop_ins.liger.chunked_log_probs import (
    Preferences,
    Results,
    of_sequences,
    sum_of_logits,
)
from bridge.torch._drop_ins.liger.dpo_losses import check_dpo, dpo_losses
from bridge.torch._ops.post_training.preference_loss import preference_loss


class LigerFusedLinearDPOFunction(torch.autograd.Function, metaclass=DropIn):
    """Liger's DPO, by `linear_token_log_probs` and `preference_loss`."""

    @staticmethod
    def apply(  # type: ignore[override]
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        ignore_index: int = -100,
        beta: float = 0.1,
        compute_nll_loss: bool = False,
        compiled: bool = True,
        use_ref_model: bool = True,
        average_log_prob: bool = False,
        chunk_size: int = 1,
        loss_type: str = "sigmoid",
        label_smoothing: float = 0.0,
        discopop_tau: float = 0.05,
        alpha: float = 1.0,
    ) -> Results:
        """Returns the loss, and the statistics.

        These are the log-probabilities of chosen and rejected answers, the means of their logits,
        the negative log-likelihood, and the rewards of both.

        Args:
          _input: `[answers, tokens, features]`, the chosen answers before the rejected ones.
          weight: `[V, features]` of the linear layer.
          target: `[answers, tokens]`, the labels.
          bias: `[V]` or None.
          ref_input: hidden states of the reference model, or None.
          ref_weight: the weight of the reference model, or None.
          ref_bias: `[V]` of the reference, or None.
          ignore_index: the label of a token that does not count.
          beta: the temperature of the loss.
          compute_nll_loss: True to add the negative log-likelihood of the chosen answers.
          compiled: of no effect.
          use_ref_model: True to compare with a reference.
          average_log_prob: True for means over tokens in place of sums.
          chunk_size: of no effect: chunks have the rows of `linear_token_log_probs`.
          loss_type: the name of the loss.
          label_smoothing: the share of pairs in the wrong order.
          discopop_tau: the temperature of "discopop".
          alpha: the weight of the negative log-likelihood.
        """
        check_dpo(loss_type, label_smoothing)
        pairs = Preferences(_input, weight, target, bias, ignore_index, average_log_prob)
        reference: tuple[Any, Any] = (None, None)
        if use_ref_model:
            with torch.no_grad():
                given = ref_input, ref_weight, target, ref_bias, ignore_index, average_log_prob
                found, _ = of_sequences(*given)  # type: ignore[arg-type]
            reference = found[: pairs.pairs], found[pairs.pairs :]
        if loss_type == "sigmoid":
            loss = preference_loss(pairs.chosen, pairs.rejected, *reference, beta=beta)
        else:
            halves = zip((pairs.chosen, pairs.rejected), reference, strict=True)
            c, r = (x if ref is None else x - ref for x, ref in halves)
            loss = dpo_losses(loss_type, c, r, beta, label_smoothing, discopop_tau).mean()
        return pairs.results(loss, alpha, compute_nll_loss, beta, ref=reference)


class LigerFusedLinearORPOFunction(torch.autograd.Function, metaclass=DropIn):
    """Liger's ORPO, by `linear_token_log_probs` and `preference_loss`."""

    @staticmethod
    def apply(  # type: ignore[override]
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ignore_index: int = -100,
        beta: float = 0.1,
        compute_nll_loss: bool = True,
        nll_target: Tensor | None = None,
        compiled: bool = True,
        chunk_size: int = 1,
    ) -> Results:
        """Returns the loss, and the statistics: those of DPO, and two means of log-odds.

        Args:
          _input: `[answers, tokens, features]`, the chosen answers before the rejected ones.
          weight: `[V, features]` of the linear layer.
          target: `[answers, tokens]`, the labels.
          bias: `[V]` or None.
          ignore_index: the label of a token that does not count.
          beta: the temperature of the loss.
          compute_nll_loss: True to add the negative log-likelihood of the chosen answers.
          nll_target: other labels of the negative log-likelihood, or None.
          compiled: of no effect.
          chunk_size: of no effect: chunks have the rows of `linear_token_log_probs`.
        """
        pairs = Preferences(_input, weight, target, bias, ignore_index, True, nll_target)
        how: dict[str, Any] = {"kind": "orpo", "beta": beta, "nll_weight": 0.0}
        loss = preference_loss(pairs.chosen, pairs.rejected, **how)
        with torch.no_grad():
            halves = pairs.chosen, pairs.rejected
            c, r = (x - torch.log(-torch.expm1(x)) for x in halves)
            odds = c - r
        more = logsigmoid(odds).mean(), odds.mean()
        return pairs.results(loss, 1.0, compute_nll_loss, beta, *more)


class LigerFusedLinearSimPOFunction(torch.autograd.Function, metaclass=DropIn):
    """Liger's SimPO, by `linear_token_log_probs` and `preference_loss`."""

    @staticmethod
    def apply(  # type: ignore[override]
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ignore_index: int = -100,
        beta: float = 0.1,
        alpha: float = 1.0,
        label_smoothing: float = 0.0,
        compute_nll_loss: bool = False,
        compiled: bool = True,
        gamma: float = 0.5,
        chunk_size: int = 1,
    ) -> Results:
        """Returns the loss, and the statistics of DPO.

        Args:
          _input: `[answers, tokens, features]`, the chosen answers before the rejected ones.
          weight: `[V, features]` of the linear layer.
          target: `[answers, tokens]`, the labels.
          bias: `[V]` or None.
          ignore_index: the label of a token that does not count.
          beta: the temperature of the loss.
          alpha: the weight of the negative log-likelihood.
          label_smoothing: the share of pairs in the wrong order.
          compute_nll_loss: True to add the negative log-likelihood of the chosen answers.
          compiled: of no effect.
          gamma: the margin of SimPO.
          chunk_size: of no effect: chunks have the rows of `linear_token_log_probs`.
        """
        pairs = Preferences(_input, weight, target, bias, ignore_index, True)
        how: dict[str, Any] = {"beta": beta, "margin": gamma, "label_smoothing": label_smoothing}
        loss = preference_loss(pairs.chosen, pairs.rejected, kind="simpo", **how)
        return pairs.results(loss, alpha, compute_nll_loss, beta)


class LigerFusedLinearCPOFunction(torch.autograd.Function, metaclass=DropIn):
    """Liger's CPO, by `linear_token_log_probs` and `preference_loss`."""

    @staticmethod
    def apply(  # type: ignore[override]
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ignore_index: int = -100,
        beta: float = 0.1,
        alpha: float = 1.0,
        label_smoothing: float = 0.0,
        compute_nll_loss: bool = True,
        compiled: bool = True,
        average_log_prob: bool = False,
        chunk_size: int = 1,
    ) -> Results:
        """Returns the loss, and the statistics of DPO.

        Args:
          _input: `[answers, tokens, features]`, the chosen answers before the rejected ones.
          weight: `[V, features]` of the linear layer.
          target: `[answers, tokens]`, the labels.
          bias: `[V]` or None.
          ignore_index: the label of a token that does not count.
          beta: the temperature of the loss.
          alpha: the weight of the negative log-likelihood.
          label_smoothing: the share of pairs in the wrong order.
          compute_nll_loss: True to add the negative log-likelihood of the chosen answers.
          compiled: of no effect.
          average_log_prob: True for means over tokens in place of sums.
          chunk_size: of no effect: chunks have the rows of `linear_token_log_probs`.
        """
        pairs = Preferences(_input, weight, target, bias, ignore_index, average_log_prob)
        how: dict[str, Any] = {"beta": beta, "label_smoothing": label_smoothing, "nll_weight": 0.0}
        loss = preference_loss(pairs.chosen, pairs.rejected, kind="cpo", **how)
        return pairs.results(loss, alpha, compute_nll_loss, beta)


class LigerFusedLinearKTOFunction(torch.autograd.Function, metaclass=DropIn):
    """Liger's KTO, by `linear_token_log_probs` and `preference_loss`."""

    @staticmethod
    def apply(  # type: ignore[override]
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        preference_labels: Tensor,
        bias: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        kl: Tensor | None = None,
        ignore_index: int = -100,
        beta: float = 0.1,
        compiled: bool = True,
        use_ref_model: bool = True,
        average_log_prob: bool = False,
        chunk_size: int = 1,
    ) -> Results:
        """Returns the loss of answers that are not in pairs, and the statistics.

        These are sums over desirable and over undesirable answers: of log-probabilities, of logits
        and of rewards.

        Args:
          _input: `[answers, tokens, features]`, the chosen answers before the rejected ones.
          weight: `[V, features]` of the linear layer.
          target: `[answers, tokens]`, the labels.
          preference_labels: `[answers]`, True for desirable answers.
          bias: `[V]` or None.
          ref_input: hidden states of the reference model, or None.
          ref_weight: the weight of the reference model, or None.
          ref_bias: `[V]` of the reference, or None.
          kl: the baseline of KTO, or None.
          ignore_index: the label of a token that does not count.
          beta: the temperature of the loss.
          compiled: of no effect.
          use_ref_model: True to compare with a reference.
          average_log_prob: True for means over tokens in place of sums.
          chunk_size: of no effect: chunks have the rows of `linear_token_log_probs`.
        """
        found, _ = of_sequences(_input, weight, target, bias, ignore_index, average_log_prob)
        reference = None
        if use_ref_model:
            with torch.no_grad():
                given = ref_input, ref_weight, target, ref_bias, ignore_index, average_log_prob
                reference, _ = of_sequences(*given)  # type: ignore[arg-type]
        baseline = kl.reshape(()) if kl is not None and kl.numel() == 1 else kl
        desirable = preference_labels.to(torch.bool)
        loss = preference_loss(
            found,
            None,
            reference,
            kind="kto",
            beta=beta,
            baseline=baseline,
            desirable=desirable,
        )
        rewards = beta * (found if reference is None else found - reference)
        sides = desirable, ~desirable
        shown = [
            *[(found * side).sum() for side in sides],
            *[sum_of_logits(_input, weight, bias, side) for side in sides],
            *[(rewards * side).sum() for side in sides],
        ]
        return loss, tuple([each.detach() for each in shown])
