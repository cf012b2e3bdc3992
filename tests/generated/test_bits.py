"""Compiled programs have the bits of the interpreter.

The native module compares both when it loads a program; these tests compare calls of both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import bridge.torch
from bridge import _native
from bridge import lang as bl
from bridge.catalogue.ahead_of_time import requests_of
from bridge.catalogue.softmax_programs import derivative_program, jacobian_program, softmax_program
from bridge.generated import CompileError
from bridge.generated.requests import Request
from bridge.lang import codes
from bridge.lang.dtypes import OF_MASKS
from bridge.lang.emission.cpu import source_of
from bridge.ops.traced import traced
from bridge.ops.usual_programs import usual_requests
from tests.declared.ops import OTHERS, SEVEN
from tests.isas import ISAS
from tests.lang.random_programs import random_call, steps_of
from tests.lang.test_fuzz import Run, assert_same, by_torch, runs_of

DTYPES = ("float32", "bfloat16", "float16", "float64")


@bridge.op
def picked(x: bridge.Full, labels: bridge.PerRow[int]) -> Any:
    def at(column: Any, value: Any, other: Any) -> Any:
        return bl.sum(bl.where(column == bl.column(), value, other))

    known = at(labels, x, -0.0), at(labels + 1, bl.tanh(x) * x, -0.0), at(1500, x, -0.0)
    return *known, at(labels, x, 0.0), at(labels, x, x), bl.max(x) + at(0, x, -0.0)


@bridge.op
def counted(x: bridge.Full) -> Any:
    """Counts elements equal to the largest number of a row, beside powers of the rest."""
    return bl.sum(bl.where(x < bl.max(x), 0.0, 1.0)), bl.logsumexp(x)


@bridge.op
def counted_and_read(x: bridge.Full) -> Any:
    """Counts the same, with other terms that need the largest number too."""
    return bl.sum(bl.where(x < bl.max(x), 0.0, 1.0)), bl.logsumexp(x), bl.sum(x * 0.5), -x


@bridge.op
def in_one_column(x: bridge.Full, labels: bridge.PerRow[int], weight: bridge.Row) -> Any:
    """A function with another formula in one column of each row."""
    is_label = bl.column() == labels
    y = bl.where(is_label, bl.exp(x) * weight, bl.tanh(x))
    return y, bl.pairs(bl.where(is_label, x, y), bl.where(is_label, 2.0, y * x) - weight)


@bridge.op
def constant_in_some_rows(x: bridge.Full, labels: bridge.PerRow[int], scale: bridge.PerRow) -> Any:
    """A function that is constant in rows without a label, with a zero's sign in one constant."""
    has_label, is_label = labels >= 0, bl.column() == labels
    y = bl.where(has_label, bl.exp(x) * scale, -0.0)
    label = bl.where(has_label, scale, 0.0) + bl.where(has_label, x, 0.0)
    return bl.where(is_label, label, bl.where(has_label, x / scale, 0.0)), y


def requested(run: Run) -> Request:
    dtypes = [array.dtype.name for array in run.arrays]
    return Request(run.program, run.params.arithmetic, (*dtypes, *run.dtypes))


@pytest.mark.long
@pytest.mark.sampled(12)
@pytest.mark.parametrize("number", range(2000))
def test_random_programs(number: int) -> None:
    rng = np.random.default_rng(number)
    runs, _ = runs_of(random_call(number, steps_of(number)), rng)
    for run in runs[:: 2 if number % 2 else 1]:
        # One set per program: all sets are compiled from the same text.
        _native.set_cpu_isa(ISAS[number % len(ISAS)])
        tensors = run.tensors(rng)
        expected = by_torch(run, tensors)
        requested(run).compile()
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert_same(by_torch(run, tensors), expected, f"compiled\n{run.program}")
        _native.forget_generated()


@pytest.mark.long
@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", [*SEVEN, *OTHERS.values()], ids=lambda op: op.__name__)
def test_declared_ops(op: Any, dtype: str) -> None:
    """Their usual programs compile, and have the interpreter's bits."""
    declaration = op.declaration
    present = tuple(True for _ in declaration.parameters)
    for request in usual_requests(
        traced(declaration, present, *declaration.static.values()), dtype
    ):
        request.compile()


@pytest.mark.long
def test_row_and_column_sums_of_one_section() -> None:
    """A compiled section adds to the sums of its rows and to sums of columns."""
    test_random_programs(next(number for number in range(100) if has_both_sums(number)))


def has_both_sums(number: int) -> bool:
    """Returns True if some section of the C++ of a random call has both kinds of sums."""
    runs, _ = runs_of(random_call(number, steps_of(number)), np.random.default_rng(number))
    requests = map(requested, runs)
    sources = [source_of(each.program, each.arithmetic, each.dtypes) for each in requests]
    sections = [part for source in sources for part in source.split("struct Tile_")]
    return any("at.leaf" in part and "add_quarters" in part for part in sections)


