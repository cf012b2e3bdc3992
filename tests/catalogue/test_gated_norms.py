"""gated_rms_norm: against the formula in float64, with every gate, order and number of groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import bridge.torch
from bridge.catalogue.gates import ACTIVATIONS
from tests.catalogue.formulas import assert_near_and_same_bits, assert_transforms, drawn
from tests.catalogue.refusals import Refusal, assert_refused
from tests.frameworks import DTYPES, numpy_dtype

F = torch.nn.functional
GATES = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
}
orders = pytest.mark.parametrize("norm_first", [True, False])


def plain(activation: str, norm_first: bool, groups: int, eps: float) -> Any:
    def run(x: Any, gate: Any, weight: Any = None) -> Any:
        act = GATES[activation](gate)
        h = (x if norm_first else x * act).unflatten(-1, (groups, -1))
        h = (h / torch.sqrt((h * h).mean(-1, keepdim=True) + eps)).flatten(-2)
        h = h if weight is None else h * weight
        return h * act if norm_first else h

    return run


def test_every_gate_is_here() -> None:
    assert GATES.keys() == ACTIVATIONS.keys()


@orders
@pytest.mark.parametrize("activation", GATES)
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients(
    activation: str, norm_first: bool, groups: int, dtype: str, rng: Any
) -> None:
    how: dict[str, Any] = {"activation": activation, "norm_first": norm_first, "groups": groups}
    for shape in ((5, 3), (2, 3, 21), (17, 1026), (6,)):
        x, gate, g, weight = drawn(rng, (shape, shape, shape, shape[-1:]), dtype)
        reference = plain(eps=1e-3, **how)
        for operands in ((x, gate, weight), (x, gate)):
            assert_near_and_same_bits(
                lambda ops, *a: ops.gated_rms_norm(*a, eps=1e-3, **how),
                reference,
                operands,
                g,
                units=60.0,
            )


@orders
@pytest.mark.parametrize("groups", [1, 2])
def test_mixed_dtypes(norm_first: bool, groups: int, rng: Any) -> None:
    x, gate, weight, g = drawn(rng, ((4, 6), (4, 6), (6,), (4, 6)), "float32")
    x, gate = x.astype(numpy_dtype("bfloat16")), gate.astype(numpy_dtype("float16"))
    assert_near_and_same_bits(
        lambda ops, *a: ops.gated_rms_norm(*a, norm_first=norm_first, groups=groups),
        plain("silu", norm_first, groups, 1e-6),
        (x, gate, weight),
        g,
        units=60.0,
    )


@orders
@pytest.mark.parametrize("groups", [1, 2])
def test_derivatives_and_transforms(norm_first: bool, groups: int) -> None:
    assert_transforms(
        lambda ops, *a: ops.gated_rms_norm(*a, norm_first=norm_first, groups=groups),
        ((2, 3, 4), (2, 3, 4), (4,)),
        (True, True, False),
    )


@orders
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_special_values(norm_first: bool, groups: int, dtype: str) -> None:
    """NaN, infinities, zeros and squares that overflow do as in rms_norm and glu."""
    x, gate = (torch.randn(6, 8).to(getattr(torch, dtype)) for _ in range(2))
    x[0], x[1, 2], x[2, 5], x[3, 0] = 0.0, torch.nan, torch.inf, torch.finfo(x.dtype).max
    gate[4, 3], gate[5, 6] = torch.nan, -torch.inf
    weight = torch.rand(8).to(x.dtype) + 0.5
    found = bridge.torch.gated_rms_norm(x, gate, weight, norm_first=norm_first, groups=groups)
    act = F.silu(gate.double())
    act[5, 6] = 0.0  # torch has NaN
    h = (x.double() if norm_first else x.double() * act).to(x.dtype)
    h = h.unflatten(-1, (groups, -1))
    y = bridge.torch.rms_norm(h).flatten(-2).double() * weight.double()
    right = y * act if norm_first else y
    torch.testing.assert_close(found.double(), right, rtol=0.02, atol=0.02, equal_nan=True)
    assert not found[0].any()


def test_whole_groups_are_rows(rng: Any) -> None:
    """A group has the bits of a row of its columns alone."""
    x, gate, weight = (
        torch.from_numpy(a) for a in drawn(rng, ((5, 24), (5, 24), (24,)), "float32")
    )
    whole = bridge.torch.gated_rms_norm(x, gate, weight, groups=3)
    for i in range(3):
        part = np.s_[..., 8 * i : 8 * i + 8]
        alone = bridge.torch.gated_rms_norm(x[part], gate[part], weight[part])
        assert torch.equal(whole[part], alone)


REFUSED: dict[str, Refusal] = {
    "gate": (
        lambda f, a: f(a(2, 8), a(2, 7)),
        ValueError,
        r"gate has shape \[2, 7\], expected \[2, 8\]",
    ),
    "weight": (
        lambda f, a: f(a(2, 8), a(2, 8), a(4)),
        ValueError,
        r"weight has shape \[4\], expected \[8\]",
    ),
    "weight of groups": (
        lambda f, a: f(a(2, 8), a(2, 8), a(4), groups=2),
        ValueError,
        r"weight has shape \[4\], expected \[8\]",
    ),
    "groups": (
        lambda f, a: f(a(2, 8), a(2, 8), groups=3),
        ValueError,
        r"x has shape \[2, 8\], expected a multiple of 3 in the last dimension",
    ),
    "no groups": (lambda f, a: f(a(2, 8), a(2, 8), groups=0), ValueError, "groups is 0, expected"),
    "half a group": (
        lambda f, a: f(a(2, 8), a(2, 8), groups=1.5),
        TypeError,
        "groups has type float, expected an integer",
    ),
    "activation": (
        lambda f, a: f(a(2, 8), a(2, 8), activation="swish"),
        ValueError,
        "activation is 'swish', expected one of 'silu'",
    ),
    "order": (
        lambda f, a: f(a(2, 8), a(2, 8), norm_first="no"),
        TypeError,
        "norm_first is 'no', expected True or False",
    ),
    "eps": (lambda f, a: f(a(2, 8), a(2, 8), eps=-1.0), ValueError, r"eps is -1\.0, expected"),
    "integers": (
        lambda f, a: f(a(2, 8), a(2, 8, dtype="int32")),
        TypeError,
        "gate has dtype int32, expected one of float16",
    ),
    "no dimension": (lambda f, a: f(a(), a()), ValueError, "x is 0-dimensional"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_in_the_same_words(case: str) -> None:
    run, kind, words = REFUSED[case]
    assert_refused(
        (lambda module, make: run(module.gated_rms_norm, make), kind, words), "gated_rms_norm: "
    )
