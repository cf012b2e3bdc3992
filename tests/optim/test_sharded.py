"""Parameters on several devices: the bits of one device."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bridge.jax import optim
from tests.optim.steps import assert_same

SPLIT = {
    "rows": ((8, 4096), PartitionSpec("x")),
    "both": ((64, 128), PartitionSpec("x", "y")),
    "columns": ((6, 2048), PartitionSpec(None, ("x", "y"))),
    "joined": ((8, 3, 3), PartitionSpec("x")),
    "vector": ((1 << 17,), PartitionSpec(("x", "y"))),
    "whole": ((7,), PartitionSpec()),
}


def trained(grads: Any, params: Any) -> Any:
    clip, optimizer = optim.clip_by_global_norm(1.0), optim.adamw(1e-2)
    state, norm = optimizer.init(params), clip.init(params)
    for _ in range(2):
        clipped, norm = clip.update(grads, norm, params)
        params, state = optimizer.step(clipped, state, params)
        updates, state = optimizer.update(grads, state, params)
        params = optim.apply_updates(params, updates)
    return params, norm


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=lambda kind: kind.name)
def test_sharded_parameters(kind: Any, rng: Any) -> None:
    if len(jax.devices()) < 4:
        pytest.skip("needs 4 devices")
    values = [
        {name: rng.normal(size=shape).astype(np.float32) for name, (shape, _) in SPLIT.items()}
        for _ in range(2)
    ]
    expected, norm = jax.jit(trained)(*values)
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(kind, kind))
    with jax.set_mesh(mesh):
        placed = [
            {k: jax.device_put(v, NamedSharding(mesh, SPLIT[k][1])) for k, v in tree.items()}
            for tree in values
        ]
        found, theirs = jax.jit(trained)(*placed)
    assert_same(expected, found)
    assert float(norm.norm) == float(theirs.norm)
    for name, p in found.items():
        assert p.sharding.is_equivalent_to(placed[1][name].sharding, p.ndim)
