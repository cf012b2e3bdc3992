"""linear_cross_entropy of DTensors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.torch_processes import JOIN

_CHECKS = "tests.distributed.linear_checks"


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_derivatives_of_the_whole(processes: Any, reduction: str) -> None:
    processes(JOIN, 2).run(f"{_CHECKS}:as_whole", reduction=reduction)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_portable_bits_of_the_whole(processes: Any, reduction: str) -> None:
    processes(JOIN, 2).run(f"{_CHECKS}:portable", reduction=reduction)


@pytest.mark.parametrize(
    "check", ["plain_rows", "odd_shapes", "rows_stay", "compiled", "of_a_group"]
)
def test_split(processes: Any, check: str) -> None:
    processes(JOIN, 2).run(f"{_CHECKS}:{check}")
