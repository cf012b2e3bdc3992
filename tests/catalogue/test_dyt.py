"""dyt and poly_norm: against their formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import bridge.torch
from tests.catalogue.formulas import (
    assert_near_and_same_bits,
    assert_transforms,
    drawn,
    exact,
)
from tests.catalogue.refusals import Refusal, assert_refused
from tests.frameworks import DTYPES, FRAMEWORKS, numpy_dtype

SHAPES = [(5, 3), (2, 3, 21), (17, 1026), (6,), (0, 4), (3, 0), (1, 1)]
EPS = 1e-3


def dyt(x: Any, alpha: Any, weight: Any = 1.0, bias: Any = 0.0) -> Any:
    return torch.tanh(alpha * x) * weight + bias


def poly_norm(x: Any, weight: Any, bias: Any = 0.0) -> Any:
    powers = [x**3, x**2, x]
    norms = [u / torch.sqrt((u * u).mean(-1, keepdim=True) + EPS) for u in powers]
    return sum(weight[i] * norm for i, norm in enumerate(norms)) + bias


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dyt(shape: Any, dtype: str, rng: Any) -> None:
    for number in ((), (1,)):
        x, alpha, weight, bias, g = drawn(
            rng, (shape, number, shape[-1:], shape[-1:], shape), dtype
        )
        for operands in ((x, alpha, weight, bias), (x, alpha, weight), (x, alpha)):
            assert_near_and_same_bits(lambda ops, *a: ops.dyt(*a), dyt, operands, g, units=30.0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_poly_norm(shape: Any, dtype: str, rng: Any) -> None:
    for number in ((), (1,)):
        x, weight, bias, g = drawn(rng, (shape, (3,), number, shape), dtype)
        for operands in ((x, weight, bias), (x, weight)):
            assert_near_and_same_bits(
                lambda ops, *a: ops.poly_norm(*a, eps=EPS), poly_norm, operands, g, units=120.0
            )


@pytest.mark.parametrize(
    "dtypes",
    [
        ("bfloat16", "float32", "bfloat16"),
        ("bfloat16", "bfloat16", "float64"),
        ("float16", "bfloat16", "float16"),
        ("float32", "float16", "bfloat16"),
    ],
    ids=str,
)
def test_mixed_dtypes(dtypes: Any, rng: Any) -> None:
    shapes = ((4, 6), (3,), (1,), (4, 6))
    x, weight, bias, g = (
        a.astype(numpy_dtype(dtype))
        for a, dtype in zip(drawn(rng, shapes, "float64"), (*dtypes, "float64"), strict=True)
    )
    expected = torch.promote_types(
        torch.promote_types(*(getattr(torch, dtype) for dtype in dtypes[:2])),
        getattr(torch, dtypes[2]),
    )
    g = g.astype(numpy_dtype(str(expected).removeprefix("torch.")))
    call = lambda ops, *a: ops.poly_norm(*a, eps=EPS)  # noqa: E731
    assert_near_and_same_bits(call, poly_norm, (x, weight, bias), g, units=120.0)
    operands = (x, bias, weight[:1].repeat(6))
    assert_near_and_same_bits(lambda ops, *a: ops.dyt(*a), dyt, operands, g, units=30.0)


@pytest.mark.parametrize(("plain", "number"), [(dyt, ()), (poly_norm, (3,))])
def test_gradients_of_numbers_are_as_accurate_as_those_of_torch(
    plain: Any, number: Any, rng: Any
) -> None:
    """The error of one number is one draw, so the errors of many draws are compared."""

    def fused(x: Any, numbers: Any) -> Any:
        return (
            bridge.torch.dyt(x, numbers)
            if plain is dyt
            else bridge.torch.poly_norm(x, numbers, eps=EPS)
        )

    ours, own = [], []
    for _ in range(24):
        x, numbers, g = drawn(rng, ((64, 257), number, (64, 257)), "float32")
        *_, right = exact(plain, (x, numbers), g)
        for found, function in ((ours, fused), (own, plain)):
            _, _, gradient = FRAMEWORKS[0].vjp(function, [x, numbers], g)
            found.append(gradient - right)
    assert np.mean(np.square(ours)) <= 1.5**2 * np.mean(np.square(own))


def test_derivatives_and_transforms() -> None:
    assert_transforms(
        lambda ops, *a: ops.dyt(*a), ((2, 3, 4), (1,), (4,), (4,)), (True, False, False, False)
    )
    assert_transforms(
        lambda ops, *a: ops.poly_norm(*a, eps=EPS), ((2, 3, 4), (3,), (1,)), (True, False, False)
    )


def test_a_number_for_each_example_of_vmap() -> None:
    x, alpha, weight = torch.randn(2, 3, 4), torch.randn(2), torch.randn(2, 3)
    found = torch.func.vmap(bridge.torch.dyt)(x, alpha)
    assert torch.equal(
        found, torch.stack([bridge.torch.dyt(*each) for each in zip(x, alpha, strict=True)])
    )
    found = torch.func.vmap(bridge.torch.poly_norm)(x, weight)
    each = [bridge.torch.poly_norm(*both) for both in zip(x, weight, strict=True)]
    assert torch.equal(found, torch.stack(each))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_special_values(dtype: str) -> None:
    """NaN stays, infinities saturate tanh, a row of zeros has no NaN, overflow gives 0."""
    x = torch.randn(5, 4).to(getattr(torch, dtype))
    x[0], x[1, 2], x[2, 1], x[3, 0] = 0.0, torch.nan, torch.inf, -torch.inf
    alpha, weight = torch.tensor(0.5).to(x.dtype), torch.tensor([0.3, 0.4, 0.3]).to(x.dtype)
    found = bridge.torch.dyt(x, alpha)
    right = torch.tanh(alpha.double() * x.double())
    torch.testing.assert_close(found.double(), right, rtol=0.01, atol=0.0, equal_nan=True)
    y = bridge.torch.poly_norm(x, weight)
    assert not y[0].any()
    assert y[1].isnan().all()
    assert torch.equal(y[2:4].isnan(), x[2:4].isinf())
    assert y[4].isfinite().all()
    if dtype == "float32":
        x[4] = torch.tensor([1e8, 1.0, -1.0, 2.0])
        expected = 0.4 * 0 + 0.3 * 2 * torch.sign(x[4, :1])
        torch.testing.assert_close(bridge.torch.poly_norm(x, weight)[4, :1] - 0.4 * 2, expected)


REFUSED: dict[str, Refusal] = {
    "alpha": (
        lambda m, a: m.dyt(a(2, 8), a(2)),
        ValueError,
        r"^dyt: alpha has shape \[2\], expected \[\] or \[1\]",
    ),
    "bias of dyt": (
        lambda m, a: m.dyt(a(2, 8), a(), None, a(7)),
        ValueError,
        r"^dyt: bias has shape \[7\], expected \[8\]",
    ),
    "integers": (
        lambda m, a: m.dyt(a(2, 8), a(dtype="int32")),
        TypeError,
        "^dyt: alpha has dtype int32, expected one of float16",
    ),
    "no dimension": (lambda m, a: m.dyt(a(), a()), ValueError, "^dyt: x is 0-dimensional"),
    "weight": (
        lambda m, a: m.poly_norm(a(2, 8), a(2)),
        ValueError,
        r"^poly_norm: weight has shape \[2\], expected \[3\]",
    ),
    "one weight": (
        lambda m, a: m.poly_norm(a(2, 8), a()),
        ValueError,
        r"^poly_norm: weight has shape \[\], expected \[3\]",
    ),
    "bias": (
        lambda m, a: m.poly_norm(a(2, 8), a(3), a(8)),
        ValueError,
        r"^poly_norm: bias has shape \[8\], expected \[\] or \[1\]",
    ),
    "eps": (
        lambda m, a: m.poly_norm(a(2, 8), a(3), eps=0.0),
        ValueError,
        r"^poly_norm: eps is 0\.0, expected a positive",
    ),
    "no row": (
        lambda m, a: m.poly_norm(a(), a(3)),
        ValueError,
        "^poly_norm: x is 0-dimensional",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_in_the_same_words(case: str) -> None:
    assert_refused(REFUSED[case])
