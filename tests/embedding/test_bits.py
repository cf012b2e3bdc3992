"""Embeddings: values and all derivatives have the bits of the documented order."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import bridge.torch
from bridge import _native
from tests.embedding.reference import drawn, drawn_ids, sums
from tests.frameworks import DTYPES, FRAMEWORKS, bits
from tests.isas import ISAS

INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")

each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)


def same(found: Any, expected: Any) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert np.array_equal(bits(found), bits(expected))


def of_ids(own: Any, ids: Any) -> Any:
    """Returns the op as a function of the table."""
    return partial(own.ops.embedding, own.array(ids))


# The shape of ids, n and d. The most frequent id has about 5, 20, 300, 800 and 5000 positions.
SHAPES = [
    ((2, 5), 4, 3),
    ((40,), 7, 33),
    ((2, 3, 100), 5, 70),
    ((1600,), 50, 130),
    ((2, 5000), 9, 17),
]


@each
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "n", "d"), SHAPES)
def test_values_and_derivatives(
    shape: Any, n: int, d: int, dtype: str, own: Any, rng: np.random.Generator
) -> None:
    ids = drawn_ids(rng, shape, n, often=n - 1)
    weight, tangent, direction = (drawn(rng, (n, d), dtype) for _ in range(3))
    g = drawn(rng, (*shape, d), dtype)
    found = own.everything(of_ids(own, ids), [weight], g, [tangent], [direction])
    same(found.value, weight[ids])
    same(found.again, weight[ids])
    same(found.gradients[0], sums(g, ids, n))
    same(found.tangent, tangent[ids])
    same(found.second[0], np.zeros_like(weight))
    same(found.second[1], direction[ids])


@each
def test_close_to_float64(own: Any, rng: np.random.Generator) -> None:
    """The error is that of a tree: it hardly grows with thousands of equal ids."""
    ids = drawn_ids(rng, 20000, 30)
    g = rng.standard_normal((20000, 40)).astype(np.float32)
    _, found = own.vjp(of_ids(own, ids), [np.zeros((30, 40), np.float32)], g)
    exact, size = np.zeros((30, 40)), np.zeros((30, 40))
    np.add.at(exact, ids, g.astype(np.float64))
    np.add.at(size, ids, np.abs(g.astype(np.float64)))
    assert np.all(np.abs(found - exact) <= 2.0**-24 * (16 + 10) * size)


@each
@pytest.mark.parametrize("integer", INTEGERS)
def test_dtypes_of_ids(integer: str, own: Any, rng: np.random.Generator) -> None:
    ids = drawn_ids(rng, (3, 50), 100).astype(integer)
    weight, g = drawn(rng, (100, 5), "float32"), drawn(rng, (3, 50, 5), "float32")
    value, gradient = own.vjp(of_ids(own, ids), [weight], g)
    same(value, weight[ids])
    same(gradient, sums(g, ids.astype(np.int64), 100))


@each
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_threads_and_instruction_sets(own: Any, dtype: str, rng: np.random.Generator) -> None:
    """One id has half of the positions: threads then share its columns, and else the rows."""
    cases = [(drawn_ids(rng, (3000,), n), n, d) for n, d in ((3, 200), (400, 200), (900, 2100))]
    before = torch.get_num_threads()
    try:
        for ids, n, d in cases:
            g = drawn(rng, (3000, d), dtype)
            expected = sums(g, ids, n)
            for isa in ISAS:
                _native.set_cpu_isa(isa)
                for threads in (1, 2, 4) if own.name == "torch" else (before,):
                    torch.set_num_threads(threads)
                    found = own.vjp(of_ids(own, ids), [np.zeros((n, d), g.dtype)], g)[1]
                    same(found, expected)
    finally:
        _native.set_cpu_isa(None)
        torch.set_num_threads(before)


@each
@pytest.mark.parametrize(
    ("shape", "n", "d"),
    [((), 3, 2), ((0,), 3, 2), ((2, 0), 0, 2), ((3,), 3, 0), ((0,), 3, 0), ((1, 1), 1, 1)],
)
def test_small_and_empty(own: Any, shape: Any, n: int, d: int, rng: np.random.Generator) -> None:
    ids = rng.integers(0, max(n, 1), shape)
    weight, g = drawn(rng, (n, d), "float32"), drawn(rng, (*shape, d), "float32")
    value, gradient = own.vjp(of_ids(own, ids), [weight], g)
    same(value, np.asarray(weight[ids] if ids.size else np.zeros((*shape, d), np.float32)))
    same(gradient, sums(g, ids, n))


@each
def test_strided(own: Any, rng: np.random.Generator) -> None:
    """A table of any strides, and a cotangent that repeats along a dimension."""
    ids = drawn_ids(rng, (10, 40), 9)
    weight = drawn(rng, (12, 18), "float32").T[::2]
    g = np.broadcast_to(drawn(rng, (40, 12), "float32"), (10, 40, 12))
    value, gradient = own.vjp(of_ids(own, ids), [weight], g)
    same(value, weight[ids])
    same(gradient, sums(g, ids, 9))


def test_strided_ids_in_torch(rng: np.random.Generator) -> None:
    ids = torch.tensor(drawn_ids(rng, (30, 12), 9)).t()[::2]
    weight = torch.tensor(drawn(rng, (9, 6), "float32"))
    found = FRAMEWORKS[0].ops.embedding(ids, weight)
    assert torch.equal(found, weight[ids])


@each
def test_special_numbers(own: Any) -> None:
    """Denormals are kept, zeros keep their sign, and a sum of -0 is -0; an absent row is +0."""
    ids = np.array([0, 0, 1, 2, 2, 3])
    g = np.array([[1e-42], [2e-42], [-0.0], [-0.0], [-0.0], [np.inf]], np.float32)
    weight = np.array([[1e-42], [-0.0], [np.inf], [-np.inf], [3e-45]], np.float32)
    for dtype in DTYPES:
        table, cotangent = weight.astype(drawn_dtype(dtype)), g.astype(drawn_dtype(dtype))
        value, gradient = own.vjp(of_ids(own, ids), [table], cotangent)
        same(value, table[ids])
        same(gradient, sums(cotangent, ids, 5))
        assert [*np.signbit(gradient[:, 0].astype(np.float32))] == [False, True, True, False, False]


def drawn_dtype(dtype: str) -> Any:
    return drawn(np.random.default_rng(0), (1,), dtype).dtype


def test_both_frameworks(rng: np.random.Generator) -> None:
    """The sums of two frameworks have one set of bits, NaN aside."""
    ids = drawn_ids(rng, (4, 700), 21, often=3)
    weight, g = drawn(rng, (21, 65), "float16"), drawn(rng, (4, 700, 65), "float16")
    first, second = (own.vjp(of_ids(own, ids), [weight], g) for own in FRAMEWORKS)
    for ours, theirs in zip(first, second, strict=True):
        same(ours, theirs)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_the_result_may_be_written_into(shape: tuple[int, ...]) -> None:
    weight = torch.ones(4, 5, requires_grad=True)
    y = bridge.torch.embedding(torch.ones(shape, dtype=torch.int64), weight)
    y.mul_(2).sum().backward()
    assert torch.equal(weight.grad.sum(), torch.tensor(2.0 * y.numel()))
