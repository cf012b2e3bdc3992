"""The native module's own interface: any layout, or an error with the reason; against float64."""

from __future__ import annotations

import itertools
import math
import platform
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bridge
from bridge import _native
from bridge import lang as bl
from bridge.catalogue.bias_dropout_add import bias_dropout_add
from bridge.catalogue.softmax_programs import (
    derivative_program,
    jacobian_program,
    softmax_program,
)
from bridge.cli.info import usable_isas
from bridge.lang import philox
from bridge.ops import PROGRAM, ProgramParams
from bridge.ops.traced import traced
from tests.softmax_reference import derivative_reference, reference, visible_columns

RANKS = range(1, 11)


def allocate(size: int, like: Any) -> Any:
    raise AssertionError("the CPU needs no workspace")


def outcome(op: Any, operands: Any, results: Any, params: Any) -> int:
    attributes = tuple(params.attributes().values())
    dtypes = [None if operand is None else operand.dtype.name for operand in operands]
    code = op.code(params, dtypes)
    words = () if code is None else (code,)
    return _native.run(op.name, tuple(operands), tuple(results), attributes, 2, allocate, *words)


def check(call: Any, out: Any = None, tolerance: float = 1e-6) -> Any:
    """Runs a call into the first result and compares it; returns it."""
    operands, params, expected = call
    if out is None:
        out = np.full(operands[0].shape, 7, operands[0].dtype)
    before = [operand.tobytes() for operand in operands]
    assert outcome(PROGRAM, operands, (out,), params) == -1
    np.testing.assert_allclose(out, expected, rtol=0, atol=tolerance)
    for operand, bytes_before in zip(operands, before, strict=True):
        if not np.shares_memory(operand, out):
            assert operand.tobytes() == bytes_before
    return out


def last_of(x: Any, causal: int) -> tuple[Any, ...]:
    if not causal:
        return ()
    queries, keys = x.shape[-2:]
    return (np.broadcast_to(np.arange(keys - queries, keys), x.shape[:-1]),)


def softmax(x: Any, mask: Any, scale: float, causal: int = 0) -> Any:
    """Returns operands and parameters of a call, and its value in float64."""
    given = () if mask is None else (mask,)
    params = softmax_program(scale, x.dtype.name, (mask is not None, bool(causal)))
    return (x, *given, *last_of(x, causal)), params, reference(x, mask, scale, bool(causal))


def jacobian(u: Any, v: Any, scale: float, causal: int = 0) -> Any:
    params = jacobian_program(scale, u.dtype.name, bool(causal))
    visible = visible_columns(u.shape, bool(causal)) & (u != 0)
    expected = derivative_reference((u, v, u), (True, True, False, False), scale, visible)
    return (u, v, *last_of(u, causal)), params, expected


def derivative(u: Any, v: Any, w: Any, terms: tuple[bool, ...], scale: float, causal: int) -> Any:
    params = derivative_program(scale, u.dtype.name, terms[0], terms[1:], bool(causal))
    visible = visible_columns(u.shape, bool(causal))
    expected = derivative_reference((u, v, w), terms, scale, visible)
    return (u, v, w, *last_of(u, causal)), params, expected


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
    x = draw(rng, shape)
    for rank in range(5):
        for ones in itertools.product((False, True), repeat=rank):
            own = tuple(
                1 if is_one else n
                for n, is_one in zip(shape[len(shape) - rank :], ones, strict=True)
            )
            mask = draw_mask(rng, own, dtype)
            expected = check(softmax(x, mask, 0.5, causal))
            # The same bits from other memory: strided, or expanded with strides of zero.
            expanded = np.broadcast_to(layout(rng, mask, rank > 0), shape)
            again = check(softmax(x, expanded, 0.5, causal))
            assert again.tobytes() == expected.tobytes()


@pytest.mark.parametrize("rank", RANKS)
def test_softmax_of_any_rank(rng: Any, rank: int) -> None:
    for _ in range(20):
        shape = tuple(int(n) for n in rng.integers(1, 4, rank))
        x = layout(rng, draw(rng, shape))
        own = [n if rng.random() < 0.6 else 1 for n in shape][int(rng.integers(0, rank + 1)) :]
        mask = None if rng.random() < 0.2 else layout(rng, draw_mask(rng, own), bool(own))
        out = layout(rng, np.zeros(shape, np.float32))
        causal = int(rank > 1 and rng.random() < 0.5)
        check(softmax(x, mask, -1.5, causal), out)


@pytest.mark.parametrize("rank", RANKS)
def test_softmax_derivative_of_any_rank(rng: Any, rank: int) -> None:
    for _ in range(20):
        shape = tuple(int(n) for n in rng.integers(1, 4, rank))
        u, v, w = (layout(rng, draw(rng, shape)) for _ in range(3))
        out = layout(rng, np.zeros(shape, np.float32))
        causal = int(rank > 1 and rng.random() < 0.5)
        terms = (True, *(bool(term) for term in rng.integers(0, 2, 3)))
        check(derivative(u, v, w, terms, 0.7, causal), out, 2e-5)
        check(jacobian(u, v, 0.7, causal), out, 2e-5)


