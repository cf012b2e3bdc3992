"""The values inside of torch's fused operations, as a port that spells them out computes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

Options = Mapping[str, Any]
Steps = Iterator[Tensor]


def steps_of(name: str, options: Options, result: Any) -> Steps:
    """Yields what an operation computes on the way to its result, each from the one before.

    Args:
      name: of the operation of aten.
      options: its arguments by name.
      result: what it returned.
    """
    make = _STEPS.get(name)
    if make is not None:
        yield from make(options, result)


def _without_bias(options: Options, result: Tensor) -> Steps:
    bias = options.get("self")
    if isinstance(bias, Tensor) and options.get("alpha", 1) == 1 and options.get("beta", 1) == 1:
        yield result - bias


def _convolution(options: Options, result: Tensor) -> Steps:
    bias = options.get("bias")
    if bias is not None:
        yield result - bias.reshape(-1, *[1] * (result.dim() - 2))


def _normalized(x: Tensor, mean: Tensor, var: Tensor, eps: float, weight: Any) -> Steps:
    centred = x - mean
    yield centred
    yield var
    yield var + eps
    yield (var + eps).sqrt()
    rstd = (var + eps).rsqrt()
    yield rstd
    if weight is not None:
        yield rstd * weight
    scaled = centred * rstd
    yield scaled
    if weight is not None:
        yield scaled * weight


def _layer_norm(options: Options, result: Any) -> Steps:
    x = options["input"]
    axes = tuple(range(x.dim() - len(options["normalized_shape"]), x.dim()))
    mean = x.mean(axes, keepdim=True)
    yield mean
    yield from _normalized(
        x, mean, x.var(axes, correction=0, keepdim=True), options["eps"], options["weight"]
    )


def _group_norm(options: Options, result: Any) -> Steps:
    x = options["input"]
    groups = x.reshape(x.shape[0], options["group"], -1)
    mean = groups.mean(-1, keepdim=True)
    yield mean
    yield from _normalized(
        groups, mean, groups.var(-1, correction=0, keepdim=True), options["eps"], None
    )
    if options["weight"] is not None:
        y = result[0]
        if options["bias"] is not None:
            y = y - options["bias"].reshape(-1, *[1] * (x.dim() - 2))
        yield y


def _batch_norm(options: Options, result: Any) -> Steps:
    x = options["input"]
    axes = (0, *range(2, x.dim()))
    shape = (1, -1, *[1] * (x.dim() - 2))
    if options.get("training"):
        mean = x.mean(axes, keepdim=True)
        var = x.var(axes, correction=0, keepdim=True)
        n = x.numel() // max(x.shape[1], 1)
        if n > 1:
            yield var * (n / (n - 1))  # of the running statistics
        yield mean
    else:
        mean = options["running_mean"].reshape(shape)
        var = options["running_var"].reshape(shape)
    weight = options.get("weight")
    weight = None if weight is None else weight.reshape(shape)
    if not options.get("training"):
        # The running statistics say nothing about x.
        centred = x - mean
        yield centred
        scaled = centred * (var + options["eps"]).rsqrt()
        yield scaled
        if weight is not None:
            yield scaled * weight
        return
    yield from _normalized(x, mean, var, options["eps"], weight)


def _rms_norm(options: Options, result: Any) -> Steps:
    x = options["input"]
    axes = tuple(range(x.dim() - len(options["normalized_shape"]), x.dim()))
    square = x * x
    yield square
    yield square.mean(axes, keepdim=True)
    eps = options.get("eps")
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    yield square.mean(axes, keepdim=True) + eps
    rstd = (square.mean(axes, keepdim=True) + eps).rsqrt()
    yield rstd
    yield x * rstd


def _softmax(options: Options, result: Tensor) -> Steps:
    x, axis = options["self"], options["dim"]
    shifted = x - x.amax(axis, keepdim=True)
    yield shifted
    powers = shifted.exp()
    yield powers
    yield powers.sum(axis, keepdim=True)


def _log_softmax(options: Options, result: Tensor) -> Steps:
    x, axis = options["self"], options["dim"]
    shifted = x - x.amax(axis, keepdim=True)
    yield shifted
    total = shifted.exp().sum(axis, keepdim=True)
    yield total
    yield total.log()


def _gelu(options: Options, result: Tensor) -> Steps:
    x = options["self"]
    if options.get("approximate") == "tanh":
        cube = x**3
        yield cube
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * cube)
        yield inner
        part = inner.tanh()
    else:
        inner = x * math.sqrt(0.5)
        yield inner
        part = inner.erf()
    yield part
    sum_ = 1 + part
    yield sum_
    yield 0.5 * sum_


def _silu(options: Options, result: Tensor) -> Steps:
    yield options["self"].sigmoid()


def _mean(options: Options, result: Tensor) -> Steps:
    x = options["self"]
    axes = options.get("dim")
    yield x.sum() if not axes else x.sum(axes)


def _var(options: Options, result: Any) -> Steps:
    x, axes = options["self"], options.get("dim")
    centred = x - (x.mean(axes, keepdim=True) if axes else x.mean())
    yield centred
    yield centred * centred


def _avg_pool(options: Options, result: Tensor) -> Steps:
    if options.get("count_include_pad") and options.get("divisor_override") is None:
        size = options["kernel_size"]
        yield result * math.prod(size if len(size) > 1 else size * (result.dim() - 2))


def _sigmoid_slope(options: Options, result: Tensor) -> Steps:
    y = options["output"]
    yield 1 - y
    yield y * (1 - y)


def _tanh_slope(options: Options, result: Tensor) -> Steps:
    y = options["output"]
    yield y * y
    yield 1 - y * y


def _silu_slope(options: Options, result: Tensor) -> Steps:
    x = options["self"]
    y = x.sigmoid()
    yield y
    yield 1 - y
    yield x * (1 - y)
    yield 1 + x * (1 - y)
    yield y * (1 + x * (1 - y))


def _gelu_slope(options: Options, result: Tensor) -> Steps:
    x = options["self"]
    if options.get("approximate") == "tanh":
        factor = math.sqrt(2 / math.pi)
        part = (factor * (x + 0.044715 * x**3)).tanh()
        yield part
        yield 1 - part * part
        yield 0.5 * (1 + part)
        inner = factor * (1 + 3 * 0.044715 * x * x)
        yield inner
        yield 0.5 * (1 + part) + 0.5 * x * (1 - part * part) * inner
        return
    share = 0.5 * (1 + (x * math.sqrt(0.5)).erf())
    yield share
    density = (-0.5 * x * x).exp() / math.sqrt(2 * math.pi)
    yield density
    yield x * density
    yield share + x * density


# Operations of the backward pass, each with the operand that its slope is computed from. The
# gradient is another operand: a slope says nothing about it.
SLOPES = {"sigmoid_backward": "output", "tanh_backward": "output", "silu_backward": "self",
          "gelu_backward": "self"}  # fmt: skip
_STEPS: dict[str, Callable[[Options, Any], Steps]] = {
    "addmm": _without_bias,
    "avg_pool2d": _avg_pool,
    "convolution": _convolution,
    "native_layer_norm": _layer_norm,
    "native_group_norm": _group_norm,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "_fused_rms_norm": _rms_norm,
    "_softmax": _softmax,
    "_log_softmax": _log_softmax,
    "gelu": _gelu,
    "silu": _silu,
    "mean": _mean,
    "var": _var,
    "std": _var,
    "sigmoid_backward": _sigmoid_slope,
    "tanh_backward": _tanh_slope,
    "silu_backward": _silu_slope,
    "gelu_backward": _gelu_slope,
}
