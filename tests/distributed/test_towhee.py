"""`bridge.torch.towhee`: the originals' results, and errors for their silent mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.torch_processes import JOIN

_CHECKS = "tests.distributed.towhee_checks"


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("check", ["as_the_originals", "wrong_arguments"])
def test_towhee(processes: Any, check: str, world_size: int) -> None:
    processes(JOIN, world_size).run(f"{_CHECKS}:{check}")


def test_alone(processes: Any) -> None:
    processes("tests.distributed.harness_checks:join", 1).run(f"{_CHECKS}:alone")
