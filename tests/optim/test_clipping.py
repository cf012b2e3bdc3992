"""Clipping by the global norm: the tree, the order of names, bad input."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from bridge.catalogue.optimizers import squares
from bridge.jax import optim as in_jax
from bridge.jax._adapter import arrays as jax_arrays
from bridge.torch import optim as in_torch
from bridge.torch._adapter import arrays as torch_arrays
from tests.frameworks import DTYPES
from tests.optim.steps import arrays, assert_same, give, parameters, tree


def row_sum(row: Any) -> Any:
    """The tree of docs/numerics.md in NumPy."""
    if row.size == 0:
        return np.array(-0.0, row.dtype)
    chunks = []
    for start in range(0, row.size, 1024):
        e = np.full(1024, -0.0, row.dtype)
        part = row[start : start + 1024]
        e[: part.size] = part
        a = (e[:256] + e[256:512]) + (e[512:768] + e[768:])
        while a.size > 1:
            a = a[: a.size // 2] + a[a.size // 2 :]
        chunks.append(a[0])
    while len(chunks) > 1:
        pairs = [chunks[i] + chunks[i + 1] for i in range(0, len(chunks) - 1, 2)]
        chunks = pairs + chunks[len(pairs) * 2 :]
    return chunks[0]


def in_order(grads: dict[str, Any]) -> Any:
    sums = [row_sum(grads[name].ravel() * grads[name].ravel()) for name in sorted(grads)]
    return np.sqrt(row_sum(np.array(sums)))


def many(rng: Any, count: int) -> dict[str, Any]:
    """Many arrays of very different sizes, so that another order gives other bits."""
    few = [tuple(rng.integers(1, 40, size=rng.integers(1, 4))) for _ in range(12)]  # to compile
    shapes = [few[i] for i in rng.integers(12, size=count)]
    return {
        f"layers.{i}.weight": (rng.normal(size=s) * 2.0 ** rng.integers(-3, 4)).astype(np.float32)
        for i, s in enumerate(shapes)
    }


@pytest.mark.parametrize("count", [1, 2, 37, 300])
def test_the_norm_follows_the_tree(count: int, rng: Any) -> None:
    grads = many(rng, count)
    params = parameters(grads)
    give(params, grads)
    expected = in_order(grads)
    assert float(in_torch.clip_grad_norm_(params, 1.0)) == expected
    clip = in_jax.clip_by_global_norm(1.0)
    scaled, state = jax.jit(clip.update)(arrays(grads), clip.init(arrays(grads)))
    assert float(state.norm) == expected
    assert_same({name: p.grad for name, p in params.items()}, scaled)


@pytest.mark.parametrize("size", [(1 << 21) - 1, 1 << 21, (21 << 17) + 1234, 23 << 17])
def test_the_parts_of_a_long_sum_are_subtrees(size: int, rng: Any) -> None:
    in_jax_too = jax.jit(partial(squares, jax_arrays))
    for _ in range(8):
        scales = np.repeat(2.0 ** rng.normal(size=size // 4096 + 1), 4096)[:size]
        values = (rng.normal(size=size) * scales).astype(np.float32)
        expected = row_sum(values * values)
        assert float(squares(torch_arrays, torch.from_numpy(values))) == expected
        assert float(in_jax_too(values)[0]) == expected


def test_the_order_of_names_and_not_of_arrays(rng: Any) -> None:
    """Pairs and a dict agree; tensors without names keep their order."""
    grads = many(rng, 60)
    expected = in_order(grads)
    norms, names = set(), list(grads)
    for seed in range(12):
        shuffled = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
        params = parameters({name: grads[name] for name in shuffled})
        give(params, grads)
        assert float(in_torch.clip_grad_norm_(params.items(), 1e9)) == expected
        assert float(in_torch.clip_grad_norm_(params, 1e9)) == expected
        norms.add(float(in_torch.clip_grad_norm_(params.values(), 1e9)))
        sums = [row_sum(grads[name].ravel() ** 2) for name in shuffled]
        assert float(in_torch.clip_grad_norm_(params.values(), 1e9)) == np.sqrt(
            row_sum(np.array(sums))
        )
    assert len(norms) > 1


def test_the_order_of_names_in_nested_trees(rng: Any) -> None:
    """Paths are sorted as text, layer 10 before layer 2, and not as JAX flattens the tree."""
    clip = in_jax.clip_by_global_norm(1e9)
    update = jax.jit(clip.update)
    differing = 0
    for _ in range(12):
        layers = [rng.normal(size=(3, 5)).astype(np.float32) * 2.0**i for i in rng.normal(size=60)]
        layers = [layer.astype(np.float32) for layer in layers]
        expected = in_order({f"layers.{i}.weight": layer for i, layer in enumerate(layers)})
        nested = {"layers": [{"weight": jnp.asarray(layer)} for layer in layers]}
        assert float(update(nested, clip.init(nested))[1].norm) == expected
        as_given = np.sqrt(row_sum(np.array([row_sum(g.ravel() ** 2) for g in layers])))
        differing += as_given != expected
    assert differing


@pytest.mark.parametrize("limit", [0.0, 0.1, 1e6])
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_frameworks_in_every_dtype(dtype: str, limit: float, rng: Any) -> None:
    grads = tree(rng, dtype)
    params = parameters(grads)
    give(params, grads)
    norm = in_torch.clip_grad_norm_(params, limit)
    with jax.enable_x64(dtype == "float64"):
        clip = in_jax.clip_by_global_norm(limit)
        scaled, state = clip.update(arrays(grads), clip.init(arrays(grads)))
        traced = jax.jit(lambda most: in_jax.clip_by_global_norm(most).update(arrays(grads), state))
        assert float(norm) == float(state.norm)
        assert_same({name: p.grad for name, p in params.items()}, scaled)
        assert_same(scaled, traced(limit)[0])


def test_what_needs_no_scaling_keeps_every_bit(rng: Any) -> None:
    grads = tree(rng, "float32")
    params = parameters(grads)
    give(params, grads)
    in_torch.clip_grad_norm_(params, 1e6)
    assert_same({name: p.grad for name, p in params.items()}, arrays(grads))


def test_zero_infinite_and_nan() -> None:
    p = torch.nn.Parameter(torch.zeros(3))
    for values, limit, norm, result in (
        ([0.0, 0.0, 0.0], 0.0, 0.0, [0.0, 0.0, 0.0]),
        ([np.inf, 1.0, 0.0], 1.0, np.inf, [np.nan, 0.0, 0.0]),
        ([np.nan, 1.0, 0.0], 1.0, np.nan, [np.nan, np.nan, np.nan]),
    ):
        p.grad = torch.tensor(values)
        found = in_torch.clip_grad_norm_(p, limit)
        assert np.array_equal(float(found), norm, equal_nan=True)
        assert np.array_equal(p.grad.numpy(), result, equal_nan=True)
        clip = in_jax.clip_by_global_norm(limit)
        scaled, state = clip.update({"p": jnp.asarray(values)}, clip.init({"p": jnp.zeros(3)}))
        assert np.array_equal(state.norm, norm, equal_nan=True)
        assert np.array_equal(scaled["p"], result, equal_nan=True)
    p.grad = torch.tensor([np.inf, 1.0, 0.0])
    with pytest.raises(RuntimeError, match="norm of the gradients is inf, expected a number"):
        in_torch.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)
    assert p.grad[1] == 1.0


def test_missing_gradients_are_left_out() -> None:
    a, b = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    b.grad = torch.tensor([3.0, 4.0])
    assert float(in_torch.clip_grad_norm_({"a": a, "b": b}, 10.0)) == 5.0
    assert a.grad is None
    assert float(in_torch.clip_grad_norm_([a], 10.0)) == 0.0
    clip = in_jax.clip_by_global_norm(10.0)
    assert clip.update({}, clip.init({}))[0] == {}


def test_bad_input_is_named() -> None:
    p = torch.nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    for arguments, error, words in (
        (([p], -1.0), ValueError, "max_norm is -1.0, expected a number from 0 on"),
        (([p], 1e40), ValueError, r"max_norm is 1e\+40, expected a number up to 3.4e\+38"),
        (([p], 1.0, 1.0), ValueError, "norm_type is 1.0, expected 2"),
        (([("w", p), p], 1.0), TypeError, "parameters has a member of type Parameter"),
        ((7, 1.0), TypeError, "parameters has type int"),
    ):
        with pytest.raises(error, match=words):
            in_torch.clip_grad_norm_(*arguments)
    c = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
    c.grad = torch.ones_like(c)
    with pytest.raises(TypeError, match="gradient of w has dtype complex64"):
        in_torch.clip_grad_norm_({"w": c, "z": p}, 0.1)
    assert p.grad.tolist() == [1.0, 1.0]
    for negative in (-1.0, jnp.array(-1.0), np.float32(-1.0)):
        with pytest.raises(ValueError, match=r"max_norm is -1\.0, expected a number from 0 on"):
            in_jax.clip_by_global_norm(negative)
    clip = in_jax.clip_by_global_norm(jnp.ones(2))
    with pytest.raises(ValueError, match=r"max_norm has shape \[2\]"):
        clip.update({"w": jnp.ones(2)}, clip.init({"w": jnp.ones(2)}))
    clip = in_jax.clip_by_global_norm(1.0)
    with pytest.raises(TypeError, match="w has a gradient of int32"):
        clip.update({"w": jnp.ones(2, int)}, None)
