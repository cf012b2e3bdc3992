"""The contexts `invariant` of both frameworks: equal bits, and functions that cross over."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import bridge.jax as bj
import bridge.torch as bt

PAIRS: dict[str, tuple[Any, Any]] = {
    "softmax": (lambda x: x.softmax(-1), jax.nn.softmax),
    "softmax of the first": (lambda x: x.softmax(0), lambda x: jax.nn.softmax(x, 0)),
    "log_softmax": (lambda x: F.log_softmax(x, 1), jax.nn.log_softmax),
    "logsumexp": (lambda x: x.logsumexp(-1), lambda x: jax.nn.logsumexp(x, -1)),
    "gelu": (F.gelu, lambda x: jax.nn.gelu(x, approximate=False)),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), jax.nn.gelu),
    "silu": (F.silu, jax.nn.silu),
    "standardize": (lambda x: F.layer_norm(x, (1037,)), jax.nn.standardize),
    "mean": (lambda x: x.mean(-1), lambda x: jnp.mean(x, -1)),
    "mean of all": (torch.mean, jnp.mean),
}


def as_numbers(array: Any) -> Any:
    return np.asarray(array.float() if isinstance(array, torch.Tensor) else array, np.float32)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_both_frameworks_compute_the_same(pair: str, dtype: str) -> None:
    in_torch, in_jax = PAIRS[pair]
    drawn, cotangents = np.random.default_rng(0).normal(size=(2, 21, 1037)).astype(np.float32)
    x = torch.tensor(3 * drawn).to(getattr(torch, dtype)).requires_grad_()
    rows = jnp.asarray(3 * drawn).astype(dtype)
    with bt.invariant(), bj.invariant():
        y = in_torch(x)
        found, pull = jax.vjp(in_jax, rows)
        assert np.array_equal(as_numbers(y.detach()), as_numbers(found))
        g = cotangents.ravel()[: y.numel()].reshape(y.shape)
        (gradient,) = torch.autograd.grad(y, x, torch.tensor(g).to(y.dtype))
        (of_jax,) = pull(jnp.asarray(g).astype(found.dtype))
        assert np.array_equal(as_numbers(gradient), as_numbers(of_jax))


def test_a_function_of_the_other_framework_sees_its_own_context() -> None:
    drawn = 3 * np.random.default_rng(1).normal(size=(50, 33)).astype(np.float32)
    x, rows = torch.tensor(drawn), jnp.asarray(drawn)
    by_bridge = bt.scaled_softmax(x).numpy()
    of_jax, of_torch = (
        bt.from_jax(lambda x: jax.nn.softmax(x)),
        bj.from_torch(lambda x: x.softmax(-1)),
    )
    for function, argument, own, other in (
        (of_jax, x, bj.invariant, bt.invariant),
        (of_torch, rows, bt.invariant, bj.invariant),
    ):
        for _ in range(2):
            assert not np.array_equal(as_numbers(function(argument)), by_bridge)
            with own():
                assert np.array_equal(as_numbers(function(argument)), by_bridge)
            with other():
                assert not np.array_equal(as_numbers(function(argument)), by_bridge)
