"""Where CUDA kernels compute what a row has one of."""

from __future__ import annotations

import pytest

from bridge.catalogue import hot
from bridge.generated.requests import Request
from bridge.lang.bytecode import Writer
from bridge.lang.emission_cuda import cuda_source_of
from bridge.lang.residents import Residents
from bridge.lang.row_order import Place, RowOrder

KEEPS, BACKWARD = 1, 2  # of the passes of training


def request_of(number: int) -> Request:
    return [*hot.requests_of("cross_entropy", "bfloat16")][number]


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
        (BACKWARD, "columns", Place.BEFORE),
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
