"""The entropy of a softmax, and divergences between two of them, for PyTorch."""

from __future__ import annotations

from torch import Tensor

from bridge.catalogue.post_training import divergences
from bridge.torch._adapter.declared import DeclaredEntry

_entropy = DeclaredEntry(divergences.entropy)
_kl_div = DeclaredEntry(divergences.kl_div)
_js_div = DeclaredEntry(divergences.js_div)
_tv_distance = DeclaredEntry(divergences.tv_distance)


def entropy(logits: Tensor, *, scale: float = 1.0) -> Tensor:
    r"""−Σ p·log p over the last dimension, with p = softmax(scale·logits): the entropy in nats.

    Reads the logits once and makes no array of their size. A row's bits depend on that row alone,
    and `bridge.jax` gives the same bits. Differentiable to any order, in reverse and forward
    mode; the residuals are the logits and a few numbers for each row.

    Args:
      logits: `[..., V]` of dtype float16, bfloat16, float32 or float64, of any strides.
      scale: a finite number: one over the temperature.

    Returns:
      `[...]` in float32, for float64 in float64. A logit of −∞ adds 0. NaN for a row that
      is all −∞ or has +∞ or NaN; its gradient has NaN too.

    Raises:
      TypeError: logits are no dense tensor or have another dtype; scale is not a real number.
      ValueError: logits are 0-dimensional; scale is not finite.

    Example:
      >>> entropy(torch.zeros(1, 2))
      tensor([0.6931])
    """
    return _entropy.run((logits,), None, scale)  # type: ignore[no-any-return]


def kl_div(p_logits: Tensor, q_logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    r"""Σ p·(log p − log q), with p and q the softmaxes of two rows of logits over a temperature.

    The Kullback-Leibler divergence KL(p ‖ q) in nats.
    Both rows are read once, and no array of their size is made. Otherwise as `entropy`.

    Args:
      p_logits, q_logits: `[..., V]` of one shape, each of dtype float16, bfloat16, float32 or
        float64, of any strides. Both have a gradient.
      temperature: a positive number, by which both are
        divided. The value is not multiplied by its square.

    Returns:
      `[...]` in float32, for float64 in float64. A column with p = 0 adds 0, and
      one with q = 0 below p > 0 makes it +∞: the gradient of q's logits is finite there, and the
      gradient of p's is not. NaN if a row of either is all −∞ or has +∞ or
      NaN; the gradients have NaN too.

    Raises:
      TypeError: an operand is no dense tensor or has another dtype; temperature is
        not a real number.
      ValueError: shapes that do not fit; an operand is 0-dimensional; temperature is out of
        range.

    Example:
      >>> kl_div(torch.zeros(1, 2), torch.tensor([[0.0, -torch.inf]]))
      tensor([inf])
    """
    return _kl_div.run((p_logits, q_logits), None, temperature)  # type: ignore[no-any-return]


def js_div(
    p_logits: Tensor, q_logits: Tensor, *, beta: float = 0.5, temperature: float = 1.0
) -> Tensor:
    r"""β·KL(p ‖ m) + (1 − β)·KL(q ‖ m), with the mixture m = β·p + (1 − β)·q of two softmaxes.

    The generalised Jensen-Shannon divergence in nats (arXiv:2306.13649).
    Both rows are read once, and no array of their size is made. Otherwise as `entropy`.

    Args:
      p_logits, q_logits: `[..., V]` of one shape, each of dtype float16, bfloat16, float32 or
        float64, of any strides. Both have a gradient.
      beta: the weight of p in the mixture, above 0 and below 1. At both ends
        the value would be 0 for all rows: `js_div/beta` tends to KL(p ‖ q) for beta → 0.
      temperature: a positive number, by which both are
        divided. The value is not multiplied by its square.

    Returns:
      `[...]` in float32, for float64 in float64. A column with p = 0 or q = 0 adds
      a finite number. NaN if a row of either is all −∞ or has +∞ or NaN;
      the gradients have NaN too.

    Raises:
      TypeError: an operand is no dense tensor or has another dtype; beta or temperature is
        not a real number.
      ValueError: shapes that do not fit; an operand is 0-dimensional; beta or temperature is out of
        range.

    Example:
      >>> js_div(torch.zeros(1, 2), torch.tensor([[0.0, -torch.inf]]))
      tensor([0.2158])
    """
    return _js_div.run((p_logits, q_logits), None, beta, temperature)  # type: ignore[no-any-return]


def tv_distance(p_logits: Tensor, q_logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    r"""½ Σ |p − q|, with p and q the softmaxes of two rows of logits over a temperature.

    The total variation distance, from 0 to 1.
    Both rows are read once, and no array of their size is made. Otherwise as `entropy`.

    Args:
      p_logits, q_logits: `[..., V]` of one shape, each of dtype float16, bfloat16, float32 or
        float64, of any strides. Both have a gradient.
      temperature: a positive number, by which both are
        divided. The value is not multiplied by its square.

    Returns:
      `[...]` in float32, for float64 in float64. Where p = q, |p − q| has the
      derivative 0. NaN if a row of either is all −∞ or has +∞ or NaN;
      the gradients have NaN too.

    Raises:
      TypeError: an operand is no dense tensor or has another dtype; temperature is
        not a real number.
      ValueError: shapes that do not fit; an operand is 0-dimensional; temperature is out of
        range.

    Example:
      >>> tv_distance(torch.zeros(1, 2), torch.tensor([[0.0, -torch.inf]]))
      tensor([0.5000])
    """
    return _tv_distance.run((p_logits, q_logits), None, temperature)  # type: ignore[no-any-return]
