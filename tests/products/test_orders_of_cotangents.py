"""Three cotangents of one value are added in one order in both frameworks, in every derivative."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge.jax as bj
import bridge.torch as bt
from bridge.jax._adapter.convolutions import convolution
from bridge.ops.convolution import ConvolutionParams
from tests.products.test_products import DTYPES, same, to_torch

SHAPES = ((9, 40), (7, 40), (7,), (9, 7))  # x, weight, bias and the cotangent


def first_in_jax(operands: Any, g: Any) -> Any:
    return jax.vjp(bj.linear, *operands)[1](g)


def second_in_jax(operands: Any, g: Any, directions: Any) -> Any:
    """Returns the cotangents of x, weight, bias and g."""
    found, of_g = jax.vjp(first_in_jax, operands, g)[1](directions)
    return (*found, of_g)


def third_in_jax(operands: Any, g: Any, directions: Any, further: Any) -> Any:
    return jax.vjp(second_in_jax, operands, g, directions)[1](further)


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_with_a_bias(dtype: str, rng: np.random.Generator) -> None:
    """The cotangent of g has a part of x, of weight and of the bias."""
    numbers = [rng.standard_normal(s) for s in (*SHAPES, *SHAPES[:3], *SHAPES)]
    tensors = [to_torch(x, dtype).requires_grad_() for x in numbers]
    leaves, g, directions = tensors[:3], tensors[3], tensors[4:7]
    y = bt.linear(*leaves)
    first = torch.autograd.grad(y, leaves, g, create_graph=True)
    options = {"create_graph": True, "allow_unused": True, "materialize_grads": True}
    second = torch.autograd.grad(first, [*leaves, g], directions, **options)
    moved = [(x, d) for x, d in zip(second, tensors[7:], strict=True) if x.grad_fn is not None]
    outputs, further = zip(*moved, strict=True)
    third = torch.autograd.grad(outputs, tensors[:7], further, **options)
    with jax.enable_x64(True):
        arrays = [jnp.asarray(x, dtype) for x in numbers]
        given = (tuple(arrays[:3]), arrays[3], tuple(arrays[4:7]))
        for ours, theirs in zip(second, jax.jit(second_in_jax)(*given), strict=True):
            same(ours.detach(), theirs)
        found = jax.jit(third_in_jax)(*given, tuple(arrays[7:]))
        for ours, theirs in zip(third, jax.tree.leaves(found), strict=True):
            same(ours.detach(), theirs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_convolution_with_a_bias(dtype: str, rng: np.random.Generator) -> None:
    """The rule is that of products; JAX's public functions add a bias by an op of JAX."""
    shapes = (2, 3, 6, 6), (4, 3, 3, 3), (4,), (2, 4, 4, 4)
    numbers = [rng.standard_normal(s) for s in (*shapes, *shapes[:3])]
    tensors = [to_torch(x, dtype).requires_grad_() for x in numbers]
    leaves, g, directions = tensors[:3], tensors[3], tensors[4:]
    first = torch.autograd.grad(bt.conv2d(*leaves), leaves, g, create_graph=True)
    second = torch.autograd.grad(first, [*leaves[:2], g], directions)
    params = ConvolutionParams("forward", dtype, (4, 4), (1, 1), (0, 0), (1, 1))

    def first_of(operands: Any, g: Any) -> Any:
        return jax.vjp(lambda *given: convolution(*given, params), *operands)[1](g)

    def second_of(operands: Any, g: Any, directions: Any) -> Any:
        (of_x, of_weight, _), of_g = jax.vjp(first_of, operands, g)[1](directions)
        return of_x, of_weight, of_g

    with jax.enable_x64(True):
        arrays = [jnp.asarray(x, dtype) for x in numbers]
        found = jax.jit(second_of)(tuple(arrays[:3]), arrays[3], tuple(arrays[4:]))
        for ours, theirs in zip(second, found, strict=True):
            same(ours.detach(), theirs)
