"""JAX modules in torch under DistributedDataParallel and FSDP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.torch_processes import JOIN

_CHECKS = "tests.distributed.jax_module_checks"


@pytest.mark.parametrize("check", ["data_parallel", "buffers_follow_rank_0", "fully_sharded"])
def test_data_parallel(processes: Any, check: str) -> None:
    processes(JOIN, 2).run(f"{_CHECKS}:{check}")
