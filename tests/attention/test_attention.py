"""Attention has the bits of the other framework, and the values of float64 references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import bridge.jax
import bridge.torch
from tests.attention.reference import (
    DTYPES,
    SMOOTH,
    close,
    drawn,
    everything_jax,
    everything_torch,
    reference,
    same,
    tensors_of,
)

# Sizes of `drawn`, options, and the shape of a mask that is drawn, or None.
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    "plain": ({}, {}, None),
    "one head": ({"heads": 1, "key_heads": 1}, {"scale": 0.7}, None),
    "one key head": ({"heads": 5, "key_heads": 1}, {}, None),
    "no batch": ({"batch": (), "heads": 3, "key_heads": 3}, {"causal": True}, None),
    "two batches": ({"batch": (2, 3)}, {"causal": True}, None),
    "causal": ({"queries": 50}, {"causal": True}, None),
    "causal with a cache": ({"queries": 7}, {"causal": True}, None),
    "more queries than keys": ({"queries": 61}, {"causal": True}, None),
    "window": ({}, {"causal": True, "window": 5}, None),
    "window of one": ({"queries": 60}, {"causal": True, "window": 1}, None),
    "padding": ({}, {}, (2, 1, 1, 50)),
    "mask of queries": ({}, {}, (37, 50)),
    "mask of heads": ({}, {}, (4, 1, 50)),
    "whole mask": ({}, {}, (2, 4, 37, 50)),
    "mask of rows": ({}, {}, (1, 4, 37, 1)),
    "mask of one head": ({"heads": 2, "key_heads": 2}, {}, (2, 1, 37, 50)),
    "softcap": ({}, {"softcap": 1.5, "scale": 0.9}, None),
    "sink": ({"has_sink": True}, {}, None),
    "all": (
        {"has_sink": True},
        {"causal": True, "window": 9, "softcap": 2.0, "scale": -0.4},
        (2, 1, 37, 50),
    ),
    "two blocks": ({"batch": (), "queries": 300, "keys": 290, "d": 300}, {"causal": True}, None),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_same_bits_and_reference(form: str, dtype: str, rng: np.random.Generator) -> None:
    import jax

    sizes, options, mask_shape = FORMS[form]
    tensors = tensors_of(drawn(rng, **sizes), dtype)
    mask = None if mask_shape is None else torch.tensor(rng.random(mask_shape) < 0.4)
    ours = everything_torch(tensors, mask=mask, **options)
    with jax.enable_x64(dtype == "float64"):
        theirs = everything_jax(tensors, mask=mask, **options)
        for name, value in ours.items():
            same(value, theirs[name])
    exact = {name: x.double().numpy() for name, x in tensors.items()}
    expected = reference(**exact, mask=mask, **options)
    for name, value in ours.items():
        close(value, expected[name], dtype, 1.0 if name == "y" else 3.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_error_of_the_frameworks_own(causal: bool, dtype: str, rng: np.random.Generator) -> None:
    """The errors against float64 are at most twice those of torch's own attention."""
    sizes = {"batch": (2,), "heads": 3, "key_heads": 3, "queries": 128, "keys": 128, "d": 64}
    tensors = tensors_of(drawn(rng, **sizes, d_v=64), dtype)
    exact = {name: x.double().numpy() for name, x in tensors.items()}
    expected = reference(**exact, causal=causal)
    ours = everything_torch(tensors, causal=causal)
    smooth = [tensors[name].requires_grad_() for name in ("q", "k", "v")]
    y = scaled_dot_product_attention(*smooth, is_causal=causal)
    found = [y.detach(), *torch.autograd.grad(y, smooth, tensors["g"])]
    for name, theirs in zip(("y", "q", "k", "v"), found, strict=True):
        own, other = (np.abs(x.double().numpy() - expected[name]) for x in (ours[name], theirs))
        assert own.mean() <= 2 * other.mean() + 1e-18


