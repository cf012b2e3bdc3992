"""A convolution has the bits of `matmul` of its patches, in both frameworks."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest
import torch

import bridge.torch as bt
from bridge.torch._adapter import convolutions as adapter
from tests.convolution.cases import (
    CASES,
    DTYPES,
    Case,
    as_jax,
    close,
    drawn,
    in_jax,
    in_torch,
    same,
    to_torch,
)
from tests.convolution.reference import by_bridge, convolution, in_float64


def gradients(case: Case, x: Any, w: Any, bias: Any, g: Any) -> list[Any]:
    """Returns y and the gradients of x, w and the bias, in torch."""
    leaves = [t.detach().requires_grad_() for t in (x, w, bias)]
    y = in_torch(case, *leaves)
    return [y, *torch.autograd.grad(y, leaves, g)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_those_of_matmul(name: str, dtype: str, rng: np.random.Generator) -> None:
    case = CASES[name]
    x, w, bias, g = (to_torch(each, dtype) for each in drawn(rng, case))
    y, dx, dw, dbias = gradients(case, x, w, bias, g)
    by = by_bridge(dtype)
    same(y, convolution(x, w, bias, case.params("forward", dtype), by))
    same(dx, convolution(g, w, None, case.params("input", dtype), by))
    same(dw, convolution(x, g, None, case.params("weight", dtype), by))
    close(y, convolution(x, w, bias, case.params("forward", dtype), in_float64), dtype)
    close(dx, convolution(g, w, None, case.params("input", dtype), in_float64), dtype)
    close(dw, convolution(x, g, None, case.params("weight", dtype), in_float64), dtype)
    close(dbias, g.double().sum([d for d in range(g.ndim) if d != 1]), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_both_frameworks(name: str, dtype: str, rng: np.random.Generator) -> None:
    case = CASES[name]
    x, w, bias, g = (to_torch(each, dtype) for each in drawn(rng, case))
    y, dx, dw, _ = gradients(case, x, w, torch.zeros_like(bias), g)
    with jax.enable_x64(True):
        made, pull = jax.vjp(lambda x, w: in_jax(case, x, w), as_jax(x), as_jax(w))
        for one, two in zip((y, dx, dw), (made, *pull(as_jax(g))), strict=True):
            same(one, two)


@pytest.mark.parametrize("kind", ["forward", "input", "weight"])
@pytest.mark.parametrize("dtypes", [("bfloat16", "float32"), ("float16", "bfloat16")])
def test_mixes_of_dtypes(dtypes: Any, kind: str, rng: np.random.Generator) -> None:
    case = CASES["groups"]
    x, w, _, y = drawn(rng, case)
    a, b = {"forward": (x, w), "input": (y, w), "weight": (x, y)}[kind]
    a, b = to_torch(a, dtypes[0]), to_torch(b, dtypes[1])
    for dtype in ("float32", "float16", "float64"):
        params = case.params(kind, dtype)
        made = adapter.convolution(a, b, None, params)
        same(made, convolution(a, b, None, params, by_bridge(dtype)))


@pytest.mark.parametrize("name", CASES)
def test_an_image_alone_has_its_bits_in_a_batch(name: str, rng: np.random.Generator) -> None:
    case = CASES[name]
    x, w, bias, g = (to_torch(each, "float32") for each in drawn(rng, case))
    y, dx, *_ = gradients(case, x, w, bias, g)
    for i in range(len(x)):
        one, alone, *_ = gradients(case, x[i : i + 1], w, bias, g[i : i + 1])
        same(one[0], y[i])
        same(alone[0], dx[i])
    if len(x):
        same(in_torch(case, x[0], w, bias), y[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.dims > 1])
def test_channels_first_and_last(name: str, dtype: str, rng: np.random.Generator) -> None:
    case = CASES[name]
    given = [to_torch(each, dtype) for each in drawn(rng, case)]
    first = gradients(case, *given)
    memory = {2: torch.channels_last, 3: torch.channels_last_3d}[case.dims]
    for places in ((0,), (1,), (3,), (0, 1, 3)):
        moved = [
            t.contiguous(memory_format=memory) if i in places else t for i, t in enumerate(given)
        ]
        for one, two in zip(first, gradients(case, *moved), strict=True):
            same(one, two)
    x, w, _, g = map(as_jax, given)
    letters = "HWD"[: case.dims]
    numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    last = (0, *range(2, x.ndim), 1)
    kernel = (*range(2, x.ndim), 1, 0)

    def theirs(x: Any, w: Any) -> Any:
        return in_jax(case, x, w, dimension_numbers=numbers)

    y, pull = jax.vjp(theirs, x.transpose(last), w.transpose(kernel))
    dx, dw = pull(g.transpose(last))
    without_bias = gradients(case, *given[:2], torch.zeros_like(given[2]), given[3])
    back = (0, x.ndim - 1, *range(1, x.ndim - 1))
    same(without_bias[0], y.transpose(back))
    same(without_bias[1], dx.transpose(back))
    same(without_bias[2], dw.transpose((x.ndim - 1, x.ndim - 2, *range(x.ndim - 2))))


@pytest.mark.parametrize("name", ["deep", "depthwise", "many places", "groups", "3d"])
def test_threads(name: str, rng: np.random.Generator) -> None:
    case = CASES[name]
    given = [to_torch(each, "float32") for each in drawn(rng, case)]
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(gradients(case, *given))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            same(one, two)


def test_strides_of_every_kind(rng: np.random.Generator) -> None:
    case = CASES["3x3"]
    x, w, bias, g = (to_torch(each, "float32") for each in drawn(rng, case))
    first = gradients(case, x, w, bias, g)
    sparse = x.new_zeros(2, 9, 7, 14)[:, 1:6, :, 3:9].copy_(x)
    moved = w.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    repeated = bias[:1].expand(4)
    for one, two in zip(first, gradients(case, sparse, moved, bias, g), strict=True):
        same(one, two)
    same(in_torch(case, x, w, repeated), in_torch(case, x, w, repeated.clone()))
    one = g[:1, :1, :1, :1].expand(g.shape)  # the cotangent of a sum
    for each, other in zip(
        gradients(case, x, w, bias, one), gradients(case, x, w, bias, one.clone()), strict=True
    ):
        same(each, other)


@pytest.mark.parametrize("kind", ["forward", "input", "weight"])
def test_special_numbers(kind: str, rng: np.random.Generator) -> None:
    """NaN, infinities and negative zeros are those of `matmul`; zeros outside of x count."""
    case = CASES["stride above the kernel"]
    x, w, _, y = (to_torch(each, "float32") for each in drawn(rng, case))
    for t, value in ((x, float("nan")), (w, float("inf")), (y, -0.0)):
        t.view(-1)[3] = value
    a, b = {"forward": (x, w), "input": (y, w), "weight": (x, y)}[kind]
    params = case.params(kind, "float32")
    made = adapter.convolution(a, b, None, params)
    expected = convolution(a, b, None, params, by_bridge("float32"))
    assert torch.equal(made.isnan(), expected.isnan())
    same(made.nan_to_num(7), expected.nan_to_num(7))


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("layouts", list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_kernel_of_one_position_is_a_product(
    dtype: str, layouts: tuple[bool, bool], with_bias: bool, rng: np.random.Generator
) -> None:
    """Each layout of x and of y's gradient; x of a single image, and of several."""
    own = getattr(torch, dtype)
    for images in (1, 3):
        x, w, bias, g = (
            torch.from_numpy(rng.standard_normal(shape)).to(own)
            for shape in ((images, 300, 5, 7), (33, 300, 1, 1), (33,), (images, 33, 5, 7))
        )
        x, g = (
            t.to(memory_format=torch.channels_last) if is_last else t
            for t, is_last in zip((x, g), layouts, strict=True)
        )
        leaves = [t.requires_grad_() for t in (x, w, bias)]
        y = bt.conv2d(*leaves) if with_bias else bt.conv2d(x, w)
        dx, dw = torch.autograd.grad(y, leaves[:2], g)
        rows = x.detach().permute(0, 2, 3, 1).reshape(-1, 300)
        of_y, matrix = g.permute(0, 2, 3, 1).reshape(-1, 33), w.detach()[:, :, 0, 0]
        same(
            y.permute(0, 2, 3, 1).reshape(-1, 33),
            bt.linear(rows, matrix, bias.detach() if with_bias else None),
        )
        same(dx.permute(0, 2, 3, 1).reshape(-1, 300), bt.matmul(of_y, matrix))
        same(dw[:, :, 0, 0], bt.matmul(of_y.mT, rows))


