"""all_gather and the ops over several JAX processes: Gloo through jax.distributed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.jax_processes import HEARTBEAT_SECONDS, JOIN
from tests.distributed.processes import Outcome, Processes

_CHECKS = "tests.distributed.jax_checks"

every_size = pytest.mark.parametrize("ranks", [1, 2, 3, 4])


@every_size
def test_values_and_gradients(processes: Any, ranks: int) -> None:
    kinds = (("float32", True), ("bfloat16", True), ("float64", False))
    for dtype, check_vma in kinds if ranks <= 2 else kinds[:1]:
        processes(JOIN, ranks).run(f"{_CHECKS}:gather", dtype=dtype, check_vma=check_vma)


def test_dtypes(processes: Any) -> None:
    floats = ["float16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]
    others = ["bool", "int8", "uint8", "int16", "int32", "int64", "complex64", "complex128"]
    processes(JOIN, 2).run(f"{_CHECKS}:gather_dtypes", dtypes=floats + others)


@every_size
def test_ops_on_sharded_arrays(processes: Any, ranks: int) -> None:
    processes(JOIN, ranks).run(f"{_CHECKS}:ops")


def test_errors(processes: Any) -> None:
    processes(JOIN, 2).run(f"{_CHECKS}:errors")


def test_a_late_rank(processes: Any) -> None:
    processes(JOIN, 2).run(f"{_CHECKS}:late", seconds=3.0)


def _outcomes(check: str, /, ranks: int = 2, flags: str = "", **arguments: Any) -> list[Outcome]:
    with Processes(ranks, JOIN, {"XLA_FLAGS": flags}) as started:
        return started.outcomes(f"{_CHECKS}:{check}", timeout=HEARTBEAT_SECONDS + 50, **arguments)


def _is_told(outcome: Outcome) -> bool:
    """True if a rank ended with a message of Gloo or JAX about the others."""
    words = f"{outcome.value} {outcome.details}"
    known = any(word in words for word in ("Gloo", "gloo", "coordination service", "UNAVAILABLE"))
    return outcome.kind in ("returned", "died") and known


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_killed_rank(ranks: int) -> None:
    *others, last = _outcomes("killed", ranks)
    assert last.kind == "died"
    assert all(map(_is_told, others)), others


def test_a_rank_that_raises_and_ends() -> None:
    first, last = _outcomes("one_raises")
    assert last.kind == "died"
    assert "this rank's own mistake" in last.details
    assert _is_told(first), first


@pytest.mark.long
def test_a_rank_that_is_too_late() -> None:
    """XLA decides how long ranks wait; its default is half an hour."""
    flags = "--xla_cpu_collective_timeout_seconds=4"
    for outcome in _outcomes("too_late", flags=flags, seconds=7.0):
        assert _is_told(outcome), outcome


_DIFFERING = {
    "shape": r"ValueError: all_gather: the shape of x differs between ranks: [2, 3] on rank 0, "
    "[3, 2] on rank 1 of the group; it must be the same on all: pad to the largest",
    "dtype": "ValueError: all_gather: the dtype of x differs between ranks: float32 on rank 0, "
    "int32 on rank 1",
    "axis": "ValueError: all_gather: axis differs between ranks: 0 on rank 0, 1 on rank 1",
}


@pytest.mark.parametrize("what", _DIFFERING)
def test_ranks_that_differ_are_all_told(processes: Any, what: str) -> None:
    for told in processes(JOIN, 2).run(f"{_CHECKS}:differing", what=what):
        assert _DIFFERING[what] in told


def test_a_rank_with_another_shape() -> None:
    """Gloo detects it first if nothing is compared, and no rank hangs."""
    outcomes = _outcomes("another_shape")
    assert any(map(_is_told, outcomes)), outcomes
    assert all(outcome.kind in ("returned", "died") for outcome in outcomes), outcomes
