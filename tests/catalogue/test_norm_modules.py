"""Modules of the norms and of the gated unit: the originals' parameters, nearly their results."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import bridge.torch as bt
from bridge.jax import nnx as bn


@pytest.mark.parametrize("eps", [None, 1e-3])
@pytest.mark.parametrize("name", ["RMSNorm", "LayerNorm"])
def test_of_torch(name: str, eps: float | None) -> None:
    torch.manual_seed(0)
    options = {} if eps is None else {"eps": eps}
    original, ours = (getattr(m, name)(33, **options) for m in (torch.nn, bt))
    for parameter in original.parameters():
        torch.nn.init.normal_(parameter)
    ours.load_state_dict(original.state_dict())
    original.load_state_dict(ours.state_dict())
    x, residual = torch.randn(2, 5, 33), torch.randn(2, 5, 33)
    torch.testing.assert_close(ours(x), original(x), rtol=1e-5, atol=1e-5)
    y, h = ours(x, residual)
    assert torch.equal(h, x + residual)
    assert torch.equal(y, ours(h))
    assert torch.equal(pickle.loads(pickle.dumps(ours))(x), ours(x))
    assert repr(ours) == repr(original)
    assert list(type(ours)((33,), elementwise_affine=False).parameters()) == []
    with pytest.raises(ValueError, match=rf"{name}: normalized_shape is \[5, 33\]"):
        type(ours)((5, 33))
    with pytest.raises(ValueError, match=r"x has shape \[2, 7\], expected 33 in the last"):
        ours(torch.randn(2, 7))


def test_layer_norm_without_a_bias() -> None:
    ours = bt.LayerNorm(8, bias=False)
    assert ours.bias is None
    x = torch.randn(3, 8)
    torch.testing.assert_close(ours(x), torch.nn.functional.layer_norm(x, (8,)))


@pytest.mark.parametrize("name", ["RMSNorm", "LayerNorm"])
def test_a_rule_of_promotion_of_ones_own(name: str) -> None:
    def halved(arrays: Any, *, dtype: Any = None) -> Any:
        return tuple(None if a is None else a.astype(jnp.bfloat16) for a in arrays)

    x = jnp.ones((2, 8))
    original, ours = (
        getattr(m, name)(8, promote_dtype=halved, rngs=nnx.Rngs(0)) for m in (nnx, bn)
    )
    assert ours(x).dtype == original(x).dtype == jnp.bfloat16


def test_swiglu() -> None:
    x = torch.randn(3, 16)
    assert torch.equal(bt.SwiGLU()(x), bt.swiglu(x))
    limited = bt.SwiGLU(limit=0.5, interleaved=True)
    assert torch.equal(limited(x), bt.swiglu(x, limit=0.5, interleaved=True))
    assert "limit=0.5" in repr(limited)
    assert torch.equal(bt.SwiGLU()(x, x, x[:, 0]), bt.swiglu(x, x, weight=x[:, 0]))


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
@pytest.mark.parametrize("name", ["RMSNorm", "LayerNorm"])
def test_of_flax(name: str, dtype: Any, rng: Any) -> None:
    options: dict[str, Any] = {"epsilon": 1e-3, "dtype": dtype, "use_fast_variance": False}
    original, ours = (getattr(m, name)(33, **options, rngs=nnx.Rngs(0)) for m in (nnx, bn))
    values = jax.tree.map(
        lambda p: jnp.asarray(rng.normal(size=p.shape), p.dtype), nnx.state(original)
    )
    for module in (original, ours):
        nnx.update(module, values)
    x, residual = (jnp.asarray(rng.normal(size=(2, 5, 33)), jnp.float32) for _ in range(2))
    found, expected = nnx.jit(lambda m, x: m(x))(ours, x), original(x)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(
        found.astype(jnp.float32),
        expected.astype(jnp.float32),
        rtol=0,
        atol=1e-5 if dtype is None else 0.1,
    )
    y, h = ours(x, residual=residual)
    np.testing.assert_array_equal(y, ours(h))
    loss = nnx.grad(lambda m: m(x).astype(jnp.float32).sum())(ours)
    assert set(loss) == set(values)


@pytest.mark.parametrize(
    ("options", "call", "words"),
    [
        ({"axis_name": "i"}, {}, "RMSNorm: axis_name is 'i', expected None"),
        (
            {"reduction_axes": (0, 1)},
            {},
            r"reduction_axes is \(0, 1\), expected the last",
        ),
        ({}, {"mask": 1}, "RMSNorm: mask is given, expected None"),
    ],
)
def test_what_flax_has_and_this_has_not(options: Any, call: Any, words: str) -> None:
    module = bn.RMSNorm(4, **options, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=words):
        module(jnp.ones((2, 4)), **call)
    assert bn.RMSNorm(4, use_scale=False, rngs=nnx.Rngs(0))(jnp.ones((2, 4))).shape == (2, 4)
