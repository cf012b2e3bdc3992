"""Convolutions with the arguments, layers and transforms of JAX."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import flax.linen as nn
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge.jax as bj
import bridge.torch as bt
from tests.convolution.cases import same

NHWC = ("NHWC", "HWIO", "NHWC")
HIGHEST = jax.lax.Precision.HIGHEST

# Shapes of lhs and rhs, and keywords.
CASES: list[Any] = [
    ((2, 6, 9, 8), (12, 6, 3, 2), {"window_strides": (2, 1), "padding": "SAME"}),
    (
        (2, 6, 9, 8),
        (12, 3, 3, 2),
        {"window_strides": (2, 1), "padding": "VALID", "feature_group_count": 2},
    ),
    (
        (2, 9, 8, 6),
        (3, 2, 1, 6),
        {
            "window_strides": (1, 1),
            "padding": [(1, 2), (-1, 3)],
            "rhs_dilation": (2, 1),
            "feature_group_count": 6,
            "dimension_numbers": NHWC,
        },
    ),
    (
        (2, 9, 8, 6),
        (3, 2, 3, 8),
        {
            "window_strides": (1, 1),
            "padding": [(1, 2), (-1, 3)],
            "lhs_dilation": (2, 3),
            "feature_group_count": 2,
            "dimension_numbers": NHWC,
        },
    ),
    (
        (2, 9, 8, 6),
        (3, 2, 6, 8),
        {
            "window_strides": (1, 2),
            "padding": [(1, 2), (0, 3)],
            "lhs_dilation": (2, 3),
            "rhs_dilation": (1, 2),
            "dimension_numbers": NHWC,
        },
    ),
    (
        (2, 9, 6),
        (3, 6, 8),
        {
            "window_strides": (2,),
            "padding": "SAME_LOWER",
            "dimension_numbers": ("NWC", "WIO", "NWC"),
        },
    ),
    (
        (1, 4, 5, 6, 3),
        (2, 2, 3, 3, 4),
        {
            "window_strides": (1, 2, 1),
            "padding": "SAME",
            "dimension_numbers": ("NHWDC", "HWDIO", "NHWDC"),
        },
    ),
    (
        (9, 2, 8, 6),
        (3, 8, 2, 6),
        {
            "window_strides": (1, 2),
            "padding": "SAME",
            "dimension_numbers": ("HNWC", "HOWI", "CWHN"),
        },
    ),
    ((2, 2, 3), (12, 2, 8), {"window_strides": (1,), "padding": "VALID"}),
]


def drawn(rng: np.random.Generator, *shapes: Any, dtype: Any = None) -> list[Any]:
    return [jnp.asarray(rng.standard_normal(s), dtype) for s in shapes]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_results_of_jax(number: int, rng: np.random.Generator) -> None:
    """Values, gradients and tangents are those of jax.lax to rounding; jit keeps the bits."""
    x, w, keywords = CASES[number]
    with jax.enable_x64(True):
        x, w, u, v = drawn(rng, x, w, x, w)
        ours, theirs = (
            partial(f, **keywords, **more)
            for f, more in (
                (bj.conv_general_dilated, {}),
                (jax.lax.conv_general_dilated, {"precision": HIGHEST}),
            )
        )
        y, pull = jax.vjp(ours, x, w)
        z, their_pull = jax.vjp(theirs, x, w)
        (g,) = drawn(rng, y.shape)
        found = y, *pull(g), jax.jvp(ours, (x, w), (u, v))[1]
        expected = z, *their_pull(g), jax.jvp(theirs, (x, w), (u, v))[1]
        for one, two in zip(found, expected, strict=True):
            assert one.shape == two.shape
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-12)
        same(jax.jit(ours)(x, w), y)


@pytest.mark.parametrize(
    "how",
    list(
        itertools.product(
            (False, True),
            (False, True),
            ("SAME", "VALID", ((1, 2), (0, 1))),
            ((1, 1), (2, 3)),
            (None, (2, 1)),
        )
    ),
    ids=str,
)
def test_conv_transpose_of_jax(how: Any, rng: np.random.Generator) -> None:
    is_transposed, is_consistent, padding, strides, dilation = how
    kernel = (3, 2, 4, 3) if is_transposed else (3, 2, 3, 4)
    keywords = {
        "strides": strides,
        "padding": padding,
        "rhs_dilation": dilation,
        "transpose_kernel": is_transposed,
        "use_consistent_padding": is_consistent,
    }
    with jax.enable_x64(True):
        x, w = drawn(rng, (2, 5, 6, 3), kernel)
        ours = bj.conv_transpose(x, w, **keywords)
        theirs = jax.lax.conv_transpose(x, w, precision=HIGHEST, **keywords)
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def test_conv_transpose_is_torchs(rng: np.random.Generator) -> None:
    """`transpose_kernel` gives it the bits of torch's function, channels last or first."""
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 7, 5, 6), (7, 4, 3, 2)))
    ours = bt.conv_transpose2d(torch.tensor(x), torch.tensor(w), stride=2, padding=(1, 0))
    theirs = bj.conv_transpose(
        jnp.asarray(x).transpose(0, 2, 3, 1),
        jnp.asarray(w).transpose(2, 3, 1, 0),
        (2, 2),
        ((1, 1), (0, 0)),
        transpose_kernel=True,
        use_consistent_padding=True,
    )
    same(ours, theirs.transpose(0, 3, 1, 2))


