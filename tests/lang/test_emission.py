"""Properties of the generated C++ for the CPU that its results do not show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import bridge
from bridge import lang as bl
from bridge.catalogue import ahead_of_time
from bridge.generated.requests import Request
from bridge.lang.emission import cuda
from bridge.lang.emission.cpu import source_of
from bridge.lang.emission.cuda import cuda_source_of
from bridge.ops.traced import traced
from bridge.ops.usual_programs import usual_requests

KEEPS, BACKWARD = 1, 2  # the passes of training


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("op", "number", "sections", "fetching"),
    [
        ("rms_norm", KEEPS, 2, [1]),
        ("rms_norm", BACKWARD, 2, [1]),
        ("layer_norm", KEEPS, 3, [2]),
        ("cross_entropy", KEEPS, 2, [1]),  # the powers take longest
        ("cross_entropy", BACKWARD, 1, []),
        ("swiglu", KEEPS, 1, []),
    ],
)
def test_one_section_of_those_that_read_a_row_again_asks_for_the_next(
    op: str, number: int, sections: int, fetching: list[int], dtype: str
) -> None:
    request = [*ahead_of_time.requests_of(op, dtype)][number]
    source = source_of(request.program, request.arithmetic, request.dtypes)
    found = re.findall(r"kFetchesAhead = (true|false);", source)
    assert len(found) == sections
    assert [i for i, fetches in enumerate(found) if fetches == "true"] == fetching


@bridge.op
def constant_in_one_result(x: bridge.Full, labels: bridge.PerRow[int]) -> Any:
    has_label = labels >= 0
    return bl.where(has_label, x, 0.0), bl.where(has_label, 2 * x, x)


@bridge.op
def other_zeros(x: bridge.Full, labels: bridge.PerRow[int]) -> Any:
    return bl.where(bl.column() == 0, bl.where(labels >= 0, x, -0.0), bl.where(labels >= 0, x, 0.0))


@bridge.op
def constant_in_rows(x: bridge.Full, labels: bridge.PerRow[int]) -> Any:
    return bl.where(labels < 0, 1.0, x) + bl.where(labels < 0, 0.0, bl.tanh(x))


def test_rows_of_constants_are_stored_without_a_look_at_their_elements() -> None:
    def in_both(request: Request) -> list[bool]:
        arguments = request.program, request.arithmetic, request.dtypes
        texts = source_of(*arguments), cuda_source_of(*arguments).source
        return ["if (!kFlat &&" in texts[0], "return store_constants(part);" in texts[1]]

    assert in_both([*ahead_of_time.requests_of("cross_entropy", "bfloat16")][BACKWARD]) == [
        True,
        True,
    ]
    assert in_both([*ahead_of_time.requests_of("cross_entropy", "bfloat16")][KEEPS]) == [
        False,
        False,
    ]
    for op, has in (
        (constant_in_one_result, False),
        (other_zeros, False),
        (constant_in_rows, True),
    ):
        request = next(usual_requests(traced(op.declaration, (True, True)), "float32"))
        assert in_both(request) == [has, has]


@bridge.op
def rounded_twice(x: bridge.Full, y: bridge.Full) -> Any:
    return bl.rounded(bl.rounded(x, "bfloat16") + y, "bfloat16")


@pytest.mark.parametrize(("dtype", "is_so"), [("bfloat16", True), ("float16", False)])
def test_what_memory_has_rounded_is_not_rounded_again(dtype: str, is_so: bool) -> None:
    request = next(usual_requests(traced(rounded_twice.declaration, (True, True)), dtype))
    arguments = request.program, request.arithmetic, request.dtypes
    text = cuda_source_of(*arguments).source
    stored = re.search(r"y0\.put\(e, (v\d+)\)", text)
    assert stored is not None
    assert (f"const Real {stored[1]} = compute<kAdd>" in text) == is_so
    for source in (text, source_of(*arguments)):
        assert ("compute<kRoundBfloat16>(v0," not in source) == is_so


def test_the_longest_short_row_is_that_of_the_cuda_kernels() -> None:
    text = (Path(__file__).parents[2] / "cpp/generated/cuda/call.h").read_text()
    found = dict(re.findall(r"constexpr int (kShort\w+) = (\d+);", text))
    assert int(found["kShortGroup"]) * int(found["kShortVectors"]) == cuda._SHORT_VECTORS
