"""The native module's own interface: any layout, or an error with the reason; against float64."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from bridge.ops.softmax import JACOBIAN

from bridge import _native
from bridge.catalogue.bias_dropout_add import bias_dropout_add
from bridge.lang import philox
from bridge.ops import (
    PROGRAM,
    SOFTMAX,
    SOFTMAX_DERIVATIVE,
    ProgramParams,
    SoftmaxDerivativeParams,
    SoftmaxParams,
)
from bridge.ops.traced import traced

RANKS = range(1, 11)


def allocate(size: int, like: Any) -> Any:
    raise AssertionError("the CPU needs no workspace")


def outcome(op: Any, operands: Any, results: Any, params: Any) -> int:
    attributes = tuple(params.attributes().values())
    dtypes = [None if operand is None else operand.dtype.name for operand in operands]
    code = op.code(params, dtypes)
    words = () if code is None else (code,)
    return _native.run(op.name, tuple(operands), tuple(results), attributes, 2, allocate, *words)


def check(op: Any, operands: Any, params: Any, out: Any = None, tolerance: float = 1e-6) -> Any:
    """Runs a call into the first result and compares it; returns it."""
    if out is None:
        out = np.full(operands[0].shape, 7, operands[0].dtype)
    expected = op.reference([None if o is None else o.copy() for o in operands], params)[0]
    before = [None if o is None else o.tobytes() for o in operands]
    results = (out, *[None] * (len(op.result_names) - 1))
    assert outcome(op, operands, results, params) == -1
    np.testing.assert_allclose(out, expected, rtol=0, atol=tolerance)
    for operand, bytes_before in zip(operands, before, strict=True):
        if operand is not None and not np.shares_memory(operand, out):
            assert operand.tobytes() == bytes_before
    return out


def layout(rng: Any, array: Any, columns: bool = True) -> Any:
    """Returns the same values in another memory layout; `columns` keeps columns adjacent."""
    leading = array.ndim - columns
    order = rng.permutation(leading) if leading > 0 else []
    axes = [*(int(i) for i in order), *range(leading, array.ndim)]
    stored = array.transpose(axes)
    steps = tuple(int(s) for s in rng.integers(1, 3, leading)) + (1,) * (array.ndim - leading)
    wide = tuple(
        n * s + (3 if i >= leading else 0)
        for i, (n, s) in enumerate(zip(stored.shape, steps, strict=True))
    )
    room = np.zeros(wide, array.dtype)
    view = room[..., *(slice(0, n * s, s) for n, s in zip(stored.shape, steps, strict=True))]
    view[...] = stored
    return view.transpose(np.argsort(axes))


def draw(rng: Any, shape: Any, dtype: str = "float32") -> Any:
    return rng.standard_normal(shape).astype(dtype)


def draw_mask(rng: Any, shape: Any, dtype: str = "bool") -> Any:
    hidden = np.asarray(rng.random(shape) < 0.4)
    return hidden if dtype == "bool" else np.asarray(hidden * rng.integers(1, 256, shape), dtype)


@pytest.mark.parametrize("dtype", ["bool", "uint8"])
@pytest.mark.parametrize("causal", [0, 1])
def test_every_broadcast_of_a_mask(rng: Any, dtype: str, causal: int) -> None:
    shape = (2, 3, 4, 5)
    x, params = draw(rng, shape), SoftmaxParams(0.5, causal, "float32")
    for rank in range(5):
        for ones in itertools.product((False, True), repeat=rank):
            own = tuple(
                1 if is_one else n
                for n, is_one in zip(shape[len(shape) - rank :], ones, strict=True)
            )
            mask = draw_mask(rng, own, dtype)
            expected = check(SOFTMAX, (x, mask), params)
            # The same bits from other memory: strided, or expanded with strides of zero.
            expanded = np.broadcast_to(layout(rng, mask, rank > 0), shape)
            assert check(SOFTMAX, (x, expanded), params).tobytes() == expected.tobytes()


@pytest.mark.parametrize("rank", RANKS)
def test_softmax_of_any_rank(rng: Any, rank: int) -> None:
    for _ in range(20):
        shape = tuple(int(n) for n in rng.integers(1, 4, rank))
        x = layout(rng, draw(rng, shape))
        own = [n if rng.random() < 0.6 else 1 for n in shape][int(rng.integers(0, rank + 1)) :]
        mask = None if rng.random() < 0.2 else layout(rng, draw_mask(rng, own), bool(own))
        out = layout(rng, np.zeros(shape, np.float32))
        causal = int(rank > 1 and rng.random() < 0.5)
        check(SOFTMAX, (x, mask), SoftmaxParams(-1.5, causal, "float32"), out)


@pytest.mark.parametrize("rank", RANKS)
def test_softmax_derivative_of_any_rank(rng: Any, rank: int) -> None:
    for _ in range(20):
        shape = tuple(int(n) for n in rng.integers(1, 4, rank))
        u, v, w = (layout(rng, draw(rng, shape)) for _ in range(3))
        out = layout(rng, np.zeros(shape, np.float32))
        causal = int(rank > 1 and rng.random() < 0.5)
        terms = int(rng.integers(1, 16))
        params = SoftmaxDerivativeParams(0.7, causal, terms, "float32")
        check(SOFTMAX_DERIVATIVE, (u, v, w), params, out, 2e-5)
        params = SoftmaxDerivativeParams(0.7, causal, JACOBIAN, "float32")
        check(SOFTMAX_DERIVATIVE, (u, v, None), params, out, 2e-5)


@pytest.mark.parametrize("causal", [0, 1])
def test_more_dimensions_than_the_kernels_walk(rng: Any, causal: int) -> None:
    """Every second dimension of the mask broadcasts, so that no two can be merged."""
    shape = (2,) * 12 + (3,)
    x = draw(rng, shape)
    for first in (0, 1):
        own = tuple(1 if i % 2 == first else n for i, n in enumerate(shape))
        mask = draw_mask(rng, own)
        y = check(SOFTMAX, (x, mask), SoftmaxParams(1.0, causal, "float32"))
        expanded = np.ascontiguousarray(np.broadcast_to(mask, shape))
        again = check(SOFTMAX, (x, expanded), SoftmaxParams(1.0, causal, "float32"))
        assert y.tobytes() == again.tobytes()
    backwards = x.transpose(*range(11, -1, -1), 12)
    params = SoftmaxDerivativeParams(0.7, causal, JACOBIAN, "float32")
    check(SOFTMAX_DERIVATIVE, (x, backwards, None), params, tolerance=2e-5)


def test_columns_that_lie_apart_are_named(rng: Any) -> None:
    """A contiguous copy of that operand fixes it, and nothing has been written."""
    shape, params = (2, 3, 4), SoftmaxParams(1.0, 0, "float32")
    x, out = draw(rng, shape), np.full(shape, 7, np.float32)
    apart = draw(rng, (2, 3, 8))[..., ::2]
    mask = np.broadcast_to(draw_mask(rng, (1, 3, 8))[..., ::2], shape)
    assert outcome(SOFTMAX, (apart, None), (out,), params) == 0
    assert outcome(SOFTMAX, (x, mask), (out,), params) == 1
    assert np.all(out == 7)
    check(SOFTMAX, (np.ascontiguousarray(apart), np.ascontiguousarray(mask[:1])), params)
    derivative = SoftmaxDerivativeParams(1.0, 0, 15, "float32")
    for position in range(3):
        operands = [x] * 3
        operands[position] = apart
        assert outcome(SOFTMAX_DERIVATIVE, operands, (out,), derivative) == position
    assert outcome(SOFTMAX, (x[..., :1], apart[..., :1] > 0), (out[..., :1].copy(),), params) == -1


def test_no_elements(rng: Any) -> None:
    for shape in ((0,), (0, 3), (3, 0), (2, 0, 3), (0, 2, 0), (2, 3, 0, 1)):
        x, out = draw(rng, shape), np.zeros(shape, np.float32)
        own = tuple(min(n, 1) if i % 2 else n for i, n in enumerate(shape))
        for causal in range(min(len(shape), 2)):
            params = SoftmaxParams(1.0, causal, "float32")
            assert outcome(SOFTMAX, (x, draw_mask(rng, own)), (out,), params) == -1
        derivative = SoftmaxDerivativeParams(1.0, 0, JACOBIAN, "float32")
        assert outcome(SOFTMAX_DERIVATIVE, (x, x, None), (out,), derivative) == -1
        operands = (x, draw(rng, shape[-1:]), x.copy(), np.array(5))
        assert outcome(PROGRAM, operands, (out,), dropout("float32")) == -1


def dropout(dtype: str, offset: bool = False, **fields: int) -> ProgramParams:
    """Returns the parameters for x, bias, residual and seed with p = 0.5."""
    present = (True, True, True, True, offset)
    arithmetic = "float64" if dtype == "float64" else "float32"
    code = traced(bias_dropout_add.declaration, present, 0.5).code
    return ProgramParams(code, arithmetic, dtype, **fields)


@pytest.mark.parametrize("batch_ndim", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_draws_of_batches(rng: Any, dtype: str, batch_ndim: int) -> None:
    """Each batch has its own integers, as numbers or as pairs of words."""
    shape = (2, 3, 4, 5)
    batch, tolerance = shape[:batch_ndim], 2e-2 if dtype == "float16" else 1e-6
    x, residual = layout_of_pair(rng, shape, dtype), layout_of_pair(rng, shape, dtype)
    bias = draw(rng, (*batch, 5), dtype)
    integers = [rng.integers(-(2**63), 2**63 - 1, (*batch, 2))[..., 0] for _ in range(2)]
    start = rng.integers(0, 2**40, batch)
    rows = np.arange(math.prod(shape[batch_ndim:-1]), dtype=np.uint64)[:, None]
    for index_cols in (0, 1000):
        params = dropout(dtype, True, batch_ndim=batch_ndim, index_cols=index_cols)
        y = np.full(shape, 7, dtype)
        assert outcome(PROGRAM, (x, bias, residual, *integers, start), (y,), params) == -1
        index = rows * np.uint64(index_cols or 5) + np.arange(5, dtype=np.uint64)
        drawn = [
            philox.words(*each, index + np.uint64(first))
            for *each, first in np.broadcast(*integers, start)
        ]
        keep = np.reshape(drawn, shape) >= 2**31
        h = x.astype(float) + bias.reshape(*batch, *(1,) * (3 - batch_ndim), 5)
        np.testing.assert_allclose(y, residual + keep * 2 * h, rtol=0, atol=tolerance)
        pairs = [
            np.ascontiguousarray(i).reshape(-1).view(np.uint32).reshape(*batch, 2)
            for i in (*integers, start)
        ]
        again = np.full(shape, 7, dtype)
        assert outcome(PROGRAM, (x, bias, residual, *pairs), (again,), params) == -1
        assert y.tobytes() == again.tobytes()
    # One seed for all batches: a stride of zero.
    one, params = np.array(3), dropout(dtype, batch_ndim=batch_ndim)
    results = [np.full(shape, 7, dtype) for _ in range(2)]
    for seed, y in zip((np.broadcast_to(one, batch), np.full(batch, 3)), results, strict=True):
        assert outcome(PROGRAM, (x, bias, residual, seed), (y,), params) == -1
    assert results[0].tobytes() == results[1].tobytes()


def layout_of_pair(rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Returns rows with gaps between them, and batches side by side."""
    return draw(rng, (*shape[:-1], shape[-1] + 3), dtype)[..., 1:-2]


