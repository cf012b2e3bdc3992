"""DTensors whose columns are split: the bits of the whole tensors, and no row is sent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.declared.split_columns import CASES, COLUMNS
from tests.distributed.torch_processes import JOIN

_CHECKS = "tests.distributed.column_checks"


@pytest.mark.long
@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize(
    ("mesh", "dims"),
    [
        ((1,), (2,)),
        ((2,), (2,)),
        ((4,), (2,)),
        ((2, 2), (0, 2)),
        ((2, 2), (2, 1)),
        ((2, 2), (2, 2)),
    ],
)
def test_bits_of_the_whole(processes: Any, mesh: Any, dims: Any, dtype: str) -> None:
    count = 1
    for size in mesh:
        count *= size
    columns = list(COLUMNS) if dtype == "float32" else ["whole and shared chunks"]
    processes(JOIN, count).run(
        f"{_CHECKS}:as_unsharded", mesh=mesh, dims=dims, dtype=dtype, columns=columns
    )


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_part_that_is_a_subtree_sends_a_few_numbers_a_row(
    processes: Any, world_size: int
) -> None:
    expected = {name: list(case.sent) for name, case in CASES.items()}
    for found in processes(JOIN, world_size).run(f"{_CHECKS}:what_is_sent"):
        assert found == expected


@pytest.mark.parametrize(
    "check",
    [
        "compiled",
        "one_row_and_none",
        "cross_entropy_of_a_group",
        "groups_that_differ",
        "second_derivatives_of_a_loss",
        "softmaxes",
    ],
)
def test_dtensor(processes: Any, check: str) -> None:
    processes(JOIN, 2).run(f"{_CHECKS}:{check}")
