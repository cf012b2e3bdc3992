"""Where CUDA kernels compute what a row has one of."""

from __future__ import annotations

import pytest

from bridge.catalogue import hot
from bridge.lang.bytecode import Writer
from bridge.lang.emission_cuda import cuda_source_of
from bridge.lang.residents import Residents
from bridge.lang.row_order import Place, RowOrder

KEEPS, BACKWARD = 1, 2  # of the passes of training


@pytest.mark.parametrize(
    ("number", "operation", "place"),
    [
        (KEEPS, "load_label", Place.BESIDE_FIRST),
        (KEEPS, "log_sum_rest", Place.END),
        (BACKWARD, "load_label", Place.BESIDE),
        (BACKWARD, "load_row", Place.BESIDE),
        (BACKWARD, "columns", Place.BEFORE),
    ],
)
def test_places_in_cross_entropy(number: int, operation: str, place: Place) -> None:
    request = [*hot.requests_of("cross_entropy", "bfloat16")][number]
    emitter = Residents(Writer(request.program, False), request.arithmetic, request.dtypes)
    order = RowOrder(emitter)
    found = {
        order.place(instruction.to)
        for section in emitter.writer.rows
        for instruction in section.instructions
        if instruction.operation == operation
    }
    assert found == {place}


def test_reductions_that_elements_wait_for_are_all_warps() -> None:
    request = [*hot.requests_of("cross_entropy", "bfloat16")][KEEPS]
    emitter = Residents(Writer(request.program, False), request.arithmetic, request.dtypes)
    order = RowOrder(emitter)
    found = [
        (instruction.operation, order.place(instruction.to))
        for tile in emitter.tiles
        for instruction in tile.instructions
        if instruction.operation in ("sum", "max")
    ]
    assert found == [("max", Place.BEFORE), ("sum", Place.END), ("sum", Place.END)]


def test_labels_are_asked_for_behind_the_first_elements() -> None:
    request = [*hot.requests_of("cross_entropy", "bfloat16")][KEEPS]
    text = cuda_source_of(request.program, request.arithmetic, request.dtypes).source
    stages = ["x0.load(part);", "v1 = w.load_label(1);", "s2.share(w, 0);", "if (w.is_first())"]
    places = [text.index(stage) for stage in stages]
    assert places == sorted(places)
