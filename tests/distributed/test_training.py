"""Models of the ops under FSDP2, DDP and under tensor parallelism, against one process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.torch_processes import JOIN

_CHECKS = "tests.distributed.training_checks"


@pytest.mark.parametrize("check", ["fully_sharded", "huggingface_replaced"])
def test_data_parallel(processes: Any, check: str) -> None:
    processes(JOIN, 2).run(f"{_CHECKS}:{check}")


def test_tensor_parallel_and_fsdp(processes: Any) -> None:
    processes(JOIN, 4).run(f"{_CHECKS}:tensor_parallel")


@pytest.mark.parametrize("count", [2, 4])
def test_dtensors_have_the_bits_of_one_process(processes: Any, count: int) -> None:
    processes(JOIN, count).run(f"{_CHECKS}:gpt_in_parts")
