"""Derivatives of convolutions of any order, forward mode and batches, in both frameworks."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge.torch as bt
from tests.convolution.cases import CASES, as_jax, drawn, in_jax, in_torch, same, to_torch

SMALL = ["groups", "1d", "stride and dilation", "depthwise times 2"]


def _double(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_finite_differences(groups: int, is_transposed: bool) -> None:
    x, bias = _double(2, 2, 4, 3), _double(4)
    w = _double(*((2, 4 // groups) if is_transposed else (4, 2 // groups)), 3, 2)

    def f(x: Any, w: Any, bias: Any) -> Any:
        if is_transposed:
            return bt.conv_transpose2d(x, w, bias, (2, 1), (1, 0), (1, 0), groups)
        return bt.conv2d(x, w, bias, (2, 1), (1, 1), (1, 2), groups)

    assert torch.autograd.gradcheck(
        f,
        (x, w, bias),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        fast_mode=True,
    )
    assert torch.autograd.gradgradcheck(
        f, (x, w, bias), check_fwd_over_rev=True, check_rev_over_rev=True, fast_mode=True
    )


@pytest.mark.parametrize("name", SMALL)
def test_second_derivatives_are_equal(name: str, rng: np.random.Generator) -> None:
    """Derivatives with one sum each: the frameworks add several sums in their own order."""
    case = CASES[name]
    x, w, bias, g = (to_torch(each, "float32") for each in drawn(rng, case))
    u, v = (to_torch(rng.standard_normal(t.shape), "float32") for t in (x, w))
    bias = torch.zeros_like(bias)

    def f(x: Any, w: Any) -> Any:
        return in_torch(case, x, w, bias)

    def dx(w: Any) -> Any:
        return torch.func.vjp(lambda x: f(x, w), x)[1](g)[0]

    def dw(x: Any) -> Any:
        return torch.func.vjp(lambda w: f(x, w), w)[1](g)[0]

    found = [
        torch.func.jvp(lambda x: f(x, w), (x,), (u,))[1],
        torch.func.jvp(lambda w: f(x, w), (w,), (v,))[1],
        torch.func.vjp(dx, w)[1](u)[0],
        torch.func.vjp(dw, x)[1](v)[0],
        torch.func.jvp(dx, (w,), (v,))[1],
        torch.func.jvp(dw, (x,), (u,))[1],
    ]
    X, W, G, U, V = map(as_jax, (x, w, g, u, v))

    def h(x: Any, w: Any) -> Any:
        return in_jax(case, x, w)

    def hx(w: Any) -> Any:
        return jax.vjp(lambda x: h(x, w), X)[1](G)[0]

    def hw(x: Any) -> Any:
        return jax.vjp(lambda w: h(x, w), W)[1](G)[0]

    expected = [
        jax.jvp(lambda x: h(x, W), (X,), (U,))[1],
        jax.jvp(lambda w: h(X, w), (W,), (V,))[1],
        jax.vjp(hx, W)[1](U)[0],
        jax.vjp(hw, X)[1](V)[0],
        jax.jvp(hx, (W,), (V,))[1],
        jax.jvp(hw, (X,), (U,))[1],
    ]
    for one, two in zip(found, expected, strict=True):
        same(one, two)


@pytest.mark.parametrize("dims", list(itertools.product((None, 0, 1), (None, 0, 2), (None, 0))))
@pytest.mark.parametrize("is_transposed", [False, True])
def test_vmap_in_torch(is_transposed: bool, dims: Any) -> None:
    """A batch has the bits of its members one by one."""
    if dims == (None,) * 3:
        return
    shapes = ((2, 4, 5, 4), (4, 3, 3, 2) if is_transposed else (6, 2, 3, 2), (6,))
    given = [
        torch.randn(s if d is None else (*s[:d], 3, *s[d:]))
        for s, d in zip(shapes, dims, strict=True)
    ]

    def f(x: Any, w: Any, bias: Any) -> Any:
        if is_transposed:
            return bt.conv_transpose2d(x, w, bias, 2, 1, groups=2)
        return bt.conv2d(x, w, bias, 2, 1, groups=2)

    made = torch.vmap(f, dims)(*given)
    for i in range(3):
        one = [t if d is None else t.select(d, i) for t, d in zip(given, dims, strict=True)]
        same(made[i], f(*one))


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), (1, 2)])
@pytest.mark.parametrize("name", SMALL)
def test_vmap_in_jax(name: str, dims: Any, rng: np.random.Generator) -> None:
    case = CASES[name]
    x, w = (
        jnp.asarray(rng.standard_normal(s if d is None else (*s[:d], 3, *s[d:])), jnp.float32)
        for s, d in zip((case.x, case.w), dims, strict=True)
    )

    def both(x: Any, w: Any) -> Any:
        y, pull = jax.vjp(lambda x, w: in_jax(case, x, w), x, w)
        return y, *pull(y)

    found = jax.vmap(both, dims)(x, w)
    for i in range(3):
        one = [t if d is None else jnp.take(t, i, d) for t, d in zip((x, w), dims, strict=True)]
        for batch, alone in zip(found, both(*one), strict=True):
            same(batch[i], alone)


def test_gradients_of_each_example() -> None:
    w, x = torch.randn(4, 3, 3, 3), torch.randn(5, 1, 3, 6, 6)

    def loss(w: Any, x: Any) -> Any:
        return bt.conv2d(x, w, padding=1).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x)
    for i in range(5):
        same(each[i], torch.func.grad(loss)(w, x[i]))
    hessian = torch.func.hessian(loss)(w.double(), x[0].double())
    assert hessian.shape == (*w.shape, *w.shape)
