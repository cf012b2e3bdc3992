"""A GPT trained on 1, 2 and 4 devices, each with a part of the batch: the same weights."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tools.demo import gpt, jax_gpt, text, torch_gpt

STEPS = 10


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Eight sequences a step; a device's part of the rows is a whole subtree of their sums."""
    monkeypatch.setattr(gpt, "LENGTH", 256)
    monkeypatch.setattr(gpt, "LAYERS", 1)
    return text.batches(STEPS, 8, 256)


def test_any_number_of_devices(pieces: Any) -> None:
    """JAX on a mesh and PyTorch on one device have the bits of every weight and moment."""
    if len(jax.devices()) < 4:
        pytest.skip("needs 4 devices")
    alone = torch_gpt.Training(gpt.initial_weights(), True, steps=STEPS)
    losses = [float(alone.step(batch, step)) for step, batch in enumerate(pieces)]
    for count in (1, 2, 4):
        mesh = jax.make_mesh((count,), ("x",), (AxisType.Auto,), devices=jax.devices()[:count])
        whole, split = (NamedSharding(mesh, spec) for spec in (PartitionSpec(), PartitionSpec("x")))
        training = jax_gpt.Training(gpt.initial_weights(), True, steps=STEPS)
        for name in ("weights", "optimizer_state", "tables"):
            setattr(training, name, jax.device_put(getattr(training, name), whole))
        training.device = split
        assert [float(training.step(batch, step)) for step, batch in enumerate(pieces)] == losses
        assert len(training.weights["0.up"].sharding.device_set) == count
        for name, weight in alone.weights.items():
            np.testing.assert_array_equal(training.weights[name], weight.detach().numpy(), name)
        for name, moment in alone.state().items():
            np.testing.assert_array_equal(training.state()[name], moment.numpy(), name)