def test_layers(rng: np.random.Generator) -> None:
    (x,) = drawn(rng, (2, 8, 8, 4), dtype="float32")
    for keywords in ({"strides": 2}, {"feature_group_count": 2}, {"padding": "CIRCULAR"}):
        layers = [
            nnx.Conv(4, 6, (3, 3), rngs=nnx.Rngs(0), **more, **keywords)
            for more in ({}, {"conv_general_dilated": bj.conv_general_dilated})
        ]
        theirs, ours = (layer(x) for layer in layers)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
        w, bias = (each[...] for each in (layers[1].kernel, layers[1].bias))
        if keywords == {"strides": 2}:
            plain = bj.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=NHWC) + bias
            same(ours, plain)
    module = nn.Conv(6, (3, 3), conv_general_dilated=bj.conv_general_dilated)
    variables = module.init(jax.random.key(0), x)
    np.testing.assert_allclose(
        module.apply(variables, x),
        nn.Conv(6, (3, 3)).apply(variables, x),
        rtol=1e-5,
        atol=1e-5,
    )


def test_transforms(rng: np.random.Generator) -> None:
    x, w = drawn(rng, (3, 2, 4, 6, 5), (3, 4, 3, 3), dtype="float32")
    conv = partial(bj.conv_general_dilated, window_strides=(1, 2), padding="SAME")
    whole = jnp.stack([conv(each, w) for each in x])
    same(jax.lax.scan(lambda c, x: (c, conv(x, w)), 0, x)[1], whole)
    same(jax.vmap(conv, (0, None))(x, w), whole)
    same(jax.lax.map(lambda x: conv(x, w), x), whole)
    same(jax.checkpoint(conv)(x[0], w), whole[0])  # type: ignore[attr-defined]
    wide = conv(x[0].astype("bfloat16"), w.astype("bfloat16"), preferred_element_type="float32")
    assert wide.dtype == jnp.float32


def test_exported(rng: np.random.Generator) -> None:
    x, w = drawn(rng, (2, 4, 6, 5), (3, 4, 3, 3), dtype="float32")
    conv = jax.jit(partial(bj.conv_general_dilated, window_strides=(1, 1), padding=[(1, 1)] * 2))
    checks = [jax.export.DisabledSafetyCheck.custom_call("bridge_convolution")]
    made = jax.export.export(conv, disabled_checks=checks)(x, w)
    same(jax.export.deserialize(made.serialize()).call(x, w), conv(x, w))


