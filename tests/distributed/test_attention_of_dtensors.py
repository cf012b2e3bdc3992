"""Attention of DTensors: the bits of the whole tensors, and only the listed communication."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.attention_checks import CASES
from tests.distributed.torch_processes import JOIN

_CHECKS = "tests.distributed.attention_checks"


@pytest.mark.parametrize("name", CASES)
def test_bits_of_the_whole(processes: Any, name: str) -> None:
    ranks = processes(JOIN, 2 ** len(CASES[name][0]))
    ranks.run(f"{_CHECKS}:of_the_whole", name=name)


def test_communication(processes: Any) -> None:
    for found in processes(JOIN, 2).run(f"{_CHECKS}:communication"):
        assert found == {"batches": 0, "heads": 0, "columns": 3}  # q, k and v


def test_refusals(processes: Any) -> None:
    processes(JOIN, 2).run(f"{_CHECKS}:refusals")
