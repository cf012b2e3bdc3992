"""The position of per-row values in CUDA kernels."""

from __future__ import annotations

from typing import Any

import pytest

import bridge
from bridge import lang as bl
from bridge.catalogue import ahead_of_time
from bridge.generated.requests import Request
from bridge.lang import roles
from bridge.lang.bytecode import Writer
from bridge.lang.emission.cuda import cuda_source_of
from bridge.lang.emission.residents import Residents
from bridge.lang.emission.row_order import Place, RowOrder
from bridge.ops.traced import traced
from bridge.ops.usual_programs import usual_requests

KEEPS, BACKWARD = 1, 2  # the passes of training


def request_of(number: int) -> Request:
    return [*ahead_of_time.requests_of("cross_entropy", "bfloat16")][number]


def order_of(number: int) -> RowOrder:
    request = request_of(number)
    writer = Writer(request.program, has_start=False)
    return RowOrder(Residents(writer, request.arithmetic, request.dtypes, free=()))


@pytest.mark.parametrize(
    ("number", "operation", "place"),
    [
        (KEEPS, "load_label", Place.BESIDE_FIRST),
        (KEEPS, "log_sum_rest_16", Place.END),
        (BACKWARD, "load_label", Place.BESIDE),
        (BACKWARD, "load_row", Place.BESIDE),
        (BACKWARD, "integer_columns", Place.BEFORE),
    ],
)
def test_places_in_cross_entropy(number: int, operation: str, place: Place) -> None:
    order = order_of(number)
    found = {
        order.place(instruction.to)
        for section in order.emitter.writer.rows
        for instruction in section.instructions
        if instruction.operation == operation
    }
    assert found == {place}


def test_reductions_that_elements_wait_for_are_all_warps() -> None:
    order = order_of(KEEPS)
    found = [
        (instruction.operation, order.place(instruction.to))
        for tile in order.emitter.tiles
        for instruction in tile.instructions
        if instruction.operation in ("sum", "max")
    ]
    assert found == [("max", Place.BEFORE), ("sum", Place.END), ("sum", Place.END)]


def test_labels_are_asked_for_behind_the_first_elements() -> None:
    request = request_of(KEEPS)
    text = cuda_source_of(request.program, request.arithmetic, request.dtypes).source
    stages = ["x0.load(part);", "v1 = w.load_label(1);", "s2.share(w, 0);", "if (w.is_first())"]
    places = [text.index(stage) for stage in stages]
    assert places == sorted(places)


@bridge.op
def of_rows_alone(x: bridge.Full, scale: bridge.PerRow) -> Any:
    return bl.exp(scale)


@bridge.op
def at_the_largest(x: bridge.Full, y: bridge.Full) -> Any:
    """An op that uses a column given per row, and a column found by a reduction."""
    largest = bl.max(x)
    return bl.sum(bl.where(bl.column() == bl.argmax(y), x, -0.0)) * largest, x - largest


@pytest.mark.parametrize("op", [of_rows_alone, at_the_largest], ids=lambda op: op.__name__)
def test_what_memory_is_asked_for_is_in_the_source(op: Any) -> None:
    for request in usual_requests(traced(op.declaration, (True, True)), "float32"):
        source = cuda_source_of(request.program, request.arithmetic, request.dtypes).source
        assert source.count("load_row<") == sum(
            each.role is roles.PerRow for each in request.program.operands
        )
