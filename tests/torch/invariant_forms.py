"""Calls of torch that `bridge.torch.invariant` catches, and the same calls of bridge."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bridge.torch as bt
from bridge.catalogue import framework_functions

mean_of_rows, silu_of_rows = framework_functions.mean.torch, framework_functions.silu.torch
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COLUMNS = 37
RMS_EPS = torch.finfo(torch.float32).eps


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (3 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


def strides_of(x: Tensor) -> list[int]:
    """Returns the strides that matter to a view."""
    found = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]
    return found if x.numel() else []


def same(found: Any, expected: Any) -> None:
    """Asserts the same bits, shape, dtype and layout."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert strides_of(found) == strides_of(expected)
    assert torch.equal(torch.nan_to_num(found), torch.nan_to_num(expected))
    assert torch.equal(found.isnan(), expected.isnan())


def moved(op: Any, x: Tensor, dim: int) -> Tensor:
    return op(x.movedim(dim, -1).contiguous()).movedim(-1, dim).contiguous()


def vector(like: Tensor, seed: int) -> Tensor:
    return numbers(like.shape[-1], dtype=like.dtype, seed=seed)


# For each form: a function of torch, and the same by a function of bridge.
FORMS: dict[str, tuple[Any, Any]] = {
    "torch.softmax": (lambda x: torch.softmax(x, -1), bt.scaled_softmax),
    "Tensor.softmax": (lambda x: x.softmax(dim=-1), bt.scaled_softmax),
    "axis=": (lambda x: torch.softmax(x, axis=-1), bt.scaled_softmax),  # type: ignore[call-overload]
    "F.softmax": (lambda x: F.softmax(x, -1, _stacklevel=5), bt.scaled_softmax),
    "special.softmax": (lambda x: torch.special.softmax(x, -1), bt.scaled_softmax),
    "nn.Softmax": (lambda x: nn.Softmax(-1)(x), bt.scaled_softmax),
    "softmax of the first": (
        lambda x: F.softmax(x, dim=0),
        lambda x: moved(bt.scaled_softmax, x, 0),
    ),
    "softmax in float64": (
        lambda x: x.softmax(-1, torch.float64),
        lambda x: bt.scaled_softmax(x.double()),
    ),
    "softmin": (lambda x: F.softmin(x, -1), lambda x: bt.scaled_softmax(-x)),
    "torch.log_softmax": (lambda x: torch.log_softmax(x, -1), bt.log_softmax),
    "Tensor.log_softmax": (lambda x: x.log_softmax(-1), bt.log_softmax),
    "special.log_softmax": (lambda x: torch.special.log_softmax(x, -1), bt.log_softmax),
    "F.log_softmax": (
        lambda x: F.log_softmax(x, dim=1, dtype=torch.float32),
        lambda x: moved(bt.log_softmax, x.float(), 1),
    ),
    "nn.LogSoftmax": (lambda x: nn.LogSoftmax(-1)(x), bt.log_softmax),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), lambda x: bt.logsumexp(x).to(x.dtype)),
    "logsumexp of two": (
        lambda x: x.logsumexp((0, 2), keepdim=True),
        lambda x: bt.logsumexp(x.movedim(1, 0).flatten(1)).to(x.dtype)[None, :, None],
    ),
    "torch.mean": (
        lambda x: torch.mean(x, dim=-1, keepdim=True),
        lambda x: mean_of_rows(x)[..., None],
    ),
    "Tensor.mean": (lambda x: x.mean(-1), mean_of_rows),
    "keepdims=": (lambda x: x.mean(axis=2, keepdims=True), lambda x: mean_of_rows(x)[..., None]),
    "mean of all": (lambda x: x.mean(), lambda x: mean_of_rows(x.flatten())),
    "mean of ()": (lambda x: x.mean(()), lambda x: mean_of_rows(x.flatten())),
    "mean of two": (lambda x: x.mean((-1, 1)), lambda x: mean_of_rows(x.flatten(1))),
    "mean of the first": (
        lambda x: x.mean(0, keepdim=True),
        lambda x: mean_of_rows(x.movedim(0, -1).contiguous())[None],
    ),
    "mean in float32": (
        lambda x: x.mean(-1, dtype=torch.float32),
        lambda x: mean_of_rows(x.float()),
    ),
    "F.gelu": (F.gelu, lambda x: bt.bias_gelu(x, approximate="none")),
    "nn.GELU": (lambda x: nn.GELU("tanh")(x), lambda x: bt.bias_gelu(x, approximate="tanh")),
    "F.silu": (F.silu, silu_of_rows),
    "silu in place": (lambda x: F.silu(x * 1, inplace=True), silu_of_rows),
    "nn.SiLU": (lambda x: nn.SiLU()(x), silu_of_rows),
    "F.layer_norm": (
        lambda x: F.layer_norm(x, (COLUMNS,), vector(x, 1), vector(x, 2)),
        lambda x: bt.layer_norm(x, vector(x, 1), vector(x, 2)),
    ),
    "layer_norm without": (
        lambda x: F.layer_norm(x, [COLUMNS], eps=0.5),
        lambda x: bt.layer_norm(x, eps=0.5),
    ),
    "layer_norm with a bias alone": (
        lambda x: F.layer_norm(x, (COLUMNS,), bias=vector(x, 2)),
        lambda x: bt.layer_norm(x, None, vector(x, 2)),
    ),
    "layer_norm of two": (
        lambda x: torch.layer_norm(x, x.shape[1:], numbers(*x.shape[1:], dtype=x.dtype)),
        lambda x: bt.layer_norm(
            x.flatten(1), numbers(*x.shape[1:], dtype=x.dtype).flatten()
        ).unflatten(1, x.shape[1:]),
    ),
    "nn.LayerNorm": (
        lambda x: nn.LayerNorm(COLUMNS, dtype=x.dtype)(x),
        lambda x: bt.layer_norm(
            x, torch.ones(COLUMNS, dtype=x.dtype), torch.zeros(COLUMNS, dtype=x.dtype)
        ),
    ),
    "F.rms_norm": (
        lambda x: F.rms_norm(x, (COLUMNS,), vector(x, 1), 0.25),
        lambda x: bt.rms_norm(x, vector(x, 1), eps=0.25),
    ),
    "torch.rms_norm": (
        lambda x: torch.rms_norm(x, (COLUMNS,)),
        lambda x: bt.rms_norm(
            x, eps=torch.finfo(x.dtype).eps if x.dtype == torch.float64 else RMS_EPS
        ),
    ),
    "nn.RMSNorm": (
        lambda x: nn.RMSNorm(x.shape[1:], eps=1e-3, dtype=x.dtype)(x),
        lambda x: bt.rms_norm(
            x.flatten(1), torch.ones(x[0].numel(), dtype=x.dtype), eps=1e-3
        ).unflatten(1, x.shape[1:]),
    ),
}

LOSSES: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "smooth": {"label_smoothing": 0.25},
    "ignored": {"ignore_index": 3},
    "weights": {"weight": True},
    "weights, none": {"weight": True, "reduction": "none", "label_smoothing": 0.125},
    "weights, smooth": {"weight": True, "label_smoothing": 0.125, "ignore_index": 2},
    "probabilities": {"target": "probabilities"},
    "probabilities, all": {
        "target": "probabilities", "weight": True, "label_smoothing": 0.5, "reduction": "sum",
    },
    "probabilities, none": {"target": "probabilities", "reduction": "none"},
}  # fmt: skip


def differentiated(function: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = function(x)
    (gradient,) = torch.autograd.grad(y, x, numbers(*y.shape, dtype=y.dtype, seed=5))
    return y.detach(), gradient
