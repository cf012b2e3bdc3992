"""Logarithms of the softmax, for PyTorch."""

from __future__ import annotations

from torch import Tensor

from bridge.catalogue import log_probs
from bridge.torch._adapter.declared import DeclaredEntry
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._ops.labels import check_labels

_log_softmax = DeclaredEntry(log_probs.log_softmax)
_logsumexp = DeclaredEntry(log_probs.logsumexp)
_token_log_probs = DeclaredEntry(log_probs.token_log_probs)


def log_softmax(x: Tensor, scale: float = 1.0, *, out: Tensor | None = None) -> Tensor:
    r"""scale·x − log Σ exp(scale·x) over the last dimension, without overflow.

    16-bit tensors and float32 are computed in float32, float64 in float64, and rounded once. A
    row's bits depend on that row alone, and `bridge.jax` gives the same bits. Differentiable to any
    order, in reverse and forward mode; the residuals are x and one number for each row.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64, of any strides.
      scale: a finite number.
      out: a tensor for the result, of x's shape and dtype.

    Returns:
      A tensor of x's shape and dtype. In a row that is all −∞, or that has +∞ or NaN, every element
      is NaN unless its result is −∞.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype; scale is not a real number.
      ValueError: x is 0-dimensional; scale is not finite; `out` as for `scaled_softmax`.

    Example:
      >>> log_softmax(torch.zeros(1, 2))
      tensor([[-0.6931, -0.6931]])
    """
    return _log_softmax.run((x,), out, scale)  # type: ignore[no-any-return]


def logsumexp(x: Tensor, scale: float = 1.0) -> Tensor:
    r"""log Σ exp(scale·x) over the last dimension, without overflow.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64, of any strides.
      scale: a finite number.

    Returns:
      `[...]` in float32, for float64 in float64; −∞ for a row that is all −∞.

    Raises:
      TypeError, ValueError: as for `log_softmax`.

    Example:
      >>> logsumexp(torch.zeros(1, 2))
      tensor([0.6931])
    """
    return _logsumexp.run((x,), None, scale)  # type: ignore[no-any-return]


def token_log_probs(logits: Tensor, labels: Tensor, *, scale: float = 1.0) -> Tensor:
    r"""scale·logits[label] − log Σ exp(scale·logits): the log-probability of each row's label.

    Reads the logits once and makes no array of their size. A row's bits depend on that row alone,
    not on its batch: training computes the same numbers as inference did.

    Args:
      logits: `[..., V]` of dtype float16, bfloat16, float32 or float64, of any strides.
      labels: `[...]` of any integer dtype.
      scale: a finite number: one over the temperature.

    Returns:
      `[...]` in float32, for float64 in float64. NaN for a label out of range that could not be
      checked before: on a GPU and under transforms.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype; scale is not a real number.
      ValueError: shapes that do not fit; scale is not finite; a label out of range.


    Example:
      >>> token_log_probs(torch.zeros(2, 4), torch.tensor([0, 3]))
      tensor([-1.3863, -1.3863])
    """
    if is_overridden(given := (logits, labels)):
        return hand_over(given)  # type: ignore[no-any-return]
    results = _token_log_probs.run((logits, labels), None, scale)
    check_labels("token_log_probs", labels, logits, logits.shape[-1])
    return results  # type: ignore[no-any-return]
