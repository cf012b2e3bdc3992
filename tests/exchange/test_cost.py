"""A crossing costs what docs/exchange.md says of it, relative to the frameworks' own functions."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

import bridge

LEAVES = 200


def least(functions: dict[str, Callable[[], Any]], repeat: int = 150) -> dict[str, float]:
    """Seconds of a call in the quietest of many short samples, which take turns."""
    calls = {name: 1 if "tree" in name else LEAVES for name in functions}
    found = dict.fromkeys(functions, float("inf"))
    for _ in range(repeat):
        for name, function in functions.items():
            seconds = timeit.timeit(function, number=calls[name]) / calls[name]
            found[name] = min(found[name], seconds)
    return found


@pytest.mark.parametrize("copy", [None, False])
def test_to_torch_costs_no_more_than_from_dlpack(copy: bool | None) -> None:
    array = jnp.ones((64, 64))
    tree = {f"layers.{i}.weight": array for i in range(LEAVES)}
    cost = least(
        {
            "bridge": lambda: bridge.to_torch(array, copy=copy),
            "from_dlpack": lambda: torch.from_dlpack(array),
            "tree": lambda: bridge.to_torch(tree, copy=copy),
        }
    )
    assert cost["bridge"] <= cost["from_dlpack"]
    assert cost["tree"] <= LEAVES * cost["from_dlpack"]


@pytest.mark.parametrize("copy", [None, False])
def test_to_jax_costs_at_most_half_of_from_dlpack(copy: bool | None) -> None:
    tensor = torch.ones(64, 64)
    tree = {f"layers.{i}.weight": tensor for i in range(LEAVES)}
    cost = least(
        {
            "bridge": lambda: bridge.to_jax(tensor, copy=copy),
            "from_dlpack": lambda: jax.dlpack.from_dlpack(tensor),
            "tree": lambda: bridge.to_jax(tree, copy=copy),
        },
        repeat=30,
    )
    assert cost["bridge"] <= cost["from_dlpack"] / 2
    assert cost["tree"] <= LEAVES * cost["from_dlpack"] / 2
