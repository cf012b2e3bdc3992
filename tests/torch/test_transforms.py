"""torch.func: its transforms and their nestings."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
import torch
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

from bridge.torch import bias_gelu, from_jax
from tests.torch.expected import assert_close, assert_same_bits, gelu


def test_vjp_and_grad(draw: Any) -> None:
    x, bias, g = draw(4, 3), draw(3), draw(4, 3)
    _, pull = vjp(bias_gelu, x, bias)
    dx, dbias = pull(g)
    expected = gelu(x, bias, "tanh", 1, g)
    assert_close(dx, expected)
    assert_close(dbias, expected.sum(0))
    both = grad(lambda x, b: (bias_gelu(x, b) * g).sum(), argnums=(0, 1))(x, bias)
    assert_same_bits(both[0], dx)
    assert_same_bits(both[1], dbias)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # torch's own
def test_jvp_and_linearize(draw: Any) -> None:
    x, bias, t, t_bias = draw(4, 3), draw(3), draw(4, 3), draw(3)
    expected = gelu(x, bias, "tanh", 1, t + t_bias)
    assert_close(jvp(bias_gelu, (x, bias), (t, t_bias))[1], expected)
    value, push = linearize(bias_gelu, x, bias)
    assert_close(value, gelu(x, bias))
    assert_close(push(t, t_bias), expected)


def test_jacobians_and_hessian(draw: Any) -> None:
    x, bias = draw(2, 3), draw(3)
    expected = torch.diag(gelu(x, bias, "tanh", 1).reshape(-1)).reshape(2, 3, 2, 3)
    assert_close(jacrev(bias_gelu)(x, bias), expected)
    assert_close(jacfwd(bias_gelu)(x, bias), expected)
    assert_close(jacrev(bias_gelu, argnums=1)(x, bias), expected.sum(2))
    assert_close(jacfwd(bias_gelu, argnums=1)(x, bias), expected.sum(2))
    second = gelu(x, bias, "tanh", 2)
    curvature = hessian(lambda b: bias_gelu(x, b).sum())(bias)
    assert_close(curvature, torch.diag(second.sum(0)))
    other_way = jacrev(jacfwd(lambda b: bias_gelu(x, b).sum()))(bias)
    assert_close(other_way, torch.diag(second.sum(0)))


@pytest.mark.parametrize(
    ("x_shape", "bias_shape", "in_dims"),
    [
        ((5, 4, 3), (3,), (0, None)),
        ((4, 5, 3), (3,), (1, None)),
        ((4, 3, 5), (3,), (-1, None)),
        ((4, 3), (5, 3), (None, 0)),
        ((4, 3), (3, 5), (None, 1)),
        ((4, 5, 3), (3, 5), (1, 1)),
        ((5, 3), (5, 3), (0, 0)),
    ],
)
def test_vmap_is_a_loop(draw: Any, x_shape: Any, bias_shape: Any, in_dims: Any) -> None:
    x, bias, g = draw(*x_shape), draw(*bias_shape), draw(5, 4, 3)
    g = g if x.ndim + (in_dims[0] is None) == 3 else g[:, 0]

    def values_and_gradients(x: Any, bias: Any, g: Any) -> Any:
        value, pull = vjp(bias_gelu, x, bias)
        return value, *pull(g)

    def member(tensor: Any, dim: int | None, i: int) -> Any:
        return tensor if dim is None else tensor.select(dim, i)

    batched = vmap(values_and_gradients, in_dims=(*in_dims, 0))(x, bias, g)
    chunked = vmap(values_and_gradients, in_dims=(*in_dims, 0), chunk_size=2)(x, bias, g)
    for i in range(5):
        alone = values_and_gradients(member(x, in_dims[0], i), member(bias, in_dims[1], i), g[i])
        for one, many, some in zip(alone, batched, chunked, strict=True):
            assert_same_bits(many[i], one)
            assert_same_bits(some[i], one)


def test_per_example_gradients(draw: Any) -> None:
    x, bias, g = draw(6, 4, 3), draw(3), draw(6, 4, 3)
    per_example = vmap(grad(lambda b, x, g: (bias_gelu(x, b) * g).sum()), in_dims=(None, 0, 0))(
        bias, x, g
    )
    assert_close(per_example, gelu(x, bias, "tanh", 1, g).sum(1))


def test_nestings(draw: Any) -> None:
    x, bias, g, t = draw(6, 4, 3), draw(6, 3), draw(6, 4, 3), draw(6, 4, 3)
    nested = vmap(vmap(bias_gelu, in_dims=(0, None)))(x, bias)
    expected = torch.stack([gelu(a, b) for a, b in zip(x, bias, strict=True)])
    assert_close(nested, expected)
    inner = vmap(lambda x, b, g, t: jvp(lambda x: vjp(bias_gelu, x, b)[1](g), (x,), (t,))[1])
    dx, dbias = inner(x, bias, g, t)
    expected = torch.stack([gelu(x[i], bias[i], "tanh", 2, g[i], t[i]) for i in range(6)])
    assert_close(dx, expected)
    assert_close(dbias, expected.sum(1))
    over = jvp(lambda x: vmap(bias_gelu)(x, bias), (x,), (t,))[1]
    assert_close(over, torch.stack([gelu(x[i], bias[i], "tanh", 1, t[i]) for i in range(6)]))
    third = grad(grad(grad(lambda x: bias_gelu(x.reshape(1), bias[0, :1]).sum())))(x[0, 0, 0])
    assert_close(
        third.reshape(1), gelu(x[0, 0, :1], bias[0, :1], "tanh", 3), ulps=1e4
    )  # one value, of any size


def test_autograd_around_transforms(draw: Any) -> None:
    """A transform inside leaves a graph that ordinary autograd can differentiate."""
    x, bias, g, v = draw(4, 3), draw(3, grad=True), draw(4, 3), draw(4, 3)
    dx = vjp(lambda x: bias_gelu(x, bias), x)[1](g)[0]
    dx.backward(v)
    assert_close(bias.grad, gelu(x, bias, "tanh", 2, g, v).sum(0))


def test_functionalize(draw: Any) -> None:
    """torch has no rule of Functions for it: ops go through the dispatcher."""
    x, bias, g = draw(4, 3), draw(3), draw(4, 3)

    def loss(x: Any) -> Any:
        return (bias_gelu(x, bias) * g).sum()

    expected = grad(loss)(x)
    assert_same_bits(functionalize(loss)(x), loss(x))
    assert_same_bits(functionalize(grad(loss))(x), expected)
    assert_same_bits(grad(functionalize(loss))(x), expected)
    assert_same_bits(vmap(functionalize(bias_gelu))(x), bias_gelu(x))
    leaf = x.clone().requires_grad_()
    functionalize(loss)(leaf).backward()
    assert_same_bits(leaf.grad, expected)
    sine = from_jax(jnp.sin)
    x = x.float()
    torch.testing.assert_close(functionalize(grad(lambda x: sine(x).sum()))(x), torch.cos(x))