def test_results_in_the_memory_of_operands(rng: Any) -> None:
    x, mask = draw(rng, (6, 8)), draw_mask(rng, (6, 8))
    params = SoftmaxParams(1.0, 0, "float32")
    (expected,) = SOFTMAX.reference((x, mask), params)
    y = x.copy()
    assert outcome(SOFTMAX, (y, mask), (y,), params) == -1
    np.testing.assert_allclose(y, expected, atol=1e-6)
    halves = np.concatenate([x, x], axis=1)  # the two halves of the rows interleave in memory
    check(SOFTMAX, (halves[:, :8], mask), params, halves[:, 8:])
    room = draw(rng, (7, 8))
    bytes_of_y = y.view(np.bool_).reshape(-1)[:48].reshape(6, 8)
    expanded = np.lib.stride_tricks.as_strided(y, (6, 8), (0, 4))
    for operands, out, message in (
        ((room[:-1], None), room[1:], "y overlaps x in memory without being the same array"),
        ((x, bytes_of_y), y, "y overlaps mask in memory"),
        ((x, None), expanded, "y has elements that share memory with each other"),
    ):
        with pytest.raises(ValueError, match=message):
            outcome(SOFTMAX, operands, (out,), params)
    seed, row = np.zeros(1, np.int64), x[0, :2]
    operands = (row, row.copy(), row.copy(), seed.reshape(()))
    with pytest.raises(ValueError, match="a result overlaps an operand in memory"):
        outcome(PROGRAM, operands, (seed.view(np.float32),), dropout("float32"))


