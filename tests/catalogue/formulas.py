"""Ops compared with their formulas, written in torch's own operations and run in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import bridge.jax
import bridge.torch
from tests.frameworks import EPSILON, FRAMEWORKS, bits, numpy_dtype

Call = Callable[..., Any]  # call(ops, *arrays)


def drawn(rng: Any, shapes: Sequence[Any], dtype: str) -> list[Any]:
    return [np.asarray(rng.normal(size=shape), numpy_dtype(dtype)) for shape in shapes]


def exact(
    plain: Callable[..., Any], operands: Sequence[Any], g: Any, dtype: Any = np.float64
) -> list[Any]:
    """Returns the value and all gradients of a formula in float64."""
    leaves = [torch.tensor(np.asarray(a, dtype), requires_grad=True) for a in operands]
    y = plain(*leaves)
    gradients = torch.autograd.grad(y, leaves, torch.tensor(np.asarray(g, dtype)))
    return [each.detach().numpy() for each in (y, *gradients)]


def error_of_formula(plain: Callable[..., Any], operands: Sequence[Any], g: Any) -> list[float]:
    """Estimates the rounding errors of a formula in float64, for values and gradients.

    They are those of the same formula in float32, on numbers that float32 has, scaled to the digits
    of float64. A gradient that cancels loses as many digits in both.
    """
    narrow = [np.asarray(a, np.float32) for a in (*operands, g)]
    pairs = zip(
        exact(plain, narrow[:-1], narrow[-1]),
        exact(plain, narrow[:-1], narrow[-1], np.float32),
        strict=True,
    )
    scale = EPSILON["float64"] / EPSILON["float32"]
    return [float(np.max(np.abs(wide - one), initial=0.0)) * scale for wide, one in pairs]


def assert_near_and_same_bits(
    call: Call, plain: Callable[..., Any], operands: Sequence[Any], g: Any, units: float = 8.0
) -> None:
    """Compares value and gradients with the formula, and the bits of both frameworks.

    An error is a few units of the result's largest number, and `units` of the arithmetic. In
    float64 the formula's own error is allowed, too.
    """
    found = []
    for own in FRAMEWORKS:
        found.append(own.vjp(lambda *a, own=own: call(own.ops, *a), [*operands], g))
    for one, other in zip(*found, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(bits(one), bits(other))
    for mine, operand in zip(found[0][1:], operands, strict=True):
        assert (mine.dtype, mine.shape) == (operand.dtype, operand.shape)
    is_wide = any(a.dtype == np.float64 for a in operands)
    expected = exact(plain, operands, g)
    allowed = error_of_formula(plain, operands, g) if is_wide else [0.0] * len(expected)
    for mine, right, error in zip(found[0], expected, allowed, strict=True):
        own = EPSILON[np.dtype(mine.dtype).name]
        unit = 2 * own + units * EPSILON["float64" if is_wide else "float32"]
        size = np.max(np.abs(right), initial=1.0)
        np.testing.assert_allclose(
            np.asarray(mine, np.float64), right, rtol=0, atol=unit * size + 4 * error
        )


def assert_transforms(
    call: Call, shapes: Sequence[Any], batched: Sequence[bool], again: bool = True
) -> None:
    """Checks derivatives, torch.compile, jit and vmap over the first dimension of some operands."""
    operands = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]

    def f(*arrays: Any) -> Any:
        return call(bridge.torch, *arrays)

    assert torch.autograd.gradcheck(f, operands, check_forward_ad=True)
    assert not again or torch.autograd.gradgradcheck(f, operands)
    expected = f(*operands).detach()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*operands), expected)
    dims = tuple(0 if is_batched else None for is_batched in batched)
    if any(batched):
        assert torch.equal(torch.func.vmap(f, dims)(*operands), expected)
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a.detach().numpy()) for a in operands]

        def of_jax(*arrays: Any) -> Any:
            return call(bridge.jax, *arrays)

        forms = [jax.jit(of_jax), *([jax.vmap(of_jax, dims)] if any(batched) else [])]
        for form in forms:
            np.testing.assert_array_equal(form(*arrays), expected)
