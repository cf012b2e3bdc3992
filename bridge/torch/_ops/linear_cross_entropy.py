"""Cross-entropy of a linear layer's logits, computed for a few rows at a time, for PyTorch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bridge.catalogue.cross_entropy import Options
from bridge.catalogue.linear_cross_entropy import NAME, ROWS, LinearCrossEntropy
from bridge.catalogue.linear_rows import LinearRows
from bridge.torch._adapter import arrays
from bridge.torch._adapter.linear_losses import LinearLosses
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._compositions import functions
from bridge.torch._compositions.composition import Composition
from bridge.torch._ops import labels as labels_of_torch
from bridge.torch._ops.cross_entropy import cross_entropies
from bridge.torch._ops.products import linear


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    chunk: int | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    bits: str | None = None,
) -> Tensor:
    r"""`cross_entropy(hidden @ weight.T + bias, labels)`, without the logits of all rows in memory.

    The logits of `chunk` rows exist at a time. For a mean or a sum, the gradients of hidden, weight
    and bias are computed from them in the forward pass. For `"none"`, and for derivatives of
    gradients, the logits are computed again. Torch computes the matrix products, so the bits of the
    result differ from `bridge.jax`.

    With `bits="portable"` bridge computes them: loss and gradients have the bits of
    `cross_entropy(linear(hidden, weight, bias), labels)`, the same in `bridge.jax`, for any chunk
    and any number of threads. The backward pass stores the operands and computes the logits again.
    Logits and their gradient are rounded to hidden's dtype, a row's share of a mean included: scale
    the loss in float16. With DTensors, the logits of all rows of a process exist at once.

    Args:
      hidden: `[..., features]`. Under autocast, hidden, weight and bias are converted to its dtype,
        except float64 tensors.
      weight: `[V, features]`, of hidden's dtype.
      labels: `[...]` of any integer dtype.
      bias: `[V]`, of hidden's dtype, or None.
      chunk: number of rows whose logits exist at a time. None: so many that their logits take about
        the memory of `hidden`, at least 256, and at least 512 if there are 4096 rows or more.
      reduction, ignore_index, label_smoothing, z_loss, softcap: as for `cross_entropy`.
      bits: None for torch's matrix products, or "portable" for bridge's. A chunk has then the
        largest 256·2ⁿ rows that `chunk` allows, at least 256.

    Returns:
      A scalar, or `[...]`: in float32, for float64 in float64.

    Raises:
      TypeError, ValueError: as for `cross_entropy`; dtypes that differ; shapes that do not fit; a
        chunk that is not a positive integer; another word for bits.

    Example:
      >>> linear_cross_entropy(torch.zeros(2, 3), torch.ones(4, 3), torch.tensor([0, 1]))
      tensor(1.3863)

    Source: Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", arXiv:2411.09009;
    gradients in the forward pass: Hsu et al., "Liger Kernel", arXiv:2410.10989.
    """
    if is_overridden(given := (hidden, weight, labels, bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    options = reduction, ignore_index, label_smoothing, z_loss, softcap
    return linear_cross_entropies.run(given, chunk, bits, *options)  # type: ignore[no-any-return]


def _of_dtensors(*given: Any) -> Tensor:
    from bridge.torch._sharded.linear_losses import of_dtensors  # needs torch.distributed

    return of_dtensors(*given)


def _computed(operands: tuple[Any, ...], chunk: int | None, options: Options) -> Tensor:
    hidden, weight, labels, bias = operands
    read = labels_of_torch.readable(NAME, labels, options.ignore_index)
    return _losses.run((hidden, weight, read, bias), chunk, options)


def _portable(operands: tuple[Any, ...], chunk: int | None, options: Options) -> Tensor:
    hidden, weight, labels, bias = operands
    if any(type(t).__name__ == "DTensor" for t in operands):
        # The parts of the composition one by one, each with its own rule for splits.
        logits = linear(hidden, weight, bias, bits="portable")
        return cross_entropies.loss(NAME, logits, labels, options)  # type: ignore[no-any-return]
    return linear_cross_entropies.composed(_rows.run, operands, chunk, options)  # type: ignore[no-any-return]


_rows = Composition(LinearRows(functions, ROWS))
_losses = LinearLosses(NAME, Options, cross_entropies, cross_entropies.entry_of, _of_dtensors)
linear_cross_entropies = LinearCrossEntropy(
    arrays, labels_of_torch, cross_entropies, _computed, _portable
)
