"""A GPT that is trained on parts of a batch has the weights of one device, bit for bit."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bridge.jax as bj
from bridge.jax import optim
from tools.demo import gpt, text

STEPS = 10


def trained(shards: int) -> tuple[Any, str]:
    """Returns the weights after some steps, and the text of the compiled step."""
    mesh = jax.make_mesh((shards,), ("data",), axis_types=(AxisType.Auto,))
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    ops = gpt.BridgeOps(bj)
    optimizer = optim.adamw(1e-3, eps=gpt.ADAM_EPSILON)
    weights = jax.device_put(gpt.initial_weights(), everywhere)
    tables = jax.device_put(gpt.angles(), everywhere)
    state = jax.device_put(optimizer.init(weights), everywhere)

    @jax.jit
    def step(weights: Any, state: Any, pieces: Any, number: Any) -> Any:
        value, gradients = jax.value_and_grad(partial(gpt.loss, ops))(
            weights, tables, pieces, number
        )
        return *optimizer.step(gradients, state, weights), value

    pieces = text.batches(STEPS, gpt.BATCH, gpt.LENGTH)
    words = ""
    for number in range(STEPS):
        given = weights, state, jax.device_put(pieces[number], split), np.int32(number)
        if not words:
            words = step.lower(*given).compile().as_text()
        weights, state, _ = step(*given)
    return jax.tree.map(np.asarray, weights), words


@pytest.mark.long
@pytest.mark.parametrize("shards", [2, 4])
def test_weights_after_ten_steps(shards: int) -> None:
    whole, _ = trained(1)
    parts, words = trained(shards)
    differing = {
        name: int((value.view(np.int32) != parts[name].view(np.int32)).sum())
        for name, value in whole.items()
    }
    assert differing == dict.fromkeys(whole, 0)
    # The widest activations stay split.
    rows = gpt.BATCH * gpt.LENGTH
    assert f"f32[{rows // shards},{2 * gpt.INNER}]" in words
