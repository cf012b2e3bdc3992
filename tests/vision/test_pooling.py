"""Pooling: the values of torch bit for bit or in float64, gradients in the order of windows."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import bridge.jax
import bridge.torch
from tests.catalogue.formulas import assert_near_and_same_bits, assert_transforms, drawn
from tests.catalogue.refusals import Refusal, assert_refused
from tests.frameworks import DTYPES
from tests.vision.torch_samples import samples_of

# The input's shape with channels second, kernel, stride, padding, dilation and ceil_mode.
WINDOWS: list[Any] = [
    ((2, 3, 9, 8), 3, 2, 1, 1, False),
    ((1, 2, 7, 9), (2, 3), None, 0, 1, True),
    ((1, 2, 8, 8), 2, 1, 1, 2, False),
    ((2, 1, 9, 6), (3, 2), (1, 2), (1, 0), 1, True),
    ((2, 3, 11), 4, 3, 2, 1, True),
    ((1, 2, 4, 5, 6), (2, 3, 2), 2, (0, 1, 1), 1, False),
    ((1, 1, 5, 5), 5, 1, 2, 1, False),
    ((0, 2, 5, 5), 2, None, 0, 1, False),
]


def laid(a: Any, last: bool) -> Any:
    return np.ascontiguousarray(np.moveaxis(a, 1, -1)) if last else a


def in_layout(name: str, last: bool, *given: Any, **options: Any) -> Any:
    """Returns call(ops, x), for x with the channels last or second in both frameworks."""

    def call(ops: Any, x: Any) -> Any:
        if ops is bridge.jax:
            return getattr(ops, name)(x, *given, **options, axis=-1 if last else 1)
        y = getattr(ops, name)(x.movedim(-1, 1) if last else x, *given, **options)
        return y.movedim(1, -1) if last else y

    return call


def of_torch(kind: str, last: bool, *given: Any, **options: Any) -> Any:
    def formula(x: Any) -> Any:
        x = x.movedim(-1, 1) if last else x
        y = getattr(F, f"{kind}{x.ndim - 2}d")(x, *given, **options)
        return y.movedim(1, -1) if last else y

    return formula


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_max_pool(window: Any, last: bool, dtype: str, rng: Any) -> None:
    shape, *given = window
    (x,) = drawn(rng, (shape,), dtype)
    x = laid(x, last)
    call = in_layout("max_pool", last, *given)
    y = call(bridge.jax, jnp.asarray(x) if dtype != "float64" else x)
    (g,) = drawn(rng, (y.shape,), dtype)
    if x.size:
        formula = of_torch("max_pool", last, *given)
        assert_near_and_same_bits(call, formula, (x,), g)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("padding", "divisor"), [(True, None), (False, None), (True, 7)])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_avg_pool(
    window: Any, padding: bool, divisor: Any, last: bool, dtype: str, rng: Any
) -> None:
    shape, kernel, stride, pad, dilation, ceil = window
    if dilation != 1 or 0 in shape:
        return
    given = kernel, stride, pad, ceil, padding, divisor
    (x,) = drawn(rng, (shape,), dtype)
    x = laid(x, last)
    call = in_layout("avg_pool", last, *given)
    y = call(bridge.jax, x)
    (g,) = drawn(rng, (y.shape,), dtype)
    own = given[:5] if len(shape) == 3 else given
    if divisor is None or len(shape) > 3:
        assert_near_and_same_bits(call, of_torch("avg_pool", last, *own), (x,), g)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("shape", "size"),
    [((2, 3, 7, 5), 1), ((2, 3, 7, 5), (3, 5)), ((2, 3, 7), 4), ((1, 2, 3, 4, 5), (None, 2, 7))],
    ids=str,
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_adaptive_avg_pool(shape: Any, size: Any, last: bool, dtype: str, rng: Any) -> None:
    (x,) = drawn(rng, (shape,), dtype)
    x = laid(x, last)
    call = in_layout("adaptive_avg_pool", last, size)
    (g,) = drawn(rng, (call(bridge.jax, x).shape,), dtype)
    assert_near_and_same_bits(call, of_torch("adaptive_avg_pool", last, size), (x,), g, units=20.0)


def test_sums_and_gradients_in_order(rng: Any) -> None:
    """Chains of float32 additions, written as loops."""
    x, g = drawn(rng, ((1, 1, 6, 7), (1, 1, 5, 6)), "float32")
    leaf = torch.from_numpy(x).requires_grad_()
    y = bridge.torch.avg_pool(leaf, 2, 1)
    (dx,) = torch.autograd.grad(y, leaf, torch.from_numpy(g))
    right, back = np.zeros((5, 6), np.float32), np.zeros((6, 7), np.float32)
    for i, j in itertools.product(range(5), range(6)):
        total = np.float32(x[0, 0, i, j])
        for a, b in ((0, 1), (1, 0), (1, 1)):
            total = np.float32(total + x[0, 0, i + a, j + b])
        right[i, j] = total / np.float32(4)
        for a, b in itertools.product(range(2), range(2)):
            back[i + a, j + b] += g[0, 0, i, j] / np.float32(4)
    assert np.array_equal(y[0, 0].detach(), right)
    assert np.array_equal(dx[0, 0], back)


def test_equal_numbers_and_nan() -> None:
    x = np.array([[[1.0, 1.0, np.nan, 2.0, np.nan, np.nan, -np.inf, -np.inf]]], np.float32)
    y, places = bridge.torch.max_pool(torch.from_numpy(x), 2, return_indices=True)
    right, of_torch = F.max_pool1d(torch.from_numpy(x), 2, return_indices=True)
    assert torch.equal(places, of_torch)
    assert torch.equal(y.isnan(), right.isnan())
    assert places[0, 0].tolist() == [0, 2, 5, 6]
    found, own = bridge.jax.max_pool(x, 2, return_indices=True, axis=1)
    np.testing.assert_array_equal(found, y)
    np.testing.assert_array_equal(own, places)


@pytest.mark.parametrize("name", ["max_pool", "avg_pool"])
def test_derivatives_and_transforms(name: str) -> None:
    for last in (False, True):
        call = in_layout(name, last, 2, 1, 1)
        assert_transforms(call, ((2, 3, 4, 2),), (False,))


def test_vmap(rng: Any) -> None:
    (x,) = drawn(rng, ((3, 2, 4, 5, 2),), "float32")
    for name, given in (("max_pool", (2, 1)), ("avg_pool", (2, 1)), ("adaptive_avg_pool", (2,))):
        call = in_layout(name, True, *given)
        for ops, batched, array in (
            (bridge.torch, torch.func.vmap, torch.from_numpy),
            (bridge.jax, jax.vmap, jnp.asarray),
        ):
            found = batched(lambda a, ops=ops, call=call: call(ops, a))(array(x))
            each = np.stack([np.asarray(call(ops, array(a))) for a in x])
            assert np.array_equal(np.asarray(found), each)


def test_the_layout_stays(rng: Any) -> None:
    (x,) = (torch.from_numpy(a) for a in drawn(rng, ((2, 3, 6, 6),), "float32"))
    last = x.contiguous(memory_format=torch.channels_last)
    for call in (
        lambda a: bridge.torch.max_pool(a, 2),
        lambda a: bridge.torch.avg_pool(a, 3, 2, 1),
        lambda a: bridge.torch.adaptive_avg_pool(a, (2, 3)),
    ):
        assert torch.equal(call(x), call(last))
        assert call(last).is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(call(x)[1:], call(x[1:]))
    one = bridge.torch.max_pool(x[0], (2, 2))
    assert torch.equal(one, bridge.torch.max_pool(x, 2)[0])


@pytest.mark.parametrize(
    "name", ["max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d"]
)
def test_samples_of_torch(name: str) -> None:
    """The samples with which torch tests its own pools."""
    tried = 0
    for sample in itertools.islice(samples_of(f"nn.functional.{name}"), 40):
        count = int(name[-2])
        if sample.input.ndim != count + 2 or 0 in sample.input.shape:
            continue
        expected = getattr(F, name)(sample.input, *sample.args, **sample.kwargs)
        found = getattr(bridge.torch, name[:-2])(sample.input, *sample.args, **sample.kwargs)
        pairs = (
            zip(expected, found, strict=True) if isinstance(found, tuple) else [(expected, found)]
        )
        for right, own in pairs:
            torch.testing.assert_close(own, right)
        tried += 1
    assert tried


REFUSED: dict[str, Refusal] = {
    "dimensions": (
        lambda f, a: f.max_pool(a(2, 8), 2),
        ValueError,
        r"max_pool: input has shape \[2, 8\], expected images, channels and 1 to 3",
    ),
    "kernel": (
        lambda f, a: f.max_pool(a(1, 8, 8), 0),
        ValueError,
        "max_pool: kernel_size is 0, expected an integer from 1 on",
    ),
    "strides": (
        lambda f, a: f.avg_pool(a(1, 8, 8), 2, (1, 1)),
        ValueError,
        r"avg_pool: stride is \(1, 1\), expected one number or 1",
    ),
    "padding": (
        lambda f, a: f.avg_pool(a(1, 8, 8), 3, padding=2),
        ValueError,
        "avg_pool: padding is 2, expected at most half of the window's 3 places",
    ),
    "half": (
        lambda f, a: f.max_pool(a(1, 8, 8), 2.5),
        TypeError,
        "max_pool: kernel_size has type float, expected an integer",
    ),
    "large": (
        lambda f, a: f.max_pool(a(1, 8, 8), 9),
        ValueError,
        r"max_pool: input has shape \[1, 8, 8\], which is smaller than a window of \[9\]",
    ),
    "divisor": (
        lambda f, a: f.avg_pool(a(1, 8, 8), 2, divisor_override=0),
        ValueError,
        "avg_pool: divisor_override is 0, expected an integer but 0",
    ),
    "dtype": (
        lambda f, a: f.adaptive_avg_pool(a(1, 8, 8, dtype="int32"), 1),
        TypeError,
        "adaptive_avg_pool: input has dtype int32, expected one of float16",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_in_the_same_words(case: str) -> None:
    assert_refused(REFUSED[case])
