"""The cost of a conversion is as docs/exchange.md says, relative to the frameworks' own functions.

The tests count the functions that a conversion calls; `python -m bridge bench --ops border` takes
times.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

import bridge
from bridge.exchange import from_array, from_tensor
from tests.python_calls import calls_of

LEAVES = 200


def cost(run: Callable[[], Any]) -> int:
    """Counts the functions that a call enters once its kind is cached."""
    # An equal sharding from an earlier test would be compared, by functions of JAX.
    from_array.ON_CPU.clear()
    run()
    return len(calls_of(run))


def counted(monkeypatch: pytest.MonkeyPatch, module: ModuleType, *names: str) -> dict[str, int]:
    """Counts the calls of each of the module's functions from now on."""
    counts = dict.fromkeys(names, 0)

    def counting(name: str) -> Callable[..., Any]:
        function = getattr(module, name)

        def count(*arguments: Any) -> Any:
            counts[name] += 1
            return function(*arguments)

        return count

    for name in names:
        monkeypatch.setattr(module, name, counting(name))
    return counts


@pytest.mark.parametrize("copy", [None, False])
def test_to_torch_costs_no_more_than_from_dlpack(copy: bool | None) -> None:
    array = jnp.ones((64, 64))
    tree = {f"layers.{i}.weight": array for i in range(LEAVES)}
    peer = cost(lambda: torch.from_dlpack(array))
    assert 0 < cost(lambda: bridge.to_torch(array, copy=copy)) <= peer
    assert cost(lambda: bridge.to_torch(tree, copy=copy)) <= LEAVES * peer


@pytest.mark.parametrize("copy", [None, False])
def test_to_jax_costs_at_most_half_of_from_dlpack(copy: bool | None) -> None:
    tensor = torch.ones(64, 64)
    tree = {f"layers.{i}.weight": tensor for i in range(LEAVES)}
    peer = cost(lambda: jax.dlpack.from_dlpack(tensor))
    assert 0 < cost(lambda: bridge.to_jax(tensor, copy=copy)) <= peer / 2
    assert cost(lambda: bridge.to_jax(tree, copy=copy)) <= LEAVES * peer / 2


@pytest.mark.parametrize("copy", [None, False])
def test_a_leaf_is_one_capsule_and_no_copy(
    copy: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = [jnp.full((64, 64), float(i)) for i in range(5)]
    tensors = [torch.full((64, 64), float(i)) for i in range(5)]
    bridge.to_torch(arrays), bridge.to_jax(tensors)  # asks once for the devices
    out = counted(monkeypatch, from_array, "array_to_capsule", "capsule_to_tensor")
    back = counted(monkeypatch, from_tensor, "tensor_to_capsule", "capsule_to_array")
    for array, tensor in zip(arrays, bridge.to_torch(arrays, copy=copy), strict=True):
        assert tensor.data_ptr() == array.unsafe_buffer_pointer()
    for tensor, array in zip(tensors, bridge.to_jax(tensors, copy=copy), strict=True):
        assert tensor.data_ptr() == array.unsafe_buffer_pointer()
    assert set(out.values()) == set(back.values()) == {5}