@pytest.mark.long
def test_minus_of_what_ends_with_a_fused_addition() -> None:
    """In this program, 0, whose negation is -0, is the result of a fused addition."""
    test_random_programs(229)


def softmax_requests(dtype: str) -> list[Request]:
    """Returns the programs that parts of the columns of softmax run, uncut."""
    programs = [
        (softmax_program(-0.7, dtype, (True, True)), [dtype, "bool", "int64"]),
        (jacobian_program(0.7, dtype, True), [dtype, dtype, "int32"]),
        (derivative_program(0.7, dtype, True, (True, True, True), True), [dtype] * 3 + ["int64"]),
    ]
    return [
        Request(codes.parse(params.code).program, params.arithmetic, (*dtypes, dtype))
        for params, dtypes in programs
    ]


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_programs_of_softmax(dtype: str) -> None:
    for request in softmax_requests(dtype):
        request.compile()


@pytest.mark.whole
@pytest.mark.parametrize("mask", OF_MASKS)
def test_masks(mask: str) -> None:
    """A mask of either dtype is read as it is; uint8 is a dtype of labels, too."""

    @bridge.op
    def hidden(x: bridge.Full, mask: bridge.Mask):
        return bl.where(mask, x, 1.0)

    program = traced(hidden.declaration, (True, True)).program
    Request(program, "float32", ("float32", mask, "float32")).compile()


@pytest.mark.long
def test_integers_are_computed_again_however_many_operations_it_takes() -> None:
    """A value stored between two sections is a floating number, which cannot hold 64 bits."""

    @bridge.op
    def scattered(x: bridge.Full):
        number = bl.column()
        for factor in range(6):
            number = number * (2**40 + factor) + 12345678901
        before = number - 1
        share = bl.where((number < 0) | (before < 5), x, 1.0)
        return share / bl.sum(share) + bl.where(number == before + 1, 1.0, 0.0)

    tensor = torch.randn(20, 500)
    expected = scattered(tensor)
    scattered.compile(dtypes=["float32"])
    assert torch.equal(scattered(tensor), expected)


@pytest.mark.long
def test_sums_of_a_single_column() -> None:
    """A sum whose terms are -0.0 in other columns takes the column's value; other sums add all."""
    for dtype in ("float32", "bfloat16", "float64"):
        picked.compile(dtypes=[dtype])


@pytest.mark.long
@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("op", [counted, counted_and_read], ids=lambda op: op.__name__)
@pytest.mark.parametrize("cols", [1024, 3 * 1024, 5000])
def test_what_equals_the_largest_of_a_row(
    op: Any, dtype: str, cols: int, rng: np.random.Generator
) -> None:
    x = torch.tensor(rng.standard_normal((12, cols)).clip(-9, 9), dtype=torch.float32)
    x[0, [0, 1023, cols - 1]] = 9.0
    x[1, cols // 2 :: 7] = 9.0
    x[2] = -x[2].abs() - 1.0
    x[3] = x[2].clamp(max=-2.0)
    x[4] = -x[4].abs()
    x[4, [3, cols - 1]] = torch.tensor([-0.0, 0.0])
    x[5] = x[4].clamp(max=-0.0)
    x[6, 17], x[7, -1] = torch.nan, torch.inf
    x[8], x[9] = -torch.inf, 3.0
    x[10, : cols - 1] = -torch.inf
    x[11, 5] = -torch.nan
    x = x.to(getattr(torch, dtype))
    expected = op(x)
    values = x.double().numpy()
    counts = (~(values < values.max(-1, keepdims=True))).sum(-1)
    np.testing.assert_array_equal(expected[0].double().numpy(), counts)
    op.compile(dtypes=[dtype])
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for found, own in zip(op(x), expected, strict=True):
            torch.testing.assert_close(found, own, rtol=0, atol=0, equal_nan=True)


@pytest.mark.long
@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [1, 7, 1024, 5000])
def test_what_differs_in_one_column(dtype: str, cols: int, rng: np.random.Generator) -> None:
    places = [0, cols - 1, 15, 16, 17, 1023, 1024, 2047, cols // 2, cols, -1, -cols, 2**32, 2**40]
    labels = torch.tensor(places, dtype=torch.int64)
    own = getattr(torch, dtype)
    x = torch.tensor(rng.standard_normal((len(places), cols)), dtype=own)
    weight = torch.tensor(rng.standard_normal(cols), dtype=own)
    expected = in_one_column(x, labels, weight)
    first = torch.where(
        torch.arange(cols) == labels[:, None],
        x.double().exp() * weight.double(),
        x.double().tanh(),
    )
    tolerance = 2 * torch.finfo(own).eps
    torch.testing.assert_close(expected[0].double(), first, rtol=tolerance, atol=tolerance)
    in_one_column.compile(dtypes=[dtype])
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for found, interpreted in zip(in_one_column(x, labels, weight), expected, strict=True):
            assert torch.equal(found, interpreted)


@pytest.mark.long
@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [1, 7, 1024, 5000])
def test_rows_of_constants(dtype: str, cols: int, rng: np.random.Generator) -> None:
    labels = torch.tensor([0, -1, cols - 1, -100, cols, -1, 2**40])
    own = getattr(torch, dtype)
    x = torch.tensor(rng.standard_normal((len(labels), cols)), dtype=own)
    x[1], x[3] = torch.nan, torch.inf
    scale = torch.tensor(rng.standard_normal(len(labels)), dtype=own)
    expected = constant_in_some_rows(x, labels, scale)
    for array, sign in zip(expected, (False, True), strict=True):
        rows = array[labels < 0]
        assert (rows == 0).all()
        assert (rows.signbit() == sign).all()
        assert array[labels >= 0].abs().amin(-1).all()
    constant_in_some_rows.compile(dtypes=[dtype])
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for found, own in zip(constant_in_some_rows(x, labels, scale), expected, strict=True):
            assert torch.equal(found, own)
            assert torch.equal(found.signbit(), own.signbit())


