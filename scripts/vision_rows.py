"""The rows of compare_vision.py: what runs, in bridge, torch and XLA."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from scripts.turns import Run, Runs

FIRST, LAST = "bridge, channels first", "bridge, channels last"
TORCH = ("torch, channels first", "torch, channels last")
JAX, XLA = "bridge in jax", "jax"


@dataclass(frozen=True)
class Row:
    """One row: its name, and the runs that take turns."""

    op: str
    what: str
    shape: str
    make: Callable[[], Runs]


@dataclass(frozen=True)
class Conv:
    """Sizes of a convolution of square images."""

    images: int
    size: int
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    groups: int = 1

    def __str__(self) -> str:
        stride = f"/{self.stride}" if self.stride > 1 else ""
        depthwise = " depthwise" if self.groups > 1 else ""
        kernel = f"{self.kernel}×{self.kernel}{stride}{depthwise}"
        return f"{self.images}×{self.size}² {self.inputs}→{self.outputs} {kernel}"


CONVOLUTIONS = (
    Conv(8, 56, 64, 64, 3),
    Conv(8, 56, 64, 256, 1),
    Conv(8, 28, 128, 128, 3),
    Conv(8, 14, 256, 256, 3),
    Conv(8, 7, 512, 512, 3),
    Conv(8, 224, 3, 64, 7, 2),
    Conv(1, 56, 64, 64, 3),
    Conv(8, 28, 256, 512, 1, 2),
    Conv(8, 56, 96, 96, 7, 1, 96),
    Conv(8, 14, 384, 384, 7, 1, 384),
)
IN_BFLOAT16 = (Conv(8, 28, 128, 128, 3), Conv(8, 56, 64, 256, 1), Conv(8, 14, 384, 384, 7, 1, 384))
IMAGES, SMALL_IMAGES = ((8, 64, 112, 112), (8, 256, 28, 28)), ((2, 4, 6, 6),)
PASSES = ("forward", "forward and backward")


def convolutions(shapes: Any, dtype: str) -> Iterator[Row]:
    op = "conv" if dtype == "float32" else f"conv, {dtype}"
    for shape in shapes:
        for what in PASSES:
            yield Row(op, what, str(shape), functools.partial(convolution, shape, dtype, what))


def convolution(own: Conv, dtype: str, what: str) -> Runs:
    import jax
    import torch

    import bridge.jax as bj
    import bridge.torch as bt

    low = (own.kernel - 1) // 2
    x = torch.randn(own.images, own.inputs, own.size, own.size)
    w = torch.randn(own.outputs, own.inputs // own.groups, own.kernel, own.kernel)
    options = {"stride": own.stride, "padding": low, "groups": own.groups}

    def of(function: Any) -> Any:
        return lambda x, w: function(
            x,
            w,
            (own.stride,) * 2,
            ((low, low),) * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=own.groups,
        )

    return of_functions(
        (x, w),
        dtype,
        what,
        lambda x, w: bt.conv2d(x, w, **options),
        lambda x, w: torch.nn.functional.conv2d(x, w, **options),
        of(bj.conv_general_dilated),
        of(jax.lax.conv_general_dilated),
    )


def of_functions(
    given: tuple[Any, ...],
    dtype: str,
    what: str,
    in_torch: Any,
    own_torch: Any,
    in_jax: Any,
    own_jax: Any,
) -> Runs:
    """Returns the runs of a function's value, or of it and all gradients.

    Args:
      given: tensors with the channels in dimension 1; those of four dimensions exist in both
        layouts. A weight of four dimensions is HWIO in JAX.
    """
    import jax
    import torch

    first = [each.to(getattr(torch, dtype)) for each in given]
    last = [
        each.to(memory_format=torch.channels_last).clone() if each.ndim == 4 else each.clone()
        for each in first
    ]
    orders = [(0, 2, 3, 1), (2, 3, 1, 0)]
    arrays = [
        jax.numpy.asarray(
            (t.permute(orders[place]).contiguous() if t.ndim == 4 else t).float().numpy()
        ).astype(dtype)
        for place, t in enumerate(first)
    ]
    with_backward = what != "forward"

    def run_torch(function: Any, operands: list[Any]) -> Run:
        if not with_backward:
            return lambda: function(*operands)
        leaves = [each.detach().requires_grad_() for each in operands]
        g = torch.randn_like(function(*operands))
        return lambda: torch.autograd.grad(function(*leaves), leaves, g)

    def run_jax(function: Any) -> Run:
        if not with_backward:
            run = jax.jit(function)
            return lambda: jax.block_until_ready(run(*arrays))
        g = jax.numpy.ones_like(function(*arrays))

        def both(*operands: Any) -> Any:
            y, back = jax.vjp(function, *operands[:-1])
            return y, back(operands[-1])

        jitted = jax.jit(both)
        return lambda: jax.block_until_ready(jitted(*arrays, g))

    return {
        FIRST: run_torch(in_torch, first),
        LAST: run_torch(in_torch, last),
        TORCH[0]: run_torch(own_torch, first),
        TORCH[1]: run_torch(own_torch, last),
        JAX: run_jax(in_jax),
        XLA: run_jax(own_jax),
    }


def others(shapes: Any) -> Iterator[Row]:
    """Yields the rows of batch norm, pools and resizing."""
    for op, make in OTHERS.items():
        for shape in shapes:
            for what in PASSES:
                yield Row(op, what, "×".join(map(str, shape)), functools.partial(make, shape, what))


def batch_norm(shape: Any, what: str) -> Runs:
    import jax
    import torch

    import bridge.jax as bj
    import bridge.torch as bt

    def own_jax(x: Any, weight: Any, bias: Any) -> Any:
        mean = x.mean((0, 1, 2))
        centred = x - mean
        variance = (centred * centred).mean((0, 1, 2))
        return centred * (jax.lax.rsqrt(variance + 1e-5) * weight) + bias

    channels = shape[1]
    return of_functions(
        (torch.randn(shape), torch.randn(channels), torch.randn(channels)),
        "float32",
        what,
        lambda x, w, b: bt.batch_norm(x, None, None, w, b, training=True),
        lambda x, w, b: torch.nn.functional.batch_norm(x, None, None, w, b, training=True),
        lambda x, w, b: bj.batch_norm(x, None, None, w, b, training=True)[0],
        own_jax,
    )


def max_pool(shape: Any, what: str) -> Runs:
    from jax import lax
    from torch.nn import functional

    def own_jax(x: Any) -> Any:
        padding = ((0, 0), (1, 1), (1, 1), (0, 0))
        return lax.reduce_window(x, -math.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)

    own = functional.max_pool2d
    return _of_image(shape, what, "max_pool", own, own_jax, (3, 2, 1))


def avg_pool(shape: Any, what: str) -> Runs:
    from jax import lax
    from torch.nn import functional

    def own_jax(x: Any) -> Any:
        return lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4.0

    return _of_image(shape, what, "avg_pool", functional.avg_pool2d, own_jax, (2,))


def global_pool(shape: Any, what: str) -> Runs:
    from torch.nn import functional

    own = functional.adaptive_avg_pool2d
    return _of_image(
        shape, what, "adaptive_avg_pool", own, lambda x: x.mean((1, 2), keepdims=True), (1,)
    )


def bilinear(shape: Any, what: str) -> Runs:
    import jax
    from torch.nn import functional

    n, c, h, w = shape

    def own_jax(x: Any) -> Any:
        return jax.image.resize(x, (n, 2 * h, 2 * w, c), "bilinear", antialias=False)

    options = (2 * h, 2 * w), None, "bilinear"
    return _of_image(shape, what, "interpolate", functional.interpolate, own_jax, options)


def _of_image(
    shape: Any, what: str, name: str, own_torch: Any, own_jax: Any, options: tuple[Any, ...]
) -> Runs:
    import torch

    import bridge.jax as bj
    import bridge.torch as bt

    return of_functions(
        (torch.randn(shape),),
        "float32",
        what,
        lambda x: getattr(bt, name)(x, *options),
        lambda x: own_torch(x, *options),
        lambda x: getattr(bj, name)(x, *options),
        own_jax,
    )


OTHERS: dict[str, Callable[[Any, str], Runs]] = {
    "batch_norm": batch_norm,
    "max_pool 3×3/2": max_pool,
    "avg_pool 2×2": avg_pool,
    "adaptive_avg_pool to 1×1": global_pool,
    "interpolate bilinear, twice": bilinear,
}


def rows_of(quick: bool) -> list[Row]:
    if quick:
        small = (Conv(1, 8, 4, 4, 3), Conv(1, 8, 4, 4, 3, 1, 4))
        return [*convolutions(small, "float32"), *others(SMALL_IMAGES)]
    return [
        *convolutions(CONVOLUTIONS, "float32"),
        *convolutions(IN_BFLOAT16, "bfloat16"),
        *others(IMAGES),
    ]
