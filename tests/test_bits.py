"""The same input gives the same bits: in torch and JAX, on any threads and instruction set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bridge import _native
from tests.frameworks import DTYPES, FORMS, FRAMEWORKS, bits, numpy_dtype

ISAS = tuple(_native.build_info()["cpu_isas"])


def draw(rng: np.random.Generator, shape: Any, dtype: str, spread: float = 3.0) -> Any:
    """Ordinary numbers with a few special ones among them."""
    values = rng.standard_normal(shape) * spread
    flat = values.reshape(-1)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1e-310, -5.9e-8, 1e-7, -0.7518]
    places = rng.choice(flat.size, size=min(flat.size // 8, len(special)), replace=False)
    flat[places] = special[: len(places)]
    return values.astype(numpy_dtype(dtype))


def everything(framework: Any, form: str, x: Any, bias: Any, g: Any) -> list[Any]:
    """Value, both gradients, a tangent, and all second-order gradients."""

    def function(x: Any, b: Any) -> Any:
        return framework.ops.bias_gelu(x, b, approximate=form)

    return [
        *framework.vjp(function, (x, bias), g),
        framework.jvp(function, (x, bias), (g, bias))[1],
        *framework.grad_of_vjp(function, (x, bias), g, (x, bias)),
    ]


def assert_same_bits(first: list[Any], second: list[Any]) -> None:
    for a, b in zip(first, second, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(bits(a), bits(b))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (131, 37), (3, 64, 50), (1025, 65)], ids=str)
def test_torch_equals_jax(rng: Any, dtype: str, form: str, shape: Any) -> None:
    x, bias, g = draw(rng, shape, dtype), draw(rng, shape[-1:], dtype), draw(rng, shape, dtype, 1.0)
    torch, jax = (everything(framework, form, x, bias, g) for framework in FRAMEWORKS)
    assert_same_bits(torch, jax)


@pytest.fixture
def default_isa() -> Iterator[None]:
    yield
    _native.set_cpu_isa(None)


@pytest.mark.parametrize("dtype", DTYPES)
def test_instruction_sets_and_threads(rng: Any, default_isa: None, dtype: str) -> None:
    import torch

    x, bias, g = draw(rng, (700, 96), dtype), draw(rng, (96,), dtype), draw(rng, (700, 96), dtype)
    seen: list[list[Any]] = []
    threads = torch.get_num_threads()
    try:
        for isa in ISAS:
            try:
                _native.set_cpu_isa(isa)
            except ValueError:
                continue  # compiled in, but this processor lacks it
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                seen += [everything(f, form, x, bias, g) for f in FRAMEWORKS for form in ("none",)]
    finally:
        torch.set_num_threads(threads)
    for other in seen[1:]:
        assert_same_bits(seen[0], other)


def test_denormals_survive_every_floating_point_mode(framework: Any) -> None:
    """XLA's threads flush denormals to zero, and torch's can; the kernels set their own mode."""
    import torch

    x = np.float32([1e-40, -3e-39, 2.8e-45, -1.2e-38]).repeat(40)
    g = np.full_like(x, 1e-40)
    flushed = torch.set_flush_denormal(True)
    try:
        value, dx = framework.vjp(framework.ops.bias_gelu, (x,), g)
    finally:
        torch.set_flush_denormal(False)
    assert flushed
    half = (
        (x.astype(np.float64) / 2).astype(np.float32),
        (g.astype(np.float64) / 2).astype(np.float32),
    )
    assert_same_bits([value, dx], list(half))


@pytest.mark.parametrize("pieces", [2, 3, 7])
def test_split_batch(framework: Any, rng: Any, pieces: int) -> None:
    """Row for row, a batch in pieces is the whole batch."""
    x, bias, g = (
        draw(rng, (97, 50), "float32"),
        draw(rng, (50,), "float32"),
        draw(rng, (97, 50), "float32"),
    )
    whole = framework.vjp(framework.ops.bias_gelu, (x, bias), g)[:2]
    parts = [
        framework.vjp(framework.ops.bias_gelu, (part, bias), part_g)[:2]
        for part, part_g in zip(np.array_split(x, pieces), np.array_split(g, pieces), strict=True)
    ]
    assert_same_bits(whole, [np.concatenate(both) for both in zip(*parts, strict=True)])


def tree_sum(rows: Any) -> Any:
    """Column sums in the order that docs/numerics.md fixes, written without any of its code."""
    rows = np.asarray(rows)

    def halve(parts: list[Any]) -> Any:
        while len(parts) > 1:
            pairs = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
            parts = pairs + ([parts[-1]] if len(parts) % 2 else [])
        return parts[0]

    chunks = []
    for chunk in range(0, len(rows), 128):
        lanes = []
        for lane in range(chunk, min(chunk + 128, len(rows)), 16):
            total = np.full(rows.shape[1:], -0.0, rows.dtype)
            for row in rows[lane : min(lane + 16, chunk + 128)]:
                total = total + row
            lanes.append(total)
        chunks.append(halve(lanes))
    return halve(chunks)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 33, 100, 127, 128, 129, 255, 640, 1000, 2049])
def test_bias_gradient_follows_the_tree(framework: Any, rng: Any, dtype: str, rows: int) -> None:
    x, bias, g = (
        rng.standard_normal(shape).astype(dtype) for shape in ((rows, 21), (21,), (rows, 21))
    )
    _, dx, dbias = framework.vjp(framework.ops.bias_gelu, (x, bias), g)
    np.testing.assert_array_equal(bits(dbias), bits(tree_sum(dx)))
