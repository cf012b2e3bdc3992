"""A few long rows: their columns are divided among threads, and no bit depends on it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch

import bridge
from bridge import _native
from bridge import lang as bl
from tests.frameworks import FRAMEWORKS, bits, numpy_dtype

THREADS = (1, 2, 3, 5)
# Rows and columns. The last part may be shorter, with a partial vector. The rows of column sums are
# within one leaf of their tree, or in two, which threads share, or in few or many leaves, which are
# divided among threads.
SHAPES = ((1, 70001), (1, 131072), (19, 70001), (3, 131072), (40, 5121), (140, 2050), (700, 300))
DTYPES = ("float32", "bfloat16", "float64")


@bridge.op
def each_kind(x: bl.Full, weight: bl.Row, label: bl.PerRow[int], seed: bl.Integer) -> Any:
    """Every reduction, a sum of one term, random numbers, and values saved between sections."""
    top = bl.max(x)
    shares = bl.tanh(x - top) * weight
    total = bl.sum(shares)
    at_label = bl.sum(bl.where(bl.column() == label, x, -0.0))
    dropped = bl.where(bl.dropout_keep(0.25, seed), shares / (2.0 + total * total), 0.0)
    return dropped, total, 1.0 * bl.argmax(x), at_label + top, bl.column_sum(dropped * x)


@pytest.fixture(autouse=True)
def ordinary_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def drawn(rng: np.random.Generator, rows: int, cols: int, dtype: str) -> tuple[Any, ...]:
    """Returns operands; labels and the largest numbers of a row are in several of its parts."""
    x = rng.standard_normal((rows, cols)).clip(-3, 2.5).astype(numpy_dtype(dtype))
    weight = rng.standard_normal(cols).astype(numpy_dtype(dtype))
    return x, weight, np.resize([cols - 1, 3, cols // 2], rows)


def cotangent_of(array: Any) -> Any:
    return np.linspace(-1.0, 2.0, array.size).reshape(array.shape).astype(array.dtype)


def by_torch(x: Any, weight: Any, label: Any, is_strided: bool = False) -> list[Any]:
    """Returns the bits of the results, and of the gradients of a function of them."""
    own = FRAMEWORKS[0]
    leaves = [own.array(array).clone() for array in (x, weight)]
    if is_strided:
        leaves = [torch.stack([leaf, leaf], -1)[..., 1] for leaf in leaves]
    for leaf in leaves:
        leaf.requires_grad_()
    results = each_kind(*leaves, torch.tensor(label), 11)
    cotangents = [own.array(cotangent_of(own.numpy(each))) for each in results]
    gradients = torch.autograd.grad(results, leaves, cotangents)
    return [bits(own.numpy(tensor)) for tensor in (*results, *gradients)]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def on_any_threads(run: Callable[[], list[Any]], expected: list[Any]) -> None:
    for threads in THREADS:
        torch.set_num_threads(threads)
        assert_same(run(), expected)


@pytest.mark.long
@pytest.mark.sampled(4)
@pytest.mark.parametrize("is_strided", [False, True], ids=["side by side", "strided"])
@pytest.mark.parametrize("shape", SHAPES, ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_threads(
    dtype: str, shape: tuple[int, int], is_strided: bool, rng: np.random.Generator
) -> None:
    x, weight, label = drawn(rng, *shape, dtype)
    run = functools.partial(by_torch, x, weight, label, is_strided)
    torch.set_num_threads(1)
    expected = run()
    results = each_kind(*map(FRAMEWORKS[0].array, (x, weight, label)), 11)
    place, at_label = (FRAMEWORKS[0].numpy(results[i]) for i in (2, 3))
    np.testing.assert_array_equal(place, x.argmax(-1).astype(place.dtype))
    exact = x.astype(at_label.dtype)
    chosen = np.take_along_axis(exact, label[:, None], -1)[:, 0]
    np.testing.assert_array_equal(at_label, chosen + exact.max(-1))
    on_any_threads(run, expected)
    each_kind.compile(dtypes=[dtype])
    before = _native.generated_calls()
    on_any_threads(run, expected)
    assert _native.generated_calls() > before


@pytest.mark.long
@pytest.mark.parametrize("is_compiled", [False, True], ids=["interpreted", "compiled"])
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_jax_has_the_bits_of_torch(dtype: str, is_compiled: bool, rng: np.random.Generator) -> None:
    x, weight, label = drawn(rng, 1, 131072, dtype)
    torch.set_num_threads(1)
    expected = by_torch(x, weight, label)
    if is_compiled:
        each_kind.compile(dtypes=[dtype])

    @jax.jit
    def run(x: Any, weight: Any) -> list[Any]:
        results, pull = jax.vjp(lambda *leaves: each_kind(*leaves, label, 11), x, weight)
        return [*results, *pull(tuple(map(cotangent_of, results)))]

    assert_same([bits(np.asarray(array)) for array in run(x, weight)], expected)
