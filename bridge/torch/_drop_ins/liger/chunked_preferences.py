"""Drop-ins for Liger-Kernel's losses of preferences from hidden states and the last layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._ops.post_training.linear_numbers import linear_token_log_probs
from bridge.torch._ops.post_training.preference_loss import preference_loss

Results = tuple[Tensor, tuple[Tensor, ...]]


def of_tokens(x: Tensor, weight: Tensor, labels: Tensor, bias: Any, ignored: int) -> Any:
    """Returns the log-probability of each token, 0 for ignored ones, and the mask of the others."""
    mask = labels != ignored
    found, _ = linear_token_log_probs(x, weight, torch.where(mask, labels, 0), bias=bias)
    return torch.where(mask, found, 0.0), mask


def of_sequences(
    x: Tensor, weight: Tensor, labels: Tensor, bias: Any, ignored: int, average: bool
) -> tuple[Tensor, Tensor]:
    """Returns the log-probability of each sequence, and the sum over all tokens of each."""
    tokens, mask = of_tokens(x, weight, labels, bias, ignored)
    total = tokens.sum(-1)
    return (total / mask.sum(-1) if average else total), total


def sum_of_logits(x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor | None) -> Tensor:
    """Returns the sum over all logits of `[..., features]`, without a gradient and without logits.

    Args:
      rows: weights of the leading dimension of x, or None.
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    with torch.no_grad():
        of_rows = x.flatten(1, -2).sum(1, dtype=wide)
        kept = of_rows.new_ones(len(of_rows)) if rows is None else rows.to(wide)
        total = (kept @ of_rows) @ weight.sum(0, dtype=wide)
        if bias is not None:
            total = total + kept.sum() * math.prod(x.shape[1:-1]) * bias.sum(dtype=wide)
        return total


class _Preferences:
    """The common part: log-probabilities of pairs, the likelihood and the statistics."""

    def __init__(
        self,
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None,
        ignore_index: int,
        average: bool,
        nll_target: Tensor | None = None,
    ) -> None:
        self.pairs = pairs = target.shape[0] // 2
        found, totals = of_sequences(x, weight, target, bias, ignore_index, average)
        self.chosen, self.rejected = found[:pairs], found[pairs:]
        if nll_target is None:
            total, labels = totals[:pairs].sum(), target[:pairs]
        else:
            labels = nll_target[:pairs]
            total = of_tokens(x[:pairs], weight, labels, bias, ignore_index)[0].sum()
        self._nll = -total / (labels != ignore_index).sum()
        count = max(pairs * target.shape[1] * weight.shape[0], 1)
        self._means = [
            sum_of_logits(half, weight, bias, None) / count for half in (x[:pairs], x[pairs:])
        ]

    def results(
        self, loss: Tensor, alpha: float, with_nll: bool, beta: float, *more: Tensor, **ref: Any
    ) -> Results:
        nll = self._nll if with_nll else torch.zeros_like(loss)
        halves = [self.chosen, self.rejected]
        ratios = [
            x if r is None else x - r
            for x, r in zip(halves, ref.get("ref", (None,) * 2), strict=True)
        ]
        rewards = [beta * each for each in ratios]
        shown = (*halves, *self._means, nll, *rewards, *more)
        loss = loss + alpha * nll if with_nll else loss
        return loss, tuple([each.detach() for each in shown])


def _dpo_losses(
    kind: str, c: Tensor, r: Tensor, beta: float, smoothing: float, tau: float
) -> Tensor:
    """Returns the losses of pairs, of the log-ratios c and r of chosen and rejected answers."""
    z, ours, theirs = beta * (c - r), beta * c, beta * r
    forms: dict[str, Callable[[], Tensor]] = {
        "hinge": lambda: torch.relu(1 - z),
        "exo_pair": lambda: (
            torch.sigmoid(z) * (logsigmoid(z) - math.log1p(-smoothing))
            + torch.sigmoid(-z) * (logsigmoid(-z) - math.log(smoothing))
        ),
        "nca_pair": lambda: softplus(-ours) + 0.5 * softplus(ours) + 0.5 * softplus(theirs),
        "robust": lambda: (
            ((1 - smoothing) * softplus(-z) - smoothing * softplus(z)) / (1 - 2 * smoothing)
        ),
        "bco_pair": lambda: softplus(-ours) + softplus(theirs),
        "sppo_hard": lambda: (c - 0.5 / beta) ** 2 + (r + 0.5 / beta) ** 2,
        "apo_zero": lambda: torch.sigmoid(-ours) + torch.sigmoid(theirs),
        "apo_down": lambda: torch.sigmoid(ours) + torch.sigmoid(-z),
        "discopop": lambda: (
            softplus(-z) * torch.sigmoid(-z / tau) + torch.exp(-z) * torch.sigmoid(z / tau)
        ),
    }
    return forms[kind]()


_DPO_KINDS: tuple[str, ...] = (
    "sigmoid",
    "hinge",
    "exo_pair",
    "nca_pair",
    "robust",
    "bco_pair",
    "sppo_hard",
)
_DPO_KINDS += ("apo_zero", "apo_down", "discopop")


def check_dpo(kind: str, smoothing: float) -> None:
    if kind not in _DPO_KINDS:
        raise ValueError(
            f"Unsupported loss_type: {kind}. Supported types are: {', '.join(_DPO_KINDS)}"
        )
    if kind == "exo_pair" and smoothing <= 0:
        raise ValueError("label_smoothing must be > 0 for loss_type='exo_pair'")
    if kind == "robust" and not 0 <= smoothing < 0.5:
        raise ValueError(
            f"label_smoothing must lie in [0.0, 0.5) for loss_type='robust'. Got {smoothing}."
        )


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
          beta: the temperature of the loss; for JSD the weight of the mixture; for GRPO the
            weight of the divergence.
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
        pairs = _Preferences(_input, weight, target, bias, ignore_index, average_log_prob)
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
            loss = _dpo_losses(loss_type, c, r, beta, label_smoothing, discopop_tau).mean()
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
          beta: the temperature of the loss; for JSD the weight of the mixture; for GRPO the
            weight of the divergence.
          compute_nll_loss: True to add the negative log-likelihood of the chosen answers.
          nll_target: other labels of the negative log-likelihood, or None.
          compiled: of no effect.
          chunk_size: of no effect: chunks have the rows of `linear_token_log_probs`.
        """
        pairs = _Preferences(_input, weight, target, bias, ignore_index, True, nll_target)
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
          beta: the temperature of the loss; for JSD the weight of the mixture; for GRPO the
            weight of the divergence.
          alpha: the weight of the negative log-likelihood.
          label_smoothing: the share of pairs in the wrong order.
          compute_nll_loss: True to add the negative log-likelihood of the chosen answers.
          compiled: of no effect.
          gamma: the margin of SimPO.
          chunk_size: of no effect: chunks have the rows of `linear_token_log_probs`.
        """
        pairs = _Preferences(_input, weight, target, bias, ignore_index, True)
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
          beta: the temperature of the loss; for JSD the weight of the mixture; for GRPO the
            weight of the divergence.
          alpha: the weight of the negative log-likelihood.
          label_smoothing: the share of pairs in the wrong order.
          compute_nll_loss: True to add the negative log-likelihood of the chosen answers.
          compiled: of no effect.
          average_log_prob: True for means over tokens in place of sums.
          chunk_size: of no effect: chunks have the rows of `linear_token_log_probs`.
        """
        pairs = _Preferences(_input, weight, target, bias, ignore_index, average_log_prob)
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
          beta: the temperature of the loss; for JSD the weight of the mixture; for GRPO the
            weight of the divergence.
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
