"""NCCL on one GPU: a group of one rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.distributed.torch_processes import JOIN_NCCL

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and torch.distributed.is_nccl_available()),
    reason="needs a GPU and NCCL",
)


def test_one_rank(processes: Any) -> None:
    processes(JOIN_NCCL, 1).run("tests.distributed.nccl_checks:one_rank")
