"""Products of DTensors: the bits of the whole tensors, and only the listed communication."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.product_checks import CASES
from tests.distributed.torch_processes import JOIN

_CHECKS = "tests.distributed.product_checks"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_bits_of_the_whole(processes: Any, name: str, dtype: str) -> None:
    ranks = processes(JOIN, 2 ** len(CASES[name][1]))
    ranks.run(f"{_CHECKS}:of_the_whole", name=name, dtype=dtype)


def test_communication(processes: Any) -> None:
    for found in processes(JOIN, 2).run(f"{_CHECKS}:communication"):
        assert found == {
            "batches": 0,
            "columns": 0,
            "contraction": 1,  # the sums of subtrees
            "contraction of x": 1,
            "no subtrees": 2,  # x and the weight
        }


def test_refusals(processes: Any) -> None:
    processes(JOIN, 2).run(f"{_CHECKS}:refusals")