X = np.ones((4, 3), np.float32)
COLUMN = np.ones(3, np.float32)
READ_ONLY = np.broadcast_to(np.float32(0), (4, 3))
SEED, POINT = np.array(1), np.array(1.0)
WORDS = PROGRAM.code(dropout("float32"), ("float32",) * 3 + ("int64",))

MALFORMED: list[tuple[str, Any, Any, Any, str]] = [
    ("softmax", (X, None), (X,), (1.0,), "1 attributes, expected 2"),
    ("softmax", (X, None), (X, None), (1.0, 0), "2 results, expected 1"),
    ("softmax", (X, None, None), (X,), (1.0, 0), "3 operands, expected 1 to 2"),
    ("softmax", (), (X,), (1.0, 0), "0 operands, expected 1 to 2"),
    ("softmax", (None, X > 0), (X,), (1.0, 0), "x is missing"),
    ("softmax", (X, None), (None,), (1.0, 0), "y is missing"),
    ("softmax", (X, X), (X,), (1.0, 0), "mask has dtype float32, expected bool or uint8"),
    ("softmax", (X, (X > 0)[:2]), (X,), (1.0, 0), r"mask has shape \[2, 3\], expected one that"),
    ("softmax", (X.astype(int), None), (X,), (1.0, 0), "x has dtype int64, expected float16"),
    ("softmax", (X, None), (COLUMN,), (1.0, 0), r"y has shape \[3\], expected \[4, 3\], that of x"),
    ("softmax", (X, None), (X.astype(float),), (1.0, 0), "y has dtype float64, expected float32"),
    ("softmax", (X, None), (READ_ONLY,), (1.0, 0), "read-?only"),
    ("softmax", (X, None), (X,), (np.inf, 0), "scale is inf, expected a finite number"),
    ("softmax", (X, None), (X,), (1.0, 0.5), "causal is 0.5, expected a whole number from 0 to 1"),
    ("softmax", (COLUMN, None), (COLUMN,), (1.0, 1), "expected at least two dimensions"),
    ("softmax", (POINT, None), (POINT,), (1.0, 0), "x has shape .*at least one dim"),
    ("softmax", (X.T, None), (X.T,), (1.0, "x"), "must be real number"),
    ("softmax_derivative", (X, None, None), (X,), (1.0, 0, 3), "v is missing"),
    ("softmax_derivative", (X, X, None), (X,), (1.0, 0, 7), "terms is 7, expected 3 where w"),
    ("softmax_derivative", (X, COLUMN, X), (X,), (1.0, 0, 7), r"v has shape \[3\], expected"),
    ("program", (X, COLUMN, X, SEED), (X,), (3, 0), "batch_ndim is 3, expected a whole number"),
    ("program", (X, COLUMN, X, SEED), (X,), (0, 2.0**60), "index_cols is"),
    ("program", (X, X, X, SEED), (X,), (0, 0), r"operand 1 has shape \[4, 3\]"),
    ("program", (X, COLUMN, COLUMN, SEED), (X,), (0, 0), r"operand 2 has shape \[3\]"),
    ("program", (X, COLUMN, X, POINT), (X,), (0, 0), "operand 3 has dtype float64, expected int64"),
    ("program", (X, COLUMN, X, SEED.reshape(1)), (X,), (0, 0), r"operand 3 has shape \[1\]"),
    ("program", (X, COLUMN, X), (X,), (0, 0), "3 operands and 1 results, expected 4 and 1"),
]


@pytest.mark.parametrize("case", MALFORMED, ids=[f"{case[0]}: {case[-1]}" for case in MALFORMED])
def test_malformed_call(case: Any) -> None:
    op, operands, results, attributes, message = case
    words = (WORDS,) if op == "program" else ()
    with pytest.raises((TypeError, ValueError, BufferError), match=message):
        _native.run(op, operands, results, attributes, 1, allocate, *words)


def test_tensor_without_memory() -> None:
    zeros, out = torch._efficientzerotensor((4, 3)), torch.zeros(4, 3)
    row, seed = torch.zeros(3), torch.tensor(1)
    for op, operands, attributes, words in (
        ("softmax", (zeros, None), (1.0, 0), ()),
        ("program", (zeros, row, out.clone(), seed), (0, 0), (WORDS,)),
    ):
        with pytest.raises(ValueError, match="no memory"):
            _native.run(op, operands, (out,), attributes, 1, allocate, *words)
