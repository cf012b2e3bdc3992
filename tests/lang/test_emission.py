"""What is written out as C++ for the CPU, where results do not show it."""

from __future__ import annotations

import re

import pytest

from bridge.catalogue import hot
from bridge.lang.emission import source_of

KEEPS, BACKWARD = 1, 2  # of the passes of training


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
    request = [*hot.requests_of(op, dtype)][number]
    source = source_of(request.program, request.arithmetic, request.dtypes)
    found = re.findall(r"kFetchesAhead = (true|false);", source)
    assert len(found) == sections
    assert [i for i, fetches in enumerate(found) if fetches == "true"] == fetching
