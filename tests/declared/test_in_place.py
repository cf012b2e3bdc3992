"""Several results in the places of any operands have the bits of results in new memory."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import bridge
from bridge import lang as bl
from bridge.catalogue import optimizers
from tests.torch.expected import assert_same_bits


@bridge.op
def late(x: bridge.Full, y: bridge.Full):  # type: ignore[no-untyped-def]
    """Reads x after its first result is complete, because the mean comes first."""
    return x + y, y - bl.mean(x * x), bl.exp(x - bl.max(x))


@bridge.op
def swapped(x: bridge.Full, y: bridge.Full):  # type: ignore[no-untyped-def]
    return y * 2.0, x * 3.0


def operands_of(op: Any, rows: int, columns: int) -> list[Any]:
    generator = torch.Generator().manual_seed(rows * columns)

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator) + 0.5

    full = [draw(rows, columns) for _ in range(4)]
    if op is optimizers.adamw_in_place:
        return [*full, draw(rows), torch.tensor(3), draw(rows)]
    if op is optimizers.sgd_in_place:
        return [*full[:2], draw(rows), full[2], torch.tensor(3)]
    return full[:2]


@pytest.mark.parametrize("op", [late, swapped, optimizers.adamw_in_place, optimizers.sgd_in_place])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (2, 1030), (70, 64), (2, 20_000)])
def test_results_in_place(op: Any, rows: int, columns: int) -> None:
    operands = operands_of(op, rows, columns)
    expected = op.torch(*operands)
    full = [i for i, operand in enumerate(operands) if operand.shape == (rows, columns)]
    for places in itertools.product((None, *full), repeat=len(expected)):
        taken = [i for i in places if i is not None]
        if len(set(taken)) < len(taken):
            continue
        given = [operand.clone() for operand in operands]
        out = tuple(torch.empty(rows, columns) if i is None else given[i] for i in places)
        assert op.torch(*given, out=out) is out
        for result, right in zip(out, expected, strict=True):
            assert_same_bits(result, right)
        for i in set(range(len(operands))) - set(taken):
            assert_same_bits(given[i], operands[i])


def test_a_step_of_an_optimizer_can_be_in_place() -> None:
    """Every result is written over the array that it replaces."""
    operands = operands_of(optimizers.adamw_in_place, 3, 64)
    p, _, m, v, *_ = operands
    expected = optimizers.adamw_in_place.torch(*operands)
    optimizers.adamw_in_place.torch(*operands, out=(p, m, v))
    for found, right in zip((p, m, v), expected, strict=True):
        assert_same_bits(found, right)


def test_out_of_several_results_is_checked_before_a_write() -> None:
    x, y = torch.ones(3, 4), torch.ones(3, 4)
    good = torch.full((3, 4), 7.0)
    for out, error, message in (
        ((good,), ValueError, "swapped: out has 1 tensors, expected 2"),
        ((good, torch.empty(3, 5)), ValueError, r"swapped: out has shape \[3, 5\]"),
        ((good, torch.empty(3, 4, dtype=torch.float64)), TypeError, "out has dtype float64"),
        ((good, good), ValueError, "swapped: out has the same tensor twice"),
        ((good, good[:]), ValueError, "overlap"),
        ((good, None), TypeError, "swapped: out"),
    ):
        with pytest.raises(error, match=message):
            swapped.torch(x, y, out=out)
        assert (good == 7.0).all()
