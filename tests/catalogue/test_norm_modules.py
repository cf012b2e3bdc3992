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


OTHERS: dict[str, tuple[Any, Any, Any, str]] = {
    "DyT": (lambda: bt.DyT(6), lambda: bn.DyT(6, rngs=nnx.Rngs(0)), (4, 6), "alpha,gamma,beta"),
    "DyT without a bias": (
        lambda: bt.DyT(6, beta=False, init_alpha=2.0),
        lambda: bn.DyT(6, use_bias=False, init_alpha=2.0, rngs=nnx.Rngs(0)),
        (4, 6),
        "alpha,gamma",
    ),
    "PolyNorm": (
        lambda: bt.PolyNorm(1e-3),
        lambda: bn.PolyNorm(epsilon=1e-3),
        (4, 6),
        "weight,bias",
    ),
    "GatedRMSNorm": (
        lambda: bt.GatedRMSNorm(6, eps=1e-3, groups=2, norm_first=False),
        lambda: bn.GatedRMSNorm(6, epsilon=1e-3, groups=2, norm_first=False, rngs=nnx.Rngs(0)),
        (2, 4, 6),
        "weight",
    ),
    "GroupNorm": (
        lambda: bt.GroupNorm(3, 6, 1e-3, activation="gelu", channels_last=True),
        lambda: bn.GroupNorm(6, 3, epsilon=1e-3, activation="gelu", rngs=nnx.Rngs(0)),
        (4, 5, 6),
        "weight,bias",
    ),
}
FLAX_NAMES = {"weight": "scale", "gamma": "scale", "beta": "bias"}


@pytest.mark.parametrize("case", OTHERS)
def test_the_other_norms_in_both_frameworks(case: str, rng: Any) -> None:
    """The same parameters give the same bits, values and gradients, and are saved."""
    make_torch, make_flax, shape, names = OTHERS[case]
    ours, flax = make_torch(), make_flax()
    assert ",".join(ours.state_dict()) == names
    values = {
        name: np.asarray(rng.normal(size=parameter.shape), np.float32)
        for name, parameter in ours.state_dict().items()
    }
    first = nnx.to_pure_dict(nnx.state(flax))
    for name, start in ours.state_dict().items():
        np.testing.assert_array_equal(start.numpy(), first[FLAX_NAMES.get(name, name)])
    ours.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
    nnx.update(flax, {FLAX_NAMES.get(name, name): jnp.asarray(v) for name, v in values.items()})
    gated = case == "GatedRMSNorm"
    numbers = [np.asarray(rng.normal(size=shape), np.float32) for _ in range(1 + gated)]
    cotangent = np.asarray(rng.normal(size=shape), np.float32)
    y = ours(*map(torch.tensor, numbers))
    y.backward(torch.tensor(cotangent))
    graph, state = nnx.split(flax)
    z, pull = jax.vjp(lambda s: nnx.merge(graph, s)(*map(jnp.asarray, numbers)), state)
    np.testing.assert_array_equal(y.detach().numpy(), z)
    gradients = nnx.to_pure_dict(pull(jnp.asarray(cotangent))[0])
    for name, parameter in ours.named_parameters():
        np.testing.assert_array_equal(parameter.grad, gradients[FLAX_NAMES.get(name, name)])
    again = pickle.loads(pickle.dumps(ours))
    assert torch.equal(again(*map(torch.tensor, numbers)), y)


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"bias": False, "eps": 0.1}])
def test_group_norm_of_torch(options: Any) -> None:
    torch.manual_seed(0)
    original, ours = torch.nn.GroupNorm(2, 6, **options), bt.GroupNorm(2, 6, **options)
    for parameter in original.parameters():
        torch.nn.init.normal_(parameter)
    ours.load_state_dict(original.state_dict())
    for shape in ((3, 6), (3, 6, 5), (2, 6, 3, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(ours(x), original(x), rtol=1e-5, atol=1e-5)
    assert repr(ours) == repr(original)
    with pytest.raises(ValueError, match=r"GroupNorm: x has shape \[3, 5\], expected 6 in dim"):
        ours(torch.randn(3, 5))


@pytest.mark.parametrize("options", [{}, {"use_bias": False}, {"dtype": jnp.bfloat16}])
def test_group_norm_of_flax(options: Any, rng: Any) -> None:
    arguments = {"use_fast_variance": False, "rngs": nnx.Rngs(0), **options}
    original = nnx.GroupNorm(6, None, 3, **arguments)
    ours = bn.GroupNorm(6, None, 3, **arguments)
    values = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape)), nnx.state(original))
    for module in (original, ours):
        nnx.update(module, values)
    for shape in ((3, 6), (3, 5, 6), (2, 3, 4, 6)):
        x = jnp.asarray(rng.normal(size=shape), jnp.float32)
        found, expected = ours(x), original(x)
        assert found.dtype == expected.dtype
        near = {"rtol": 0, "atol": 0.1 if "dtype" in options else 1e-5}
        np.testing.assert_allclose(*(np.float32(a) for a in (found, expected)), **near)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: bt.GroupNorm(2, 6, activation="swoosh"), "activation is 'swoosh', expected one"),
        (lambda: bt.GroupNorm(4, 6), "divisible"),
        (lambda: bt.GatedRMSNorm(6, eps=0.0), "GatedRMSNorm: eps is 0.0"),
        (lambda: bt.GatedRMSNorm(6, groups=0), "groups is 0"),
        (lambda: bt.DyT(-1), "DyT: hidden_size is -1"),
        (lambda: bt.DyT(6)(torch.ones(2, 5)), r"x has shape \[2, 5\], expected 6 in the last"),
        (lambda: bt.PolyNorm(-1.0), "PolyNorm: eps is -1.0"),
        (lambda: bn.GroupNorm(6, 4, rngs=nnx.Rngs(0)), "does not divide"),
        (
            lambda: bn.GroupNorm(6, 2, reduction_axes=(-1,), rngs=nnx.Rngs(0))(jnp.ones((2, 3, 6))),
            r"reduction_axes is \(-1,\), expected None or all",
        ),
        (
            lambda: bn.GroupNorm(6, 2, rngs=nnx.Rngs(0))(jnp.ones((2, 6, 3))),
            r"x has shape \[2, 6, 3\], expected 6 in the last",
        ),
        (lambda: bn.PolyNorm(epsilon=0.0), "PolyNorm: epsilon is 0.0"),
        (
            lambda: bn.GatedRMSNorm(6, rngs=nnx.Rngs(0))(jnp.ones((2, 6)), jnp.ones((2, 5))),
            r"gate has shape \[2, 5\]",
        ),
    ],
)
def test_arguments_that_do_not_fit(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
