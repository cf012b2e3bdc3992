"""Faults of the ops that a model is made of, each in a function of `bridge.torch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def without(x: torch.Tensor, place: int) -> torch.Tensor:
    """Returns x with a zero at a place of the last dimension."""
    kept = torch.ones(x.shape[-1], dtype=x.dtype)
    kept[place] = 0
    return x * kept


def _hidden_key(right: Any) -> Any:
    def run(q: Any, k: Any, v: Any, mask: Any = None, **options: Any) -> Any:
        hidden = torch.zeros(k.shape[-2], dtype=torch.bool)
        hidden[3] = True
        mask = hidden if mask is None else mask | hidden
        return right(q, k, v, mask=mask, **options)

    return run


def _given_statistics(right: Any) -> Any:
    """Returns batch norm whose statistics have no derivative."""

    def run(x: Any, mean: Any, variance: Any, weight: Any, bias: Any, **options: Any) -> Any:
        flat = x.detach().double().movedim(1, -1).flatten(0, -2)
        given = flat.mean(0).to(x.dtype), flat.var(0, correction=0).to(x.dtype)
        return right(x, *given, weight, bias, **options | {"training": False})

    return run


def _over_n(right: Any) -> Any:
    """Returns batch norm whose running variance is over n instead of n − 1."""

    def run(x: Any, mean: Any, variance: Any, **options: Any) -> None:
        old, n = variance.clone(), x.numel() // x.shape[1]
        right(x, mean, variance, **options)
        kept = (1.0 - options["momentum"]) * old
        variance.copy_(kept + (variance - kept) * ((n - 1) / n))

    return run


def _with(**others: Any) -> Callable[[Any], Any]:
    return lambda right: lambda *a, **o: right(*a, **o | others)


# Faults by form: the function, the fault, and a result that must show it.
FAULTS: dict[str, tuple[str, str, Callable[[Any], Any], str]] = {
    "a skipped term": (
        "matmul",
        "matmul",
        lambda right: lambda a, b: right(without(a, 300), b),
        "forward",
    ),
    "a skipped term of the gradient": (
        "matmul transposed",
        "matmul",
        lambda right: lambda a, b: right(a, torch.cat((b[:, :1].detach(), b[:, 1:]), 1)),
        "db",
    ),
    "the bias left out of the gradient": (
        "linear",
        "linear",
        lambda right: lambda x, w, b: right(x, w, without(b, 4)),
        "dbias",
    ),
    "another scale": (
        "attention",
        "attention",
        lambda right: lambda *qkv, **o: right(*qkv, **o | {"scale": 0.3535}),
        "forward",
    ),
    "a skipped key": ("attention", "attention", _hidden_key, "dv"),
    "a skipped key of a causal form": ("attention causal", "attention", _hidden_key, "forward"),
    "a window of one more": (
        "attention of groups in a window",
        "attention",
        lambda right: lambda *qkv, window, **o: right(*qkv, window=window + 1, **o),
        "forward",
    ),
    "a sink that is scaled": (
        "attention sink",
        "attention",
        lambda right: lambda *qkv, sink, **o: right(*qkv, sink=0.7 * sink, **o),
        "forward",
    ),
    "no softcap": (
        "attention softcap",
        "attention",
        lambda right: lambda *qkv, softcap, **o: right(*qkv, **o),
        "dx",
    ),
    "a label smoothed": (
        "linear_cross_entropy portable",
        "linear_cross_entropy",
        lambda right: lambda *a, **o: right(*a, **o, label_smoothing=1e-3),
        "dx",
    ),
    "a skipped tap": (
        "conv",
        "conv2d",
        lambda right: lambda x, w, **o: right(x, without(w, 2), **o),
        "forward",
    ),
    "a tap of a transposed kernel skipped": (
        "conv_transpose",
        "conv_transpose2d",
        lambda right: lambda x, w, **o: right(x, without(w, 0), **o),
        "dx",
    ),
    "channels of groups swapped": (
        "conv of groups",
        "conv3d",
        lambda right: lambda x, w, **o: right(x, w.flip(1), **o),
        "dweight",
    ),
    "a place of the border skipped": (
        "conv depthwise",
        "conv2d",
        lambda right: lambda x, w, **o: right(without(x, 4), w, **o),
        "dweight",
    ),
    "a divisor that counts padding": (
        "avg_pool",
        "avg_pool",
        _with(count_include_pad=True),
        "forward",
    ),
    "another window": (
        "adaptive_avg_pool",
        "adaptive_avg_pool",
        lambda right: lambda x, **o: right(x.roll(1, -1), **o),
        "dx",
    ),
    "a NaN that loses": (
        "max_pool, places",
        "max_pool",
        lambda right: lambda x, **o: right(torch.where(x.isnan(), -torch.inf, x), **o),
        "forward",
    ),
    "a gradient to the first of a window": (
        "max_pool dilated",
        "max_pool",
        lambda right: lambda x, **o: right(torch.where(x == 1.5, x.detach(), x), **o),
        "dx",
    ),
    "the last of equal numbers": (
        "max_pool dilated, places",
        "max_pool",
        lambda right: lambda x, **o: (None, x.shape[-1] - 1 - right(x.flip(-1), **o)[1].flip(-1)),
        "forward",
    ),
    "corners that align": (
        "interpolate bilinear",
        "interpolate",
        _with(align_corners=True),
        "dx",
    ),
    "a resize without antialias": (
        "interpolate bicubic antialias",
        "interpolate",
        _with(antialias=False),
        "forward",
    ),
    "another nearest place": (
        "interpolate nearest",
        "interpolate",
        _with(mode="nearest-exact"),
        "forward",
    ),
    "another eps": ("batch_norm", "batch_norm", _with(eps=2e-2), "forward"),
    "statistics without a derivative": ("batch_norm", "batch_norm", _given_statistics, "dx"),
    "a variance over n": (
        "batch_norm, running statistics",
        "batch_norm",
        _over_n,
        "forward",
    ),
    "the last of equal columns": (
        "top_k",
        "top_k",
        lambda right: lambda x, k: (right(x.flip(-1), k)[0],),
        "dx",
    ),
    "a NaN that is not the largest": (
        "top_k, columns",
        "top_k",
        lambda right: lambda x, k: right(torch.where(x.isnan(), -torch.inf, x), k),
        "forward",
    ),
    "a scale of twice the size": (
        "quantize mxfp8",
        "quantize",
        lambda right: lambda x, q: right(2.0 * x, q),
        "forward",
    ),
    "a block of another size": (
        "quantize fp8_block128",
        "quantize",
        lambda right: lambda x, q: right(x.roll(1, -1), q),
        "forward",
    ),
    "a saturation off by one": (
        "quantize int8_row",
        "quantize",
        lambda right: lambda x, q: (right(x, q)[0].clamp(max=126), right(x, q)[1]),
        "forward",
    ),
    "a gradient that is rounded": (
        "fake_quantize mxfp8",
        "fake_quantize",
        lambda right: lambda x, q: right(x, q) + 0.01 * (x - x.detach()),
        "dx",
    ),
    "an id off by one": (
        "embedding",
        "embedding",
        lambda right: lambda ids, w: right((ids + (ids == 2)).clamp(max=len(w) - 1), w),
        "dx",
    ),
}
