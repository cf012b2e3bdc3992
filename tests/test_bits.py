"""The same input gives the same bits: in torch and JAX, on any threads and instruction set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bridge import _native
from tests.cases import (
    DROPOUTS,
    MIXED,
    SOFTMAXES,
    BiasDropoutAdd,
    BiasGelu,
    Case,
    Inputs,
    Softmax,
)
from tests.frameworks import DTYPES, FORMS, FRAMEWORKS, bits, numpy_dtype
from tests.isas import ISAS

SHAPES = [(1, 1), (5, 3), (131, 37), (3, 64, 50), (1025, 65)]

CASES: tuple[Case, ...] = (
    *(BiasGelu(shape, form) for form in FORMS for shape in SHAPES),
    *SOFTMAXES,
    Softmax((7, 1024), (7, 1024), scale=0.7),
    Softmax((2, 3, 2051), (2, 1, 2051), scale=-0.1, mask_dtype="uint8"),
    Softmax((200, 1030), causal=True, scale=0.5),
    Softmax((700, 20), scale=3.0),
    *DROPOUTS,
    BiasDropoutAdd((3, 64, 50), 0.3),
    BiasDropoutAdd((1025, 65), 0.1, residual=False),
)


def special(rng: np.random.Generator, array: Any) -> None:
    """Replaces a few ordinary numbers by special ones."""
    values = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1e-310, -5.9e-8, 1e-7, -0.7518]
    flat = array.reshape(-1)
    places = rng.choice(flat.size, size=min(flat.size // 8, len(values)), replace=False)
    with np.errstate(over="ignore"):
        flat[places] = np.array(values[: len(places)]).astype(array.dtype)


def draw(rng: np.random.Generator, case: Case, *dtypes: str) -> Inputs:
    inputs = case.draw(rng, *dtypes)
    for array in (*inputs.arguments, inputs.cotangent, *inputs.tangents):
        special(rng, array)
    return inputs


def everything(framework: Any, case: Case, inputs: Inputs) -> list[Any]:
    """Returns value, all gradients, a tangent, and all second-order gradients."""
    return framework.everything(
        case.function(framework),
        inputs.arguments,
        inputs.cotangent,
        inputs.tangents,
        inputs.directions,
    ).arrays()


def assert_same_bits(first: list[Any], second: list[Any]) -> None:
    for a, b in zip(first, second, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(bits(a), bits(b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_torch_equals_jax(rng: Any, case: Case, dtype: str) -> None:
    inputs = draw(rng, case, dtype)
    assert_same_bits(*(everything(framework, case, inputs) for framework in FRAMEWORKS))


@pytest.mark.parametrize(("case", "dtypes"), MIXED, ids=str)
def test_torch_equals_jax_in_mixed_dtypes(rng: Any, case: Case, dtypes: tuple[str, ...]) -> None:
    inputs = draw(rng, case, *dtypes)
    assert_same_bits(*(everything(framework, case, inputs) for framework in FRAMEWORKS))


@pytest.mark.parametrize("length", [31, 32, 33, 64, 1023, 1024, 1025, 2048, 3073, 8193])
@pytest.mark.parametrize("kind", ["plain", "masked", "causal"])
def test_torch_equals_jax_at_the_edges_of_rows(rng: Any, length: int, kind: str) -> None:
    mask = (3, length) if kind == "masked" else None
    case = Softmax((3, length), mask, kind == "causal", scale=0.7)
    for dtype in ("bfloat16", "float32"):
        inputs = draw(rng, case, dtype)
        assert_same_bits(*(everything(framework, case, inputs) for framework in FRAMEWORKS))


@pytest.fixture
def default_isa() -> Iterator[None]:
    yield
    _native.set_cpu_isa(None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "case",
    [
        BiasGelu((700, 96), "none"),
        Softmax((9, 4099), scale=0.7),
        Softmax((3, 5, 20, 133), (3, 1, 20, 133), scale=-0.4),
        Softmax((300, 130), causal=True, scale=0.5),
        Softmax((2000, 17), scale=2.0),
        BiasDropoutAdd((700, 96), 0.3),
        BiasDropoutAdd((700, 96), 0.3, residual=False, offset=7),
    ],
    ids=str,
)
def test_instruction_sets_and_threads(rng: Any, default_isa: None, case: Case, dtype: str) -> None:
    import torch

    inputs = draw(rng, case, dtype)
    seen: list[list[Any]] = []
    threads = torch.get_num_threads()
    try:
        for isa in ISAS:
            _native.set_cpu_isa(isa)
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                seen.append(everything(FRAMEWORKS[0], case, inputs))
            seen.append(everything(FRAMEWORKS[1], case, inputs))
    finally:
        torch.set_num_threads(threads)
    for other in seen[1:]:
        assert_same_bits(seen[0], other)


def vjp_with_denormals_flushed(framework: Any, function: Any, x: Any, g: Any) -> list[Any]:
    """Runs with denormals flushed, as on XLA's threads; the kernels set their own mode."""
    import torch

    flushed = torch.set_flush_denormal(True)
    try:
        return framework.vjp(function, (x,), g)
    finally:
        torch.set_flush_denormal(False)
        assert flushed


