"""group_norm: against torch's own in float64, in both layouts of channels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import bridge.torch
from tests.catalogue.formulas import assert_near_and_same_bits, assert_transforms, drawn
from tests.catalogue.refusals import Refusal, assert_refused
from tests.catalogue.test_gated_norms import GATES
from tests.frameworks import DTYPES, numpy_dtype

# Shapes with the channels second, and numbers of groups.
SHAPES = [
    ((3, 6, 5, 7), 3),
    ((2, 8), 4),
    ((2, 4, 700), 1),
    ((5, 3, 2), 3),
    ((1, 6, 3, 2, 2), 2),
    ((0, 4, 3), 2),
    ((2, 4, 0), 2),
]


def plain(groups: int, activation: str | None, eps: float, last: bool) -> Any:
    def run(x: Any, weight: Any = None, bias: Any = None) -> Any:
        x = x.movedim(-1, 1) if last else x
        rows = x.reshape(x.shape[0], groups, x[:1].numel() // groups if x.numel() else 0)
        rows = rows - rows.mean(-1, keepdim=True)
        y = rows / torch.sqrt((rows * rows).mean(-1, keepdim=True) + eps)
        y = y.reshape(x.shape)
        each = (-1, *[1] * (x.ndim - 2))
        y = y if weight is None else y * weight.reshape(each)
        y = y if bias is None else y + bias.reshape(each)
        y = y if activation is None else GATES[activation](y)
        return y.movedim(1, -1) if last else y

    return run


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("activation", [None, *GATES])
@pytest.mark.parametrize(("shape", "groups"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients(
    shape: Any, groups: int, activation: str | None, last: bool, dtype: str, rng: Any
) -> None:
    channels = shape[1:2]
    shape = (shape[0], *shape[2:], *channels) if last else shape
    x, weight, bias, g = drawn(rng, (shape, channels, channels, shape), dtype)
    reference = plain(groups, activation, 1e-3, last)

    def call(ops: Any, x: Any, *a: Any) -> Any:
        how = {"activation": activation, "channels_last": last}
        return ops.group_norm(x, groups, *a, eps=1e-3, **how)

    for operands in ((x, weight, bias), (x, weight), (x,)):
        assert_near_and_same_bits(call, reference, operands, g, units=60.0)


@pytest.mark.parametrize(
    "dtypes",
    [
        ("bfloat16", "float32", "bfloat16"),
        ("float16", "bfloat16", "float16"),
        ("float32", "bfloat16", "float16"),
        ("bfloat16", "bfloat16", "float64"),
    ],
    ids=str,
)
def test_mixed_dtypes(dtypes: Any, rng: Any) -> None:
    shapes = ((3, 4, 5), (4,), (4,))
    operands = [
        a.astype(numpy_dtype(dtype))
        for a, dtype in zip(drawn(rng, shapes, "float64"), dtypes, strict=True)
    ]
    kinds = [getattr(torch, dtype) for dtype in dtypes]
    expected = torch.promote_types(torch.promote_types(*kinds[:2]), kinds[2])
    (g,) = drawn(rng, shapes[:1], str(expected).removeprefix("torch."))
    assert_near_and_same_bits(
        lambda ops, x, *a: ops.group_norm(x, 2, *a),
        plain(2, None, 1e-5, False),
        operands,
        g,
        units=60.0,
    )


def test_without_affine_it_is_layer_norm_of_groups(rng: Any) -> None:
    for dtype in DTYPES:
        (x,) = (torch.from_numpy(a.astype(np.float64)) for a in drawn(rng, ((3, 6, 35),), dtype))
        x = x.to(getattr(torch, dtype))
        rows = bridge.torch.layer_norm(x.reshape(3, 2, 105))
        assert torch.equal(bridge.torch.group_norm(x, 2), rows.reshape(x.shape))


def test_the_layout_changes_no_bit(rng: Any) -> None:
    x, weight = (torch.from_numpy(a) for a in drawn(rng, ((3, 6, 5, 7), (6,)), "float32"))
    whole = bridge.torch.group_norm(x, 3, weight)
    for laid in (x.to(memory_format=torch.channels_last), x.mT.contiguous().mT):
        assert torch.equal(bridge.torch.group_norm(laid, 3, weight), whole)
    last = bridge.torch.group_norm(x.movedim(1, -1), 3, weight, channels_last=True)
    assert torch.equal(last.movedim(-1, 1), whole)
    alone = [bridge.torch.group_norm(x[i : i + 1], 3, weight) for i in range(3)]
    assert torch.equal(torch.cat(alone), whole)


@pytest.mark.parametrize("last", [False, True])
def test_derivatives_and_transforms(last: bool) -> None:
    shape = (2, 3, 4) if last else (2, 4, 3)

    def call(ops: Any, x: Any, *a: Any) -> Any:
        return ops.group_norm(x, 2, *a, activation="silu", channels_last=last)

    assert_transforms(call, (shape, (4,), (4,)), (False, False, False))
    x, weight = torch.randn(3, *shape), torch.randn(3, 4)
    found = torch.func.vmap(lambda *a: call(bridge.torch, *a))(x, weight)
    each = [call(bridge.torch, *both) for both in zip(x, weight, strict=True)]
    assert torch.equal(found, torch.stack(each))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_special_values(dtype: str) -> None:
    """A group is a row of layer_norm: equal numbers, NaN, infinities, squares that overflow."""
    x = torch.randn(6, 4, 3).to(getattr(torch, dtype))
    x[0], x[1, 0, 1], x[2, 3, 2], x[3, 1, 0] = 7.0, math.nan, math.inf, torch.finfo(x.dtype).max
    x[4] = x[4] * 1e-3 + 100.0
    weight, bias = (torch.rand(4).to(x.dtype) + 0.5 for _ in range(2))
    found = bridge.torch.group_norm(x, 2, weight, bias)
    rows = bridge.torch.layer_norm(x.reshape(6, 2, 6)).reshape(x.shape).double()
    right = rows * weight.double()[:, None] + bias.double()[:, None]
    torch.testing.assert_close(found.double(), right, rtol=0.03, atol=0.03, equal_nan=True)
    assert torch.equal(found[0], bias[:, None].expand(4, 3))


REFUSED: dict[str, Refusal] = {
    "groups": (
        lambda f, a: f(a(2, 8, 3), 3),
        ValueError,
        r"x has shape \[2, 8, 3\], expected a multiple of 3 in dimension 1",
    ),
    "groups of the last": (
        lambda f, a: f(a(2, 8, 4), 8, channels_last=True),
        ValueError,
        r"x has shape \[2, 8, 4\], expected a multiple of 8 in dimension 2",
    ),
    "no groups": (lambda f, a: f(a(2, 8), 0), ValueError, "groups is 0, expected"),
    "half a group": (lambda f, a: f(a(2, 8), 0.5), TypeError, "groups has type float, expected"),
    "weight": (
        lambda f, a: f(a(2, 8, 3), 2, a(3)),
        ValueError,
        r"weight has shape \[3\], expected \[8\]",
    ),
    "bias": (
        lambda f, a: f(a(2, 8, 3), 2, None, a(1, 8)),
        ValueError,
        r"bias has shape \[1, 8\], expected \[8\]",
    ),
    "one dimension": (
        lambda f, a: f(a(8), 2),
        ValueError,
        r"x has shape \[8\], expected at least two dimensions",
    ),
    "activation": (
        lambda f, a: f(a(2, 8), 2, activation="swish"),
        ValueError,
        "activation is 'swish', expected one of 'silu'",
    ),
    "layout": (
        lambda f, a: f(a(2, 8), 2, channels_last="yes"),
        TypeError,
        "channels_last is 'yes', expected True or False",
    ),
    "eps": (lambda f, a: f(a(2, 8), 2, eps=0.0), ValueError, r"eps is 0\.0, expected"),
    "integers": (
        lambda f, a: f(a(2, 8), 2, a(8, dtype="int32")),
        TypeError,
        "weight has dtype int32, expected one of float16",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_in_the_same_words(case: str) -> None:
    run, kind, words = REFUSED[case]
    assert_refused((lambda module, make: run(module.group_norm, make), kind, words), "group_norm: ")