def test_repeated_key_heads_are_grouped_queries(rng: np.random.Generator) -> None:
    tensors = tensors_of(drawn(rng, heads=6, key_heads=2), "float32")
    wide = {n: x.repeat_interleave(3, 1) if n in ("k", "v") else x for n, x in tensors.items()}
    grouped, repeated = everything_torch(tensors, causal=True), everything_torch(wide, causal=True)
    assert torch.equal(grouped["y"], repeated["y"])
    assert torch.equal(grouped["q"], repeated["q"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_do_not_matter(dtype: str, rng: np.random.Generator) -> None:
    tensors = tensors_of(drawn(rng), dtype)
    laid = {n: x.transpose(1, 2).contiguous().transpose(1, 2) for n, x in tensors.items()}
    mask = torch.tensor(rng.random((2, 50)) < 0.4)[:, None, None]
    for name, value in everything_torch(tensors, mask=mask).items():
        same(value, everything_torch(laid, mask=mask.expand(2, 4, 37, 50))[name])


def test_masks_of_uint8(rng: np.random.Generator) -> None:
    tensors = tensors_of(drawn(rng), "float32")
    mask = torch.tensor(rng.integers(0, 3, (37, 50)), dtype=torch.uint8)
    for options in ({}, {"causal": True, "window": 4}):
        ours = everything_torch(tensors, mask=mask, **options)
        for name, value in everything_torch(tensors, mask=mask != 0, **options).items():
            same(ours[name], value)
        theirs = everything_jax(tensors, mask=mask, **options)
        for name, value in ours.items():
            same(value, theirs[name])


@pytest.mark.parametrize("has_sink", [False, True])
def test_queries_without_keys_are_zero(has_sink: bool, rng: np.random.Generator) -> None:
    sizes = {"queries": 9, "keys": 4, "has_sink": has_sink}
    tensors = tensors_of(drawn(rng, **sizes), "float32")
    found = everything_torch(tensors, causal=True)
    for name in ("y", "q"):
        assert not found[name][..., :5, :].any()
        assert found[name][..., 5:, :].all(-1).all() or name == "q"
    hidden = everything_torch(tensors, mask=torch.ones(1, 1, 1, 1, dtype=torch.bool))
    for name in ("y", *SMOOTH):
        if name in hidden:
            assert not hidden[name].any()


@pytest.mark.parametrize(
    "sizes",
    [
        {"batch": (0,)},
        {"queries": 0},
        {"keys": 0},
        {"queries": 0, "keys": 0},
        {"d": 0},
        {"d_v": 0},
        {"heads": 0, "key_heads": 2},
        {"heads": 0, "key_heads": 0},
    ],
)
@pytest.mark.parametrize("has_sink", [False, True])
def test_zero_sizes(sizes: Any, has_sink: bool, rng: np.random.Generator) -> None:
    tensors = tensors_of(drawn(rng, **sizes, has_sink=has_sink), "float32")
    for causal in (False, True):
        ours, theirs = (run(tensors, causal=causal) for run in (everything_torch, everything_jax))
        expected = reference(**{n: x.double().numpy() for n, x in tensors.items()}, causal=causal)
        for name, value in ours.items():
            same(value, theirs[name])
            close(value, expected[name], "float32")


def test_a_number_is_the_sink_of_every_head(rng: np.random.Generator) -> None:
    tensors = tensors_of(drawn(rng), "float32")
    q, k, v = (tensors[name] for name in ("q", "k", "v"))
    ours = bridge.torch.attention(q, k, v, sink=0.5)
    assert torch.equal(ours, bridge.torch.attention(q, k, v, sink=torch.full((4,), 0.5)))
    arrays = [bridge.to_jax(x) for x in (q, k, v)]
    same(ours, bridge.jax.attention(*arrays, sink=0.5))


def test_only_wanted_gradients(rng: np.random.Generator) -> None:
    tensors = tensors_of(drawn(rng, has_sink=True), "float32")
    whole = everything_torch(tensors, causal=True)
    for name in SMOOTH:
        own = dict(tensors)
        own[name] = own[name].detach().clone().requires_grad_()
        y = bridge.torch.attention(own["q"], own["k"], own["v"], sink=own["sink"], causal=True)
        (gradient,) = torch.autograd.grad(y, own[name], tensors["g"])
        assert torch.equal(gradient, whole[name])


@pytest.mark.parametrize("queries", [5, 600])
def test_the_result_may_be_written_into(queries: int, rng: np.random.Generator) -> None:
    sizes = {"batch": (), "queries": queries, "keys": 9}
    tensors = tensors_of(drawn(rng, **sizes), "float32")
    smooth = [tensors[name].requires_grad_() for name in ("q", "k", "v")]
    y = bridge.torch.attention(*smooth)
    (expected,) = torch.autograd.grad((2 * y).sum(), smooth[0], retain_graph=True)
    assert torch.equal(torch.autograd.grad(y.mul_(2).sum(), smooth[0])[0], expected)


@pytest.mark.parametrize("window", [2**31, 2**63, 10**30])
def test_a_window_without_end_hides_nothing(window: int, rng: np.random.Generator) -> None:
    tensors = tensors_of(drawn(rng), "float32")
    expected = everything_torch(tensors, causal=True)
    for run in (everything_torch, everything_jax):
        for name, value in run(tensors, causal=True, window=window).items():
            same(expected[name], value)