def test_lowered_for_cuda(rng: np.random.Generator) -> None:
    """XLA allocates the workspace: for each tile the levels of the tree, here 2 of 64 KiB."""
    x, w = drawn(rng, (2, 70, 6, 5), (3, 70, 3, 3), dtype="bfloat16")
    conv = jax.jit(partial(bj.conv_general_dilated, window_strides=(1, 1), padding="SAME"))
    checks = [jax.export.DisabledSafetyCheck.custom_call("bridge_convolution")]
    made = jax.export.export(conv, platforms=["cuda"], disabled_checks=checks)(x, w)
    assert "tensor<131072xui8>" in made.mlir_module()


WRONG: list[Any] = [
    ((2, 3, 4, 4), (2, 3, 2, 2), {"batch_group_count": 2}, "batch_group_count is 2, expected 1"),
    ((2, 3, 4, 4), (2, 3, 2, 2), {"padding": "SAM"}, "padding is 'SAM', expected 'SAME'"),
    ((2, 3, 4, 4), (2, 3, 2, 2), {"padding": [(1, 1)]}, "padding is [(1, 1)], expected"),
    ((2, 3, 4, 4), (2, 3, 2, 2), {"window_strides": (0, 1)}, "window_strides is (0, 1), expected"),
    ((2, 3, 4, 4), (2, 3, 2, 2), {"window_strides": (1,)}, "window_strides is (1,), expected 2"),
    ((2, 3, 4, 4), (2, 2, 2, 2), {}, "lhs has 3 channels in shape [2, 3, 4, 4], expected 2"),
    ((2, 3, 4, 4), (2, 3, 2), {}, "expected 3 to 5 dimensions, the same number in both"),
    ((2, 3), (2, 3), {"window_strides": ()}, "expected 3 to 5 dimensions"),
    ((2, 3, 4, 4), (2, 3, 2, 2), {"dimension_numbers": ("NHWW", "HWIO", "NHWC")}, "dimension_nu"),
    ((2, 4, 4, 4), (3, 2, 2, 2), {"feature_group_count": 2}, "expected a divisor of 3"),
    ((2, 3, 4, 4), (2, 3, 2, 2), {"padding": [(-3, -3), (1, 1)]}, "expected to take away no more"),
    ((2, 3, 4, 4), (2, 3, 2, 2), {"lhs_dilation": (2, 1)}, "with lhs_dilation [2, 1], expected"),
    ((2, 3, 4, 4), (2, 3, 2, 2), {"out_sharding": 1}, "out_sharding is not None"),
    ((2, 3, 4, 4), (2, 3, 2, 2), {"bits": "fast"}, "bits is 'fast', expected one of"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_arguments(number: int) -> None:
    x, w, keywords, words = WRONG[number]
    with pytest.raises(ValueError, match=r"^conv_general_dilated: ") as caught:
        bj.conv_general_dilated(
            jnp.ones(x), jnp.ones(w), **{"window_strides": (1, 1), "padding": "SAME", **keywords}
        )
    assert words in str(caught.value)


def test_other_wrong_arguments() -> None:
    x, w = jnp.ones((2, 3, 4, 4)), jnp.ones((2, 3, 2, 2))
    with pytest.raises(TypeError, match="conv_general_dilated: lhs has dtype int32"):
        bj.conv_general_dilated(x.astype(int), w, (1, 1), "SAME")
    with pytest.raises(TypeError, match="preferred_element_type is int32, expected"):
        bj.conv_general_dilated(x, w, (1, 1), "SAME", preferred_element_type=jnp.int32)
    with pytest.raises(TypeError, match="window_strides is 1, expected 2 integers"):
        bj.conv_general_dilated(x, w, 1, "SAME")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="conv_transpose: padding is 'SAME_LOWER', expected"):
        bj.conv_transpose(x, w, (1, 1), "SAME_LOWER")
