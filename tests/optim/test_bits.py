"""Parameters, state and norms have the same bits in both frameworks after several steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from bridge.jax import optim as in_jax
from bridge.torch import optim as in_torch
from tests.frameworks import DTYPES
from tests.optim.steps import (
    PAIRS,
    arrays,
    assert_same,
    give,
    gradients,
    parameters,
    tensor,
    tree,
)

STATE = {"exp_avg": "mu", "exp_avg_sq": "nu", "momentum_buffer": "trace"}


def trained_in_torch(pair: Any, start: Any, steps: Any) -> Any:
    params = parameters(start)
    optimizer = pair.torch(params.items())
    for grads in steps:
        give(params, grads)
        optimizer.step()
    return params, optimizer


def trained_in_jax(pair: Any, start: Any, steps: Any, form: str) -> Any:
    optimizer = pair.jax()

    def update(grads: Any, state: Any, params: Any) -> Any:
        updates, state = optimizer.update(grads, state, params)
        own = form == "apply_updates"
        return (in_jax if own else optax).apply_updates(params, updates), state

    step = optimizer.step if form == "step" else update
    if form != "eager":
        step = jax.jit(step)
    params = arrays(start)
    state = optimizer.init(params)
    for grads in steps:
        params, state = step(arrays(grads), state, params)
    return params, state


@pytest.mark.parametrize("form", ["step", "optax", "apply_updates", "eager"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PAIRS)
def test_weights_and_state_after_several_steps(name: str, dtype: str, form: str, rng: Any) -> None:
    start, steps = tree(rng, dtype), list(gradients(rng, dtype, 4))
    params, optimizer = trained_in_torch(PAIRS[name], start, steps)
    with jax.enable_x64(dtype == "float64"):
        values, state = trained_in_jax(PAIRS[name], start, steps, form)
    assert all(values[key].dtype == start[key].dtype for key in start)
    assert_same(params, values)
    for own, theirs in STATE.items():
        if getattr(state, theirs, ()) != ():
            found = {key: optimizer.state[p][own] for key, p in params.items()}
            assert_same(found, getattr(state, theirs))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_clipped_steps_with_a_schedule(dtype: str, rng: Any) -> None:
    start, steps = tree(rng, dtype), list(gradients(rng, dtype, 5))
    rates = [1e-3, 2e-2, 3e-2, 5e-3, 1e-4]
    params = parameters(start)
    optimizer = in_torch.AdamW(params.values(), weight_decay=0.1)
    chain = optax.chain(
        in_jax.clip_by_global_norm(0.7),
        in_jax.adamw(lambda count: jnp.asarray(rates)[count], weight_decay=0.1),
    )
    values = arrays(start)
    state = chain.init(values)
    update = jax.jit(chain.update)
    for rate, grads in zip(rates, steps, strict=True):
        give(params, grads)
        norm = in_torch.clip_grad_norm_(params, 0.7)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        updates, state = update(arrays(grads), state, values)
        values = optax.apply_updates(values, updates)
        assert float(norm) == float(state[0].norm)
    assert_same(params, values)


def test_groups_are_labels_of_optax(rng: Any) -> None:
    start, steps = tree(rng, "float32"), list(gradients(rng, "float32", 3))
    params = parameters(start)
    decayed = {name for name, p in params.items() if p.ndim > 1}
    rest = [p for name, p in params.items() if name not in decayed]
    optimizer = in_torch.AdamW(
        [
            {"params": [params[name] for name in decayed], "weight_decay": 0.3},
            {"params": rest, "weight_decay": 0.0, "lr": 5e-2, "betas": (0.5, 0.6)},
        ],
        lr=1e-2,
    )
    both = {
        "decayed": in_jax.adamw(1e-2, weight_decay=0.3),
        "rest": in_jax.adamw(5e-2, 0.5, 0.6, weight_decay=0.0),
    }
    labels = {name: "decayed" if name in decayed else "rest" for name in start}
    split = optax.multi_transform(both, labels)
    values = arrays(start)
    state = split.init(values)
    for grads in steps:
        give(params, grads)
        optimizer.step()
        updates, state = jax.jit(split.update)(arrays(grads), state, values)
        values = optax.apply_updates(values, updates)
    assert_same(params, values)


def test_gradients_of_another_dtype(rng: Any) -> None:
    """JAX has such gradients of mixed precision; in torch they are a setting of a parameter."""
    start, grads = tree(rng, "float32"), tree(rng, "bfloat16")
    optimizer = in_jax.adamw(1e-2)
    values = arrays(start)
    mixed, _ = optimizer.step(arrays(grads), optimizer.init(values), values)
    wide = {name: g.astype(jnp.float32) for name, g in arrays(grads).items()}
    whole, _ = optimizer.step(wide, optimizer.init(values), values)
    assert_same(mixed, whole)


def test_a_step_count_beyond_every_table(rng: Any) -> None:
    start, grads = tree(rng, "float32"), tree(rng, "float32")
    for count in (1, 2, 1000, 2**24, 2**31 - 1):
        params = parameters(start)
        optimizer = in_torch.AdamW(params.values(), lr=1e-2)
        give(params, grads)
        optimizer.step()
        for p in params.values():  # float32 holds this step but not 2³¹ − 1
            optimizer.state[p]["step"] = torch.tensor(float(count), dtype=torch.float64) - 1
        optimizer.step()
        own = in_jax.adamw(1e-2, weight_decay=1e-2)
        values = arrays(start)
        values, state = own.step(arrays(grads), own.init(values), values)
        # Far from the first step, as after a resumed training run.
        state = state._replace(count=jnp.int32(count - 1))
        values, state = jax.jit(own.step)(arrays(grads), state, values)
        assert int(state.count) == count
        assert_same(params, values)


def test_numbers_below_the_normal_range() -> None:
    """XLA sets them to zero in the sum of optax; a kernel of bridge keeps them."""
    start = {"w": np.full(64, 1e-38, np.float32)}
    grads = {"w": np.full(64, 3e-39, np.float32)}
    params = {"w": torch.nn.Parameter(tensor(start["w"]))}
    params["w"].grad = tensor(grads["w"])
    in_torch.SGD(params.values(), lr=0.7).step()
    assert params["w"][0].item() == np.float32(1e-38) - np.float32(0.7) * np.float32(3e-39)
    optimizer = in_jax.sgd(0.7)
    values = arrays(start)
    updates, _ = jax.jit(optimizer.update)(arrays(grads), optimizer.init(values), values)
    assert_same(params, in_jax.apply_updates(values, updates))
    assert_same(params, jax.jit(optimizer.step)(arrays(grads), optimizer.init(values), values)[0])


@pytest.mark.parametrize("name", ["adamw", "momentum"])
def test_any_order_of_memory(name: str, rng: Any) -> None:
    """Channels last, a transposed weight, a gradient in another order, a part of another array."""
    start, grads = rng.normal(size=(2, 4, 6, 5, 3)).astype(np.float32)
    plain = torch.nn.Parameter(tensor(start))
    plain.grad = tensor(grads)
    PAIRS[name].torch([plain]).step()
    last = tensor(start).contiguous(memory_format=torch.channels_last)
    turned = tensor(start.transpose(1, 0, 3, 2)).permute(1, 0, 3, 2)
    part = torch.zeros(4, 6, 5, 9)[..., 2:5].copy_(tensor(start))
    for memory in (last, turned, part):
        for transposed in (False, True):
            p = torch.nn.Parameter(memory.clone() if memory is not part else part.clone())
            if memory is part:
                p = torch.nn.Parameter(torch.zeros(4, 6, 5, 9)[..., 2:5])
                p.data.copy_(part)
            g = tensor(grads)
            p.grad = g.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0) if transposed else g
            stride, address = p.stride(), p.data_ptr()
            optimizer = PAIRS[name].torch([p])
            optimizer.step()
            assert (p.stride(), p.data_ptr()) == (stride, address)
            assert torch.equal(p, plain)