@pytest.mark.parametrize("causal", [0, 1])
def test_more_dimensions_than_the_kernels_walk(rng: Any, causal: int) -> None:
    """If no two can be merged, an operand is named that has to be copied or repeated."""
    shape = (2,) * 12 + (3,)
    x, out = draw(rng, shape), np.zeros(shape, np.float32)
    for first in (0, 1):
        own = tuple(1 if i % 2 == first else n for i, n in enumerate(shape))
        operands, params, _ = softmax(x, draw_mask(rng, own), 1.0, causal)
        assert outcome(PROGRAM, operands, (out,), params) == 1 + causal
    operands, params, _ = jacobian(x, x.transpose(*range(11, -1, -1), 12), 0.7, causal)
    assert outcome(PROGRAM, operands, (out,), params) == 1
    assert not out.any()


def test_columns_that_lie_apart(rng: Any) -> None:
    """They are read in place, with the bits of a contiguous copy."""
    shape = (2, 3, 40)
    x, apart = draw(rng, shape), draw(rng, (2, 3, 80))[..., ::2]
    mask = np.broadcast_to(draw_mask(rng, (1, 3, 80))[..., ::2], shape)
    whole = np.ascontiguousarray(apart)
    for ours, theirs in (
        (softmax(apart, None, 1.0), softmax(whole, None, 1.0)),
        (softmax(x, mask, 1.0), softmax(x, np.ascontiguousarray(mask), 1.0)),
        (jacobian(x, apart, 1.0), jacobian(x, whole, 1.0)),
    ):
        assert check(ours, tolerance=2e-5).tobytes() == check(theirs, tolerance=2e-5).tobytes()
    wide = np.full((2, 3, 80), 7, np.float32)
    check(softmax(x, None, 1.0), wide[..., ::2])
    assert np.all(wide[..., 1::2] == 7)


def test_no_elements(rng: Any) -> None:
    for shape in ((0,), (0, 3), (3, 0), (2, 0, 3), (0, 2, 0), (2, 3, 0, 1)):
        x, out = draw(rng, shape), np.zeros(shape, np.float32)
        own = tuple(min(n, 1) if i % 2 else n for i, n in enumerate(shape))
        for causal in range(min(len(shape), 2)):
            check(softmax(x, draw_mask(rng, own), 1.0, causal), out)
        check(jacobian(x, x, 1.0), out)
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
    y = x.copy()
    operands, params, expected = softmax(x, mask, 1.0)
    assert outcome(PROGRAM, (y, mask), (y,), params) == -1
    np.testing.assert_allclose(y, expected, atol=1e-6)
    halves = np.concatenate([x, x], axis=1)  # the two halves of the rows interleave in memory
    check(softmax(halves[:, :8], mask, 1.0), halves[:, 8:])
    room = draw(rng, (7, 8))
    bytes_of_y = y.view(np.bool_).reshape(-1)[:48].reshape(6, 8)
    expanded = np.lib.stride_tricks.as_strided(y, (6, 8), (0, 4))
    for (operands, params, _), out, message in (
        (softmax(room[:-1], None, 1.0), room[1:], "a result overlaps an operand in memory"),
        (softmax(x, bytes_of_y, 1.0), y, "a result overlaps an operand in memory"),
        (softmax(x, None, 1.0), expanded, "share memory with each other"),
    ):
        with pytest.raises(ValueError, match=message):
            outcome(PROGRAM, operands, (out,), params)
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
        ("program", (zeros, row, out.clone(), seed), (0, 0), (WORDS,)),
    ):
        with pytest.raises(ValueError, match="no memory"):
            _native.run(op, operands, (out,), attributes, 1, allocate, *words)


# Names of /proc/cpuinfo for what x86-64-v3 and x86-64-v4 add.
V3 = {"abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "popcnt"}
V4 = {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="aarch64 has one instruction set")
def test_the_instruction_sets_are_those_that_the_kernel_sees() -> None:
    """Compilers' own tests of the processor answer "no" to everything with some runtimes."""
    flags = re.search(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    assert flags is not None
    found = {*flags[1].split()}
    expected = ["x86-64-v4"] * (found >= V3 | V4) + ["x86-64-v3"] * (found >= V3) + ["x86-64"]
    assert usable_isas() == expected


def test_a_result_takes_no_place_of_an_operand_that_is_read_later(rng: Any) -> None:
    """Programs of bridge.lang store their results last; bytecode may store one earlier."""

    def twice_and_thrice(x: bl.Full, y: bl.Full) -> Any:
        return y * 2.0, x * 3.0

    found = traced(bridge.op(twice_and_thrice).declaration, (True, True))
    params = ProgramParams(found.code, "float32", "float32,float32")
    words = np.frombuffer(PROGRAM.code(params, ["float32", "float32"]), np.int32)
    steps = words[-36:].reshape(6, 6)  # two loads and products in turn, then two stores
    early = np.concatenate([words[:-36], steps[[0, 1, 4, 2, 3, 5]].ravel()]).tobytes()
    x, y = draw(rng, (3, 5)), draw(rng, (3, 5))
    for code, allowed in ((words.tobytes(), True), (early, False)):
        a, b, other = x.copy(), y.copy(), np.empty_like(x)
        for results, is_right in (((b, a), True), ((a, other), allowed)):
            a[:], b[:] = x, y
            call = (PROGRAM.name, (a, b), results, (0.0, 0.0), 1, allocate, code)
            if is_right:
                assert _native.run(*call) == -1
                assert results[0].tobytes() == (y * 2).tobytes()
                assert results[1].tobytes() == (x * 3).tobytes()
                continue
            with pytest.raises(ValueError, match="a result overlaps an operand in memory"):
                _native.run(*call)
            assert a.tobytes() == x.tobytes()
