"""Convolutions of every kind of shape, in torch's arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import bridge.jax as bj
import bridge.torch as bt
from bridge.ops.convolution import ConvolutionParams

DTYPES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Case:
    """A convolution; one number for all dimensions of space, or a number for each."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1

    @property
    def dims(self) -> int:
        return len(self.x) - 2

    def each(self, value: Any) -> tuple[int, ...]:
        return (value,) * self.dims if isinstance(value, int) else tuple(value)

    @property
    def how(self) -> tuple[Any, ...]:
        return self.stride, self.padding, self.dilation, self.groups

    def params(self, kind: str, dtype: str) -> ConvolutionParams:
        """Returns the parameters of a kind."""
        stride, padding, dilation = map(self.each, self.how[:3])
        places = tuple(
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, k, s, p, d in zip(
                self.x[2:], self.w[2:], stride, padding, dilation, strict=True
            )
        )
        sizes = {"forward": places, "input": self.x[2:], "weight": self.w[2:]}[kind]
        return ConvolutionParams(kind, dtype, sizes, stride, padding, dilation, self.groups)


CASES = {
    "3x3": Case((2, 5, 7, 6), (4, 5, 3, 3), padding=1),
    "3x3 of nine channels": Case((2, 9, 7, 6), (4, 9, 3, 3), padding=1, stride=(1, 2)),
    "1x1": Case((3, 40, 5, 4), (33, 40, 1, 1)),
    "1x1 stride 2": Case((2, 20, 5, 6), (9, 20, 1, 1), stride=2),
    "7x7 of three channels": Case((1, 3, 15, 16), (10, 3, 7, 7), stride=2, padding=3),
    "deep": Case((1, 70, 5, 5), (6, 70, 3, 3), padding=1),
    "depthwise": Case((2, 18, 9, 8), (18, 1, 7, 7), padding=3, groups=18),
    "depthwise times 2": Case((1, 5, 6, 9), (10, 1, 3, 2), padding=1, groups=5, stride=(1, 2)),
    "groups": Case((2, 12, 6, 5), (8, 3, 3, 2), padding=(1, 0), groups=4),
    "dilated": Case((2, 3, 11, 9), (5, 3, 3, 2), dilation=(2, 3), padding=2),
    "stride past the end": Case((1, 4, 8, 9), (5, 4, 3, 2), stride=(3, 4)),
    "stride above the kernel": Case((1, 4, 9, 9), (5, 4, 2, 2), stride=3, padding=1),
    "stride and dilation": Case((1, 6, 12, 10), (4, 6, 3, 3), stride=2, dilation=2, padding=2),
    "1d": Case((3, 6, 21), (7, 6, 5), stride=2, padding=2),
    "1d causal depthwise": Case((2, 19, 12), (19, 1, 4), padding=3, groups=19),
    "3d": Case((1, 3, 4, 5, 6), (4, 3, 2, 3, 2), padding=(1, 0, 1), stride=(1, 2, 1)),
    "one of all": Case((1, 1, 1, 1), (1, 1, 1, 1)),
    "no images": Case((0, 3, 5, 5), (4, 3, 3, 3)),
    "no channels": Case((2, 0, 5, 5), (4, 0, 3, 3), padding=1),
    "no output": Case((2, 3, 5, 5), (0, 3, 3, 3)),
    "many places": Case((2, 2, 40, 31), (3, 2, 3, 3), padding=1),
}


def drawn(rng: np.random.Generator, case: Case) -> list[Any]:
    """Returns x, w, a bias and a cotangent of y."""
    places = case.params("forward", "float32").sizes
    shapes = case.x, case.w, case.w[:1], (case.x[0], case.w[0], *places)
    return [rng.standard_normal(shape) for shape in shapes]


def in_torch(case: Case, x: Any, w: Any, bias: Any) -> Any:
    return getattr(bt, f"conv{case.dims}d")(x, w, bias, *case.how)


def in_jax(case: Case, x: Any, w: Any, **other: Any) -> Any:
    """Returns the convolution without a bias."""
    stride, padding, dilation = map(case.each, case.how[:3])
    return bj.conv_general_dilated(
        x,
        w,
        stride,
        [(p, p) for p in padding],
        rhs_dilation=dilation,
        feature_group_count=case.groups,
        **other,
    )


def to_torch(x: Any, dtype: str) -> torch.Tensor:
    return torch.tensor(x).to(getattr(torch, dtype))


def bits(x: Any) -> np.ndarray:
    """Returns the bits of a tensor or array as integers."""
    if isinstance(x, torch.Tensor):
        kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
        return x.detach().contiguous().view(kind).numpy()
    array = np.ascontiguousarray(np.asarray(x))
    return array.view({2: np.int16, 4: np.int32, 8: np.int64}[array.itemsize])


def same(one: Any, two: Any) -> None:
    assert str(one.dtype).removeprefix("torch.") == str(two.dtype).removeprefix("torch.")
    np.testing.assert_array_equal(bits(one), bits(two))


def close(ours: Any, expected: Any, dtype: str) -> None:
    ulp = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-6, "float64": 1e-14}[dtype]
    found = ours.detach().double().numpy() if isinstance(ours, torch.Tensor) else np.asarray(ours)
    expected = expected.detach().numpy() if isinstance(expected, torch.Tensor) else expected
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.astype(float), expected, rtol=0, atol=4 * ulp * scale)


def as_jax(x: torch.Tensor) -> jax.Array:
    """Returns an array with the same bits."""
    name = str(x.dtype).removeprefix("torch.")
    if name == "bfloat16":
        return jax.lax.bitcast_convert_type(jnp.asarray(bits(x)), jnp.bfloat16)
    return jnp.asarray(x.detach().numpy())
