"""Batch norm for PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge.catalogue.vision.batch_norm import NAME, BatchNorm, Evaluation, Options, Statistics
from bridge.catalogue.vision.batch_norm_layer import (
    OPERANDS,
    Rule,
    check_numbers,
    check_operands,
    check_rows,
    rows_of,
    running,
)
from bridge.torch._adapter import arrays
from bridge.torch._adapter.checks import check_flags, check_tensors
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._compositions import functions
from bridge.torch._compositions.composition import Composition
from bridge.torch._ops.vision.layouts import channels_lie_last, refuse_dtensor


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    process_group: Any = None,
) -> Tensor:
    r"""(x − μ)/√(v + eps)·weight + bias for each channel: `torch.nn.functional.batch_norm`.

    In training μ and v = Σ (x − μ)²/n are mean and variance of a channel over all images and
    places; the variance comes from centred numbers, in a second pass over x. Otherwise they are the
    running statistics. 16-bit tensors and float32 are computed in float32, float64 in float64, and
    rounded once. Sums are added in the tree of column sums over (image, place), so the bits are the
    same for channels first and channels last, for any number of threads, and in `bridge.jax`.
    Differentiable to any order, in reverse and forward mode.

    In training the running statistics are updated in place by torch's rule:
    new = (1 − momentum)·old + momentum·batch, with the variance Σ (x − μ)²/(n − 1). JAX has another
    rule.

    Args:
      input: `[n, c, ...]` of dtype float16, bfloat16, float32 or float64, of any strides. A tensor
        in the memory format channels last gives such a result.
      running_mean, running_var: `[c]`, of any of these dtypes; None in training keeps none.
      weight, bias: `[c]`, of any of these dtypes.
      training: take the batch's statistics.
      momentum: a finite number.
      eps: a positive finite number.
      process_group: in training, a process group of torch.distributed (or a mesh of one dimension)
        whose ranks have equal shapes: the statistics are those of all ranks' images, in the order
        of the ranks. If each rank has 16·2ⁿ rows (images × places), the bits are those of one
        tensor on one process. The gradients of weight and bias are sums over this rank's images, as
        in `torch.nn.SyncBatchNorm`.

    Returns:
      A tensor of input's shape in the promoted dtype of input, weight and bias.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype; a number is none;
        process_group has another type.
      ValueError: input has fewer than two dimensions, or one row in training; a vector of another
        shape; one running statistic without the other; no running statistics outside of training;
        eps is not positive or not finite; tensors on different devices; ranks with different
        shapes.

    Source: Ioffe and Szegedy, "Batch Normalization", arXiv:1502.03167.

    Example:
      >>> batch_norm(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), None, None, training=True, eps=1e-12)
      tensor([[-1.,  0.],
              [ 1.,  0.]])
    """
    if is_overridden(given := (input, running_mean, running_var, weight, bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    check_tensors(NAME, 1, **dict(zip(OPERANDS, given, strict=True)))
    check_flags(NAME, training=training)
    momentum, eps = check_numbers(arrays, momentum, eps)
    dtype = check_operands(input, running_mean, running_var, weight, bias, bool(training), 1)
    for each in given:
        refuse_dtensor(NAME, each)
    if training and process_group is None:
        check_rows(input.shape)
    x, last = arrays.cast(input, dtype), input.ndim == 2 or channels_lie_last(input, 1)
    x = x.movedim(1, -1) if last else x
    if not training:
        options = Options(eps, x.ndim - 1, last)
        y = _evaluation.run((x, running_mean, running_var, weight, bias), options)
        return y.movedim(-1, 1) if last else y
    if process_group is not None:
        from bridge.torch._ops.vision.batch_norm_ranks import over_ranks  # needs torch.distributed

        y, pair, parts = over_ranks(x, weight, bias, eps, last, process_group)
    else:
        options = Options(eps, x.ndim - 1, last)
        parts, pair = 1, _statistics.run((x,), options)
        y = _values.run((x, weight, bias, pair), options)
    count = rows_of(input.shape, 1) * parts
    if running_mean is not None and running_var is not None and count:
        rule = Rule(1.0 - momentum, momentum, 1)
        with torch.no_grad():
            new = running(arrays, running_mean, running_var, pair.detach(), rule, count)
            running_mean.copy_(new[0])
            running_var.copy_(new[1])
    return y.movedim(-1, 1) if last else y


_evaluation = Composition(Evaluation(functions))
_statistics = Composition(Statistics(functions))
_values = Composition(BatchNorm(functions))
