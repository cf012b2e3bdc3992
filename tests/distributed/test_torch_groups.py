"""Groups and meshes, and errors that every rank raises."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.torch_processes import JOIN

_CHECKS = "tests.distributed.group_checks"
_NO_GROUP = "tests.distributed.harness_checks:join"


def test_subgroups(processes: Any) -> None:
    processes(JOIN, 4).run(f"{_CHECKS}:subgroups")


@pytest.mark.long
def test_order_of_the_group(processes: Any) -> None:
    processes(JOIN, 3).run(f"{_CHECKS}:order_of_the_group")


@pytest.mark.long
def test_meshes(processes: Any) -> None:
    processes(JOIN, 4).run(f"{_CHECKS}:meshes")


@pytest.mark.parametrize("world_size", [2, 3])
def test_errors_on_every_rank(processes: Any, world_size: int) -> None:
    processes(JOIN, world_size).run(f"{_CHECKS}:errors_on_every_rank")


def test_nothing_to_send(processes: Any) -> None:
    processes(JOIN, 2).run(f"{_CHECKS}:nothing_to_send")


def test_another_group_of_the_name(processes: Any) -> None:
    processes(_NO_GROUP, 2).run(f"{_CHECKS}:another_group_of_the_name")


def test_one_exchange_each_way(processes: Any) -> None:
    processes(JOIN, 2).run(f"{_CHECKS}:check_costs_one_exchange")


def test_without_a_group(processes: Any) -> None:
    processes(_NO_GROUP, 1).run(f"{_CHECKS}:without_group")
