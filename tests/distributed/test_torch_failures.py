"""A rank is killed, late, or raises: the others end with an error in time, and none hangs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.processes import Outcome, Processes
from tests.distributed.torch_processes import IMPATIENT_SECONDS, JOIN, JOIN_IMPATIENTLY

_CHECKS = "tests.distributed.failure_checks"

# The group's timeout, plus the time a busy machine needs to notice it. Longer means hanging.
_SECONDS = IMPATIENT_SECONDS + 40


def _outcomes(check: str, /, **arguments: Any) -> list[Outcome]:
    with Processes(3, JOIN_IMPATIENTLY) as ranks:
        return ranks.outcomes(f"{_CHECKS}:{check}", timeout=_SECONDS, **arguments)


def _outcomes_alive(processes: Any, check: str, /, **arguments: Any) -> list[Outcome]:
    ranks = processes(JOIN, 3)
    return ranks.outcomes(f"{_CHECKS}:{check}", timeout=_SECONDS, **arguments)


def _expect(outcomes: list[Outcome], kind_of_rank_1: str) -> None:
    assert [o.kind for o in outcomes] == ["returned", kind_of_rank_1, "returned"], outcomes


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
def test_killed_before_a_gather(check: bool) -> None:
    _expect(_outcomes("killed_before", check=check), "died")


@pytest.mark.parametrize(
    "check", ["killed_in_the_middle", "killed_before_backward", "killed_before_local_backward"]
)
def test_killed(check: str) -> None:
    _expect(_outcomes(check), "died")


# These leave all ranks alive, and each has its own group.


def test_a_late_rank_is_waited_for(processes: Any) -> None:
    _expect(_outcomes_alive(processes, "late", seconds=IMPATIENT_SECONDS / 3), "returned")


@pytest.mark.parametrize("count", [2, 1 << 20], ids=["small", "large"])
def test_a_rank_that_is_too_late_is_given_up(processes: Any, count: int) -> None:
    seconds = IMPATIENT_SECONDS + 2
    _expect(_outcomes_alive(processes, "too_late", seconds=seconds, count=count), "returned")


def test_a_rank_that_raises(processes: Any) -> None:
    outcomes = _outcomes_alive(processes, "one_raises")
    _expect(outcomes, "raised")
    assert outcomes[1].error == "KeyError"


def test_a_rank_without_backward_pass(processes: Any) -> None:
    _expect(_outcomes_alive(processes, "skips_backward"), "returned")