def test_other_bits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler with other bits, simulated by this text, is rejected."""
    from bridge.generated import requests

    op = SEVEN[0]
    source = requests.source_of
    monkeypatch.setattr(
        requests, "source_of", lambda *a: source(*a).replace("kMultiply", "kAdd", 1)
    )
    with pytest.raises(CompileError, match="other bits than the interpreter on"):
        op.compile(dtypes=["float32"])


@pytest.mark.long
def test_calls_take_what_was_compiled() -> None:
    op = SEVEN[0]
    tensors = torch.randn(30, 2000), torch.randn(2000)
    before = _native.generated_calls()
    interpreted = op(*tensors)
    assert _native.generated_calls() == before
    op.compile(dtypes=["float32"])
    assert torch.equal(op(*tensors), interpreted)
    assert _native.generated_calls() == before + 1
    # Other dtypes are another program.
    op(tensors[0].double(), tensors[1])
    assert _native.generated_calls() == before + 1


def test_numbers_are_read_from_a_call() -> None:
    """One library serves a dropout with any p; it is refused for constants that it lacks."""
    x, bias, residual = torch.randn(30, 200), torch.randn(200), torch.randn(30, 200)

    def calls() -> list[torch.Tensor]:
        return [
            bridge.torch.bias_dropout_add(x, bias, residual, p=p, seed=5) for p in (0.1, 0.3, 0.9)
        ]

    interpreted = calls()
    before = _native.generated_calls()
    request = next(requests_of("bias_dropout_add", "float32"))
    request.compile()
    for wrong in ([100], [1, 0], [-1]):
        with pytest.raises(ValueError, match="numbers of constants that it does not have"):
            _native.add_generated(
                request.words(), request.dtype_numbers(), wrong, _native.cpu_isa(), "nowhere"
            )
    for compiled, expected in zip(calls(), interpreted, strict=True):
        assert torch.equal(compiled, expected)
    assert _native.generated_calls() == before + 3


def test_sums_of_numbers_that_are_read_from_a_call() -> None:
    @bridge.op
    def counted(x: bridge.Full, label: bridge.PerRow[int], *, each: float = 0.3) -> Any:
        at_label = bl.where(bl.column() == label, each, -0.0)
        return x + bl.sum(each) * bl.sum(at_label), bl.column_sum(each)

    operands = torch.randn(30, 2000), torch.arange(30)
    interpreted = counted(*operands)
    before = _native.generated_calls()
    counted.compile(dtypes=["float32"])
    for compiled, expected in zip(counted(*operands), interpreted, strict=True):
        assert torch.equal(compiled, expected)
    assert _native.generated_calls() == before + 1


def request_of_uint64() -> Request:
    found = traced(constant_in_some_rows.declaration, (True,) * 3)
    request = next(usual_requests(found, "float32"))
    return replace(request, dtypes=("float32", "uint64", *request.dtypes[2:]))


def test_labels_in_the_upper_half_of_uint64() -> None:
    labels = torch.tensor(np.array([0, 5, 2**63, 2**64 - 1] * 5, np.uint64))
    tensors = torch.randn(20, 1500), labels, torch.randn(20)
    expected = constant_in_some_rows(*tensors)
    no_column = torch.tensor([0, 5, 2**40, 2**40] * 5)
    of_int64 = constant_in_some_rows(tensors[0], no_column, tensors[2])
    before = _native.generated_calls()
    request_of_uint64().compile()
    for found, *others in zip(constant_in_some_rows(*tensors), expected, of_int64, strict=True):
        for other in others:
            assert torch.equal(found, other)
    assert _native.generated_calls() == before + 1


def test_words_that_are_no_program_are_refused(cache: Any) -> None:
    with pytest.raises(ValueError, match="its bytecode cannot be read"):
        _native.add_generated(b"\0" * 44, [], [], "x86-64-v3", "nowhere")
