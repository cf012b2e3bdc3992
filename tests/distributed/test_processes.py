"""The sets of processes report every kind of failure, and none hangs."""

from __future__ import annotations

import os

import pytest

from tests.distributed.processes import Processes, RankFailed

_CHECKS = "tests.distributed.harness_checks"


def test_every_rank_runs_the_check_and_returns() -> None:
    with Processes(3, f"{_CHECKS}:join") as ranks:
        answers = ranks.run(f"{_CHECKS}:where", extra=7)
        assert answers == [(rank, 3, 7, True) for rank in range(3)]
        sizes = ranks.run(f"{_CHECKS}:much", count=3_000_000)
        assert sizes == [bytes([rank]) * 3_000_000 for rank in range(3)]


def test_a_rank_that_raises_is_reported_and_the_set_goes_on() -> None:
    with Processes(2, f"{_CHECKS}:join") as ranks:
        for how, error in (("raise", "as it was told"), ("return what cannot be sent", "pickle")):
            with pytest.raises(RankFailed, match=rf"(?s)rank 1 of 2 raised.*{error}"):
                ranks.run(f"{_CHECKS}:misbehave", rank=1, how=how)
        assert ranks.usable
        assert ranks.run(f"{_CHECKS}:misbehave", rank=-1, how="") == ["well", "well"]


def test_a_rank_that_dies_is_reported() -> None:
    with Processes(2, f"{_CHECKS}:join") as ranks:
        outcomes = ranks.outcomes(f"{_CHECKS}:misbehave", rank=0, how="die")
        assert [o.kind for o in outcomes] == ["died", "returned"]
        assert outcomes[0].text == "killed by signal 9"
        assert not ranks.usable


# The check that hangs sleeps for longer than this: a wait for its end would be seen.
@pytest.mark.timeout(300)
def test_a_rank_that_hangs_is_killed_and_its_stack_shown() -> None:
    with Processes(2, f"{_CHECKS}:join") as ranks:
        outcomes = ranks.outcomes(f"{_CHECKS}:misbehave", timeout=1.0, rank=1, how="hang")
        assert [o.kind for o in outcomes] == ["returned", "hung"]
        assert "in misbehave" in outcomes[1].details
        assert not ranks.usable


def test_no_descriptor_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with Processes(2, f"{_CHECKS}:join") as ranks:
        ranks.run(f"{_CHECKS}:where", extra=0)
    assert len(os.listdir("/proc/self/fd")) == before