TINY = np.float32([1e-40, -3e-39, 2.8e-45, -1.2e-38]).repeat(40)


def test_denormals_survive_every_floating_point_mode(framework: Any) -> None:
    g = np.full_like(TINY, 1e-40)
    got = vjp_with_denormals_flushed(framework, framework.ops.bias_gelu, TINY, g)
    assert_same_bits(got, [(a.astype(np.float64) / 2).astype(np.float32) for a in (TINY, g)])


def test_denormals_of_dropout(framework: Any) -> None:
    case = BiasDropoutAdd(TINY.shape, 0.5, bias=False, residual=False)
    g = TINY[::-1].copy()
    got = vjp_with_denormals_flushed(framework, case.function(framework), TINY, g)
    assert_same_bits(got, [np.where(case.kept(), 2 * a, np.float32(0)) for a in (TINY, g)])


@pytest.mark.parametrize("columns", [2, 40])
def test_denormals_of_softmax(framework: Any, columns: int) -> None:
    """Beside one large element y is (1, tiny), and dx is tiny where g has its only 1."""
    x, g = np.full((columns, columns), -90.0, np.float32), np.eye(columns, dtype=np.float32)
    x[:, 0] = 0.0
    value, dx = vjp_with_denormals_flushed(framework, framework.ops.scaled_softmax, x, g)
    exact = np.exp(-90.0)
    assert np.all(np.abs(value[:, 1:].astype(np.float64) - exact) <= 2.0**-149)
    assert_same_bits([np.diagonal(dx)[1:]], [np.diagonal(value)[1:]])


@pytest.mark.parametrize("pieces", [2, 3, 7])
@pytest.mark.parametrize("op", ["bias_gelu", "softmax", "short softmax"])
def test_split_batch(framework: Any, rng: Any, op: str, pieces: int) -> None:
    """A batch in pieces equals the whole batch, row by row."""
    columns = 13 if op == "short softmax" else 50
    case = BiasGelu((97, columns)) if op == "bias_gelu" else Softmax((97, columns), scale=0.7)
    inputs = draw(rng, case, "float32")
    x, *bias = inputs.arguments

    def run(x: Any, g: Any) -> list[Any]:
        return framework.vjp(case.function(framework), (x, *bias), g)[:2]

    whole = run(x, inputs.cotangent)
    cut = (np.array_split(array, pieces) for array in (x, inputs.cotangent))
    parts = [run(*part) for part in zip(*cut, strict=True)]
    assert_same_bits(whole, [np.concatenate(both) for both in zip(*parts, strict=True)])


def halve(parts: list[Any]) -> Any:
    """Returns the sum by a binary tree over `parts`; an element without a partner moves up."""
    while len(parts) > 1:
        pairs = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + ([parts[-1]] if len(parts) % 2 else [])
    return parts[0]


def column_tree(rows: Any) -> Any:
    """Returns column sums in the order of docs/numerics.md, written independently of the code."""
    rows = np.asarray(rows)
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


def row_tree(row: Any) -> Any:
    """Returns the sum of a row in the order of docs/numerics.md, written independently."""
    chunks = []
    for chunk in range(0, len(row), 1024):
        rows = np.full((32, 32), -0.0, row.dtype)
        part = row[chunk : chunk + 1024]
        rows.reshape(-1)[: len(part)] = part
        eight = (rows[:8] + rows[8:16]) + (rows[16:24] + rows[24:])
        four = eight[:4] + eight[4:]
        two = four[:2] + four[2:]
        lanes = two[0] + two[1]
        while len(lanes) > 1:
            lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
        chunks.append(lanes[0])
    return halve(chunks)


ROWS = [1, 2, 15, 16, 17, 33, 100, 127, 128, 129, 255, 640, 1000, 2049]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("op", ["bias_gelu", "bias_dropout_add"])
def test_bias_gradient_follows_the_tree(
    framework: Any, rng: Any, op: str, dtype: str, rows: int
) -> None:
    shape = (rows, 21)
    case = BiasGelu(shape) if op == "bias_gelu" else BiasDropoutAdd(shape, 0.25, residual=False)
    inputs = case.draw(rng, dtype)
    _, dx, dbias = framework.vjp(case.function(framework), inputs.arguments, inputs.cotangent)
    np.testing.assert_array_equal(bits(dbias), bits(column_tree(dx)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("length", [1, 2, 31, 33, 64, 500, 1023, 1024, 1025, 2500, 5000, 9217])
def test_softmax_gradient_follows_the_tree(rng: Any, dtype: str, length: int) -> None:
    """For y = 1 in every column, y·(g − ⟨g, y⟩) shows the sum."""
    import torch

    from bridge.torch import scaled_softmax_backward

    g = rng.standard_normal((3, length)).astype(numpy_dtype(dtype))
    y = np.ones_like(g)
    dx = scaled_softmax_backward(torch.from_numpy(g), torch.from_numpy(y)).numpy()
    expected = g - np.stack([row_tree(row) for row in g])[:, None]
    np.testing.assert_array_equal(bits(dx), bits(expected))
