"""Kernels generated for CUDA, on the host emulator.

They have the bits of the definition for arrays of any layout and length, in all orders of threads;
other tests are about errors of the CUDA library.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bridge
from bridge import lang as bl
from bridge.catalogue import ahead_of_time
from bridge.catalogue.bias_dropout_add import bias_dropout_add
from bridge.catalogue.bias_gelu import bias_gelu
from bridge.generated.requests import Request
from bridge.lang.functions import GELU_KINDS
from bridge.ops.traced import traced
from bridge.ops.usual_programs import usual_requests
from tests.declared.ops import OTHERS, SEVEN
from tests.generated.emulated import described_by_hand, needs_compiler, run, run_described
from tests.generated.test_bits import (
    DTYPES,
    constant_in_some_rows,
    counted,
    counted_and_read,
    in_one_column,
    picked,
    request_of_uint64,
    requested,
    softmax_requests,
)
from tests.lang.random_programs import random_call, steps_of
from tests.lang.test_fuzz import runs_of

pytestmark = [needs_compiler, pytest.mark.processes]
_CASES = [(op, dtype) for op in (*SEVEN, *OTHERS.values()) for dtype in DTYPES]


@pytest.mark.long
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("op", "dtype"), _CASES, ids=[f"{op.__name__}-{dtype}" for op, dtype in _CASES]
)
def test_declared_ops(op: Any, dtype: str, tmp_path: Path) -> None:
    """Runs the forward pass, and in one of two cases a derivative."""
    declaration = op.declaration
    present = tuple(True for _ in declaration.parameters)
    found = traced(declaration, present, *declaration.static.values())
    requests = list(usual_requests(found, dtype))
    number = _CASES.index((op, dtype))
    derivatives = requests[-1 - number // 2 % 2 :][: number % 2]
    run([requests[0], *derivatives], tmp_path, calls=16, seed=number)


@pytest.mark.long
@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", GELU_KINDS)
def test_bias_gelu(form: str, dtype: str, tmp_path: Path) -> None:
    """Runs forward, down the columns of many rows, and backward with column sums.

    The sums are over one chunk of rows and over several.
    """
    found = traced(bias_gelu.declaration, (True, True), form)
    requests = [*itertools.islice(usual_requests(found, dtype), 2)]
    run(requests, tmp_path, calls=30, seed=len(form))


@pytest.mark.long
@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("op", ["rms_norm", "rms_norm + residual", "layer_norm"])
def test_weights_that_are_staged(op: str, dtype: str, tmp_path: Path) -> None:
    """In these backward passes threads go down rows; some save intermediate values per element."""
    request = [*ahead_of_time.requests_of(op, dtype)][-1]
    emitted = request.emitted()
    assert emitted.staged == 1
    assert ("W::kKeepsMore" in emitted.source) == (op != "rms_norm")
    run([request], tmp_path, calls=12, seed=len(op))


@pytest.mark.long
@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", range(24))
def test_kernels_written_by_hand(number: int, tmp_path: Path) -> None:
    _, request, parameters = [*ahead_of_time.hand_written()][number]
    line = described_by_hand(request, parameters)
    run_described([line], [request], tmp_path, calls=30, seed=number)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.1, 0.875, 1.0])
def test_bias_dropout_add(p: float, dtype: str, tmp_path: Path) -> None:
    """Runs forward and backward passes, which draw the same words."""
    found = traced(bias_dropout_add.declaration, (True,) * 5, p)
    requests = [*itertools.islice(usual_requests(found, dtype), 2)]
    run(requests, tmp_path, calls=30, seed=5)


def test_random_words_of_a_part_of_an_array(tmp_path: Path) -> None:
    """The number of the first element is one more operand.

    It may be any number, up to 64-bit overflow.
    """
    declaration = OTHERS["dropped"].declaration
    whole = next(usual_requests(traced(declaration, (True, True), 0.25), "bfloat16"))
    operands, results = whole.dtypes[:2], whole.dtypes[2:]
    dtypes = (*operands, "int64", *results)
    run([Request(whole.program, whole.arithmetic, dtypes, True)], tmp_path, calls=30, seed=5)


def test_sums_of_a_single_column(tmp_path: Path) -> None:
    found = traced(picked.declaration, (True, True))
    run([next(usual_requests(found, "bfloat16"))], tmp_path, calls=30, seed=3)


@pytest.mark.long
@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", [counted, counted_and_read], ids=lambda op: op.__name__)
def test_what_equals_the_largest_of_a_row(op: Any, dtype: str, tmp_path: Path) -> None:
    found = traced(op.declaration, (True,))
    run([next(usual_requests(found, dtype))], tmp_path, calls=30, seed=7)


@pytest.mark.long
@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_differs_in_one_column(dtype: str, tmp_path: Path) -> None:
    found = traced(in_one_column.declaration, (True, True, True))
    run([next(usual_requests(found, dtype))], tmp_path, calls=30, seed=8)


@pytest.mark.long
@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_constants(dtype: str, tmp_path: Path) -> None:
    found = traced(constant_in_some_rows.declaration, (True, True, True))
    run([next(usual_requests(found, dtype))], tmp_path, calls=30, seed=9)


def test_labels_of_uint64(tmp_path: Path) -> None:
    """The labels may have any 64 bits."""
    run([request_of_uint64()], tmp_path, calls=30, seed=2)


def test_reductions_of_numbers(tmp_path: Path) -> None:
    @bridge.op
    def counted(x: bridge.Full, *, each: float = 0.3) -> Any:
        return x + bl.sum(each) * bl.max(each) + bl.argmax(each), bl.column_sum(each)

    found = traced(counted.declaration, (True,), 0.3)
    run([next(usual_requests(found, "float32"))], tmp_path, calls=10, seed=4)


def test_a_column_that_several_sections_pick(tmp_path: Path) -> None:
    """Runs the forward and the backward pass."""

    @bridge.op
    def picks(x: bridge.Full, label: bridge.PerRow[int]) -> Any:
        is_label = bl.column() == label
        other = bl.max(bl.where(is_label, -1.0, x))
        return bl.where(is_label, x / other, x - bl.sum(bl.where(is_label, -0.0, x * other)))

    requests = usual_requests(traced(picks.declaration, (True, True)), "float32")
    run([*itertools.islice(requests, 2)], tmp_path, calls=10, seed=6)


@pytest.mark.long
@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_programs_of_softmax(dtype: str, tmp_path: Path) -> None:
    run(softmax_requests(dtype)[:1], tmp_path, calls=16, seed=2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", range(2000))
def test_random_programs(number: int, tmp_path: Path) -> None:
    runs, _ = runs_of(random_call(number, steps_of(number)), np.random.default_rng(number))
    run([requested(runs[number % len(runs)])], tmp_path, calls=10, seed=number)
