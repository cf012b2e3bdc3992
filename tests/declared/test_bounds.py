"""clip, relu, min and argmin; and one number a row as an array `[*rows, 1]`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge
from bridge import lang as bl
from tests.frameworks import FRAMEWORKS


@bridge.op
def bounded(x: bridge.Full, high: bridge.PerRow) -> Any:
    return bl.clip(x, -0.5, high), bl.clip(x, low=0.25), bl.clip(x, high=high), bl.relu(x)


@bridge.op
def smallest(x: bridge.Full, last: bridge.PerRow[int]) -> Any:
    seen = bl.visible(x, last=last)
    return bl.min(x), 1.0 * bl.argmin(x), bl.min(seen), 1.0 * bl.argmin(seen)


@bridge.op
def chosen(x: bridge.Full, weight: bridge.PerRow, column: bridge.PerRow[int]) -> Any:
    return bl.sum(bl.where(bl.column() == column, x, 0.0)) * weight


def _numbers(*shape: int) -> Any:
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
def test_values_of_bounds(own: Any) -> None:
    x, high = _numbers(4, 33), np.abs(_numbers(4))
    x[0, :4] = [np.nan, np.inf, -np.inf, -0.0]
    high[2] = -1.0  # below the other bound
    top = high[:, None]
    expected = (
        np.minimum(np.maximum(x, np.float32(-0.5)), top),
        np.maximum(x, np.float32(0.25)),
        np.minimum(x, top),
        np.where(x <= 0, np.float32(0.0), x),
    )
    for i, wanted in enumerate(expected):
        found = own.call(lambda *a, i=i: bounded(*a)[i], x, high)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
def test_the_smallest_of_a_row(own: Any) -> None:
    x, last = _numbers(5, 40), np.array([0, 7, 39, 20, -1])
    x[1, 3] = x[1, 5] = -9.0  # the first of two
    x[2, 8] = np.nan
    found = [own.call(lambda *a, i=i: smallest(*a)[i], x, last) for i in range(4)]
    hidden = np.where(np.arange(40) <= last[:, None], x, np.float32(np.inf))
    np.testing.assert_array_equal(found[0], x.min(1))
    np.testing.assert_array_equal(found[1], np.argmin(x, 1))
    np.testing.assert_array_equal(found[2], hidden.min(1))
    np.testing.assert_array_equal(found[3][:4], np.argmin(hidden, 1)[:4])


def test_gradients_of_bounds() -> None:
    """They go to x where x is returned, to the bound elsewhere; relu has 0 at 0."""
    x = np.array([[-1.0, -0.5, 0.0, 0.5, 3.0]], np.float32)
    high, g = np.array([0.5], np.float32), _numbers(4, 1, 5)
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, high)]
    for i, (dx, dhigh) in enumerate(
        (
            ([0, 1, 1, 1, 0], [0, 0, 0, 0, 1]),
            ([0, 0, 0, 1, 1], [0, 0, 0, 0, 0]),
            ([1, 1, 1, 1, 0], [0, 0, 0, 0, 1]),
            ([0, 0, 0, 1, 1], [0, 0, 0, 0, 0]),
        )
    ):
        y = bounded(*tensors)[i]
        found = torch.autograd.grad(y, tensors, torch.tensor(g[i]), allow_unused=True)
        np.testing.assert_array_equal(found[0], g[i] * np.float32(dx))
        total = np.zeros(1, np.float32) if found[1] is None else found[1].numpy()
        np.testing.assert_array_equal(total, (g[i] * np.float32(dhigh)).sum(1))
        pull = jax.vjp(lambda *a, i=i: bounded(*a)[i], *map(jnp.asarray, (x, high)))[1]
        np.testing.assert_array_equal(pull(jnp.asarray(g[i]))[0], found[0])


@pytest.mark.parametrize("rows", [(), (3,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
def test_one_number_a_row_may_be_a_column(own: Any, rows: tuple[int, ...]) -> None:
    x, weight = _numbers(*rows, 6), _numbers(*rows)
    column = np.asarray(np.random.default_rng(1).integers(0, 6, rows))
    plain = own.call(chosen, x, weight, column)
    for _ in range(2):  # the second call finds the kind of the first
        found = own.call(chosen, x, weight[..., None], column[..., None])
        np.testing.assert_array_equal(found, plain)
        assert np.shape(found) == rows


def test_gradients_and_transforms_of_columns() -> None:
    x, weight, column = _numbers(2, 3, 6), _numbers(2, 3, 1), np.array([[0, 1, 5], [2, 2, 3]])
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, weight)]
    chosen(*tensors, torch.tensor(column)[..., None]).sum().backward()
    arrays = [jnp.asarray(a) for a in (x, weight, column[..., None])]
    gradients = jax.jit(jax.grad(lambda *a: chosen(*a).sum(), (0, 1)))(*arrays)
    for tensor, gradient in zip(tensors, gradients, strict=True):
        assert tensor.grad is not None
        assert tensor.grad.shape == gradient.shape
        np.testing.assert_array_equal(tensor.grad, gradient)
    given = [torch.tensor(a) for a in (x, weight, column[..., None])]
    expected = chosen(*given)
    assert torch.equal(torch.func.vmap(chosen)(*given), expected)
    np.testing.assert_array_equal(jax.vmap(chosen)(*arrays), expected)
    np.testing.assert_allclose(
        chosen.reference(x, weight, column[..., None]), expected, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("shape", [(3, 2), (2, 3, 2), (1, 3, 1), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("make", [torch.ones, jnp.ones, np.ones], ids=["torch", "jax", "numpy"])
def test_other_shapes_are_refused(make: Any, shape: tuple[int, ...]) -> None:
    column = make((2, 3), dtype=torch.int64 if make is torch.ones else np.int32)
    with pytest.raises(ValueError, match=r"weight has shape .*expected \[2, 3\]"):
        chosen(make((2, 3, 6)), make(shape), column)