def test_images_that_are_copied_in_parts(rng: np.random.Generator) -> None:
    """Copies of images with few channels take 8 MiB for each thread."""
    threads = torch.get_num_threads()
    x, w, bias = (
        torch.from_numpy(rng.standard_normal(shape)).float()
        for shape in ((5, 2, 610, 605), (3, 2, 3, 2), (3,))
    )
    apart = torch.cat([bt.conv2d(each[None], w, bias, padding=1) for each in x])
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for given in (x, x.to(memory_format=torch.channels_last)):
                same(bt.conv2d(given, w, bias, padding=1), apart)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("channels", [2, 40])
def test_a_depthwise_image_without_places(channels: int, rng: np.random.Generator) -> None:
    """All places of the padding are outside of x, so the gradient of the weight is 0."""
    case = Case((2, channels, 0, 3), (channels, 1, 1, 2), padding=(1, 0), groups=channels)
    x, w, _, g = (to_torch(each, "float32") for each in drawn(rng, case))
    leaves = [t.requires_grad_() for t in (x, w)]
    y = in_torch(case, *leaves, None)
    dx, dw = torch.autograd.grad(y, leaves, g)
    assert y.shape == (2, channels, 2, 2)
    assert dx.shape == x.shape
    assert not y.any()
    assert not dw.any()
    made, pull = jax.vjp(lambda x, w: in_jax(case, x, w), as_jax(x), as_jax(w))
    for one, two in zip((y, dx, dw), (made, *pull(as_jax(g))), strict=True):
        same(one, two)
