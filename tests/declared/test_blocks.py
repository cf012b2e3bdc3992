"""Reductions of blocks of columns, and arrays with one number for each block."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import bridge
from bridge import lang as bl

BLOCKS = (16, 32, 64, 128)


def op_of(n: int) -> Any:
    @bridge.op
    def blocks(x: bridge.Full, w: bridge.Row, s: bridge.PerBlock[n], r: bridge.PerRow):
        total = bl.block_sum(x * w, n)
        most = bl.block_max(bl.abs(x), n)
        y = x * r / (most + 1.0)
        return y * s, total * r * s, bl.sum(total * x) + bl.sum(s * r), most * bl.where(x > 0, s, r)

    return blocks


@bridge.op
def sums_and_maxima(x: bridge.Full):
    return [f(x, n) for n in BLOCKS for f in (bl.block_sum, bl.block_max)]


@bridge.op
def row_sum_and_max(x: bridge.Full):
    return bl.sum(x), bl.max(x)


@bridge.op
def nested(x: bridge.Full, s: bridge.PerBlock[32]):
    inner = bl.block_max(x * x, 32)
    outer = bl.block_sum(inner + x, 64)
    chosen = bl.where(inner > 1.5, bl.log(bl.maximum(inner, 0.0)), s)
    return outer * inner * x, chosen, bl.column_sum(outer * x), bl.max(inner * s)


def operands(n: int, rows: int, columns: int, dtype: str = "float32") -> list[np.ndarray]:
    random = np.random.default_rng(rows + columns + n)
    shapes = (rows, columns), (columns,), (rows, columns // n), (rows,)
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def same(x: Any, y: Any) -> bool:
    x, y = (
        np.asarray(each.detach() if isinstance(each, torch.Tensor) else each) for each in (x, y)
    )
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


@pytest.mark.parametrize("columns", [128, 384, 1024, 1152, 4224])
def test_a_block_has_the_bits_of_a_row_of_its_columns(columns):
    torch.manual_seed(columns)
    x = torch.randn(5, columns)
    x[0, 3], x[1, 40], x[2, 7:9] = math.nan, math.inf, 1e30
    found = sums_and_maxima(x)
    for place, n in enumerate(BLOCKS):
        total, most = row_sum_and_max(x.reshape(5, -1, n))
        assert same(found[2 * place], total)
        assert same(found[2 * place + 1], most)
    assert all(map(same, found, sums_and_maxima(x.t().contiguous().t())))
    alone = sums_and_maxima(x[3:4])
    assert all(same(one, many[3:4]) for one, many in zip(alone, found, strict=True))


@pytest.mark.parametrize("n", BLOCKS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 128), (3, 256), (37, 128), (2, 1152)])
def test_torch_and_jax_have_the_same_bits(n, rows, columns):
    op, numbers = op_of(n), operands(n, rows, columns)
    tensors = [torch.from_numpy(each).requires_grad_() for each in numbers]
    results = op(*tensors)
    given = [torch.randn_like(each) for each in results]
    gradients = torch.autograd.grad(results, tensors, given)
    arrays = [jnp.asarray(each) for each in numbers]
    others, pull = jax.vjp(jax.jit(op), *arrays)
    assert all(map(same, results, others))
    pulled = pull(type(others)(jnp.asarray(each.numpy()) for each in given))
    assert all(map(same, gradients, pulled))
    assert results[1].shape == (rows, columns // n)


@pytest.mark.parametrize("n", BLOCKS)
def test_derivatives(n):
    double = [torch.from_numpy(each).requires_grad_() for each in operands(n, 2, 256, "float64")]
    assert gradcheck(op_of(n), double, fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(op_of(n), double, fast_mode=True)
    x, _, s, _ = operands(32, 2, 128, "float64")
    pair = [torch.from_numpy(each).requires_grad_() for each in (x, s)]
    assert gradcheck(nested, pair, fast_mode=True, check_forward_ad=True)


def test_the_gradient_of_a_largest_number_goes_to_the_first_place():
    @bridge.op
    def most(x: bridge.Full):
        return bl.block_max(x, 16)

    x = torch.zeros(1, 32, requires_grad=True)
    (gradient,) = torch.autograd.grad(most(x), x, torch.tensor([[2.0, 3.0]]))
    expected = torch.zeros(1, 32)
    expected[0, 0], expected[0, 16] = 2.0, 3.0
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_are_added_in_float32(dtype):
    x = torch.randn(3, 256).to(getattr(torch, dtype))
    total, *_ = sums_and_maxima(x)
    assert same(total, sums_and_maxima(x.float())[0])
    assert same(total, sums_and_maxima(jnp.asarray(x.float().numpy(), dtype))[0])


def test_batches():
    numbers = [torch.from_numpy(each) for each in operands(16, 6, 128)]
    x, w, s, r = numbers
    whole = op_of(16)(*numbers)
    parts = torch.vmap(op_of(16), (0, None, 0, 0))(
        x.reshape(2, 3, 128), w, s.reshape(2, 3, 8), r.reshape(2, 3)
    )
    assert all(
        same(part.reshape(each.shape), each) for part, each in zip(parts, whole, strict=True)
    )
    compiled = torch.compile(op_of(16), fullgraph=True, backend="eager")
    assert all(map(same, compiled(*numbers), whole))
    arrays = [jnp.asarray(each.numpy()) for each in numbers]
    rows = jax.vmap(op_of(16), (0, None, 0, 0))(*arrays)
    assert all(map(same, rows, whole))


def test_narrow_scales_are_read():
    @bridge.op
    def read(values: bridge.Quantized, scales: bridge.PerBlock[32]):
        return values * scales

    values = torch.randint(-100, 100, (2, 64), dtype=torch.int8)
    scales = torch.tensor([[0.5, 2.0], [4.0, 1.0]]).to(torch.float8_e8m0fnu)
    expected = values.float() * scales.float().repeat_interleave(32, 1)
    assert torch.equal(read(values, scales), expected)
    found = read(jnp.asarray(values.numpy()), bridge.to_jax(scales))
    assert same(found, expected)


def test_float64_and_no_rows():
    with jax.enable_x64(True):
        numbers = operands(64, 2, 192, "float64")
        results = op_of(64)(*map(torch.from_numpy, numbers))
        assert all(map(same, results, op_of(64)(*map(jnp.asarray, numbers))))
    empty = op_of(64)(torch.ones(0, 64), torch.ones(64), torch.ones(0, 1), torch.ones(0))
    assert [tuple(each.shape) for each in empty] == [(0, 64), (0, 1), (0,), (0, 64)]
    none = sums_and_maxima(torch.ones(3, 0))
    assert all(each.shape == (3, 0) for each in none)


def test_refusals():
    with pytest.raises(
        ValueError,
        match=r"nested: x has shape \[2, 96\], expected a last dimension that is a multiple of 64",
    ):
        nested(torch.ones(2, 96), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"nested: s has shape \[2, 3\], expected \[2, 2\]"):
        nested(jnp.ones((2, 64)), jnp.ones((2, 3)))
    with pytest.raises(TypeError, match=r"bridge.PerBlock\[8\]: n is one of 16, 32, 64, 128"):
        bridge.PerBlock[8]

    def wrong(x: bridge.Full):
        return bl.block_max(x, 48)

    with pytest.raises(bl.DeclarationError, match="no blocks of 48 columns: one of 16, 32, 64"):
        bridge.op(wrong)(torch.ones(2, 96))
