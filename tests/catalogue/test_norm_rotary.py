"""rms_norm_rotary: against the formula in float64, in every layout."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge.jax
import bridge.torch
from tests.catalogue.refusals import Refusal, assert_refused
from tests.catalogue.test_rotary import SHAPES, reference, tables
from tests.frameworks import DTYPES, EPSILON, FRAMEWORKS, bits, numpy_dtype

each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
layouts = pytest.mark.parametrize("interleaved", [False, True])
EPS, OFFSET = 1e-3, 1.0


def expected_of(x: Any, weight: Any, cos: Any, sin: Any, g: Any, interleaved: bool) -> list[Any]:
    """Returns y and the gradients of x and weight in float64, from the formulas."""
    x, weight, g = (np.asarray(a, np.float64) for a in (x, weight, g))
    r = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + EPS)
    normal, whole = x * r, OFFSET + weight
    y = reference(normal * whole, cos, sin, interleaved)
    back = reference(g, cos, -np.asarray(sin, np.float64), interleaved)
    wg = back * whole
    dx = r * (wg - normal * (wg * normal).mean(-1, keepdims=True))
    return [y, dx, (back * normal).reshape(-1, x.shape[-1]).sum(0)]


@each
@layouts
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients(
    own: Any, interleaved: bool, shapes: Any, dtype: str, rng: Any
) -> None:
    x, g = (rng.normal(size=shapes[0]).astype(numpy_dtype(dtype)) for _ in range(2))
    weight = rng.normal(size=shapes[0][-1]).astype(numpy_dtype(dtype))
    cos, sin = tables(rng, shapes[1], shapes[0], dtype)

    def run(*a: Any) -> Any:
        return own.ops.rms_norm_rotary(*a, eps=EPS, offset=OFFSET, interleaved=interleaved)

    operands = [x, weight, cos, sin]
    y, *gradients = own.vjp(run, operands, g)
    for found, operand in zip((y, *gradients), (x, *operands), strict=True):
        assert (found.dtype, found.shape) == (operand.dtype, operand.shape)
    exact = expected_of(x, weight, cos, sin, g, interleaved)
    for found, right in zip((y, *gradients[:2]), exact, strict=True):
        size = np.max(np.abs(right), initial=1.0)
        unit = 4 * EPSILON[dtype] + 30 * EPSILON["float64" if dtype == "float64" else "float32"]
        np.testing.assert_allclose(found.astype(float), right, rtol=0, atol=unit * size)
    # y is linear in the tables, so their gradients give its change along another pair of tables.
    other = tables(rng, shapes[1], shapes[0], dtype)
    moved, still = (
        expected_of(x, weight, *two, g, interleaved)[0] for two in (other, (0 * cos, 0 * sin))
    )
    right = (g.astype(float) * (moved - still)).sum()
    found = sum(
        (np.asarray(a, float) * np.asarray(b, float)).sum()
        for a, b in zip(gradients[2:], other, strict=True)
    )
    assert abs(found - right) <= 100 * EPSILON[dtype] * max(1, x.size) ** 0.5


@layouts
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits(interleaved: bool, shapes: Any, dtype: str, rng: Any) -> None:
    x, g = (rng.normal(size=shapes[0]).astype(numpy_dtype(dtype)) for _ in range(2))
    weight = rng.normal(size=shapes[0][-1]).astype(numpy_dtype(dtype))
    operands = [x, weight, *tables(rng, shapes[1], shapes[0], dtype)]
    t, j = (
        own.vjp(
            lambda *a, own=own: own.ops.rms_norm_rotary(*a, interleaved=interleaved), operands, g
        )
        for own in FRAMEWORKS
    )
    for a, b in zip(t, j, strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))


@layouts
def test_other_dtypes_and_no_weight(interleaved: bool, rng: Any) -> None:
    x = rng.normal(size=(3, 5, 12)).astype(numpy_dtype("bfloat16"))
    tables_of = tables(rng, (5, 4), x.shape, "float32")
    for own in FRAMEWORKS:
        plain = own.call(
            lambda *a, own=own: own.ops.rms_norm_rotary(a[0], None, *a[1:]), x, *tables_of
        )
        ones = own.call(
            lambda *a, own=own: own.ops.rms_norm_rotary(*a), x, np.ones(12, x.dtype), *tables_of
        )
        assert plain.dtype == np.float32
        np.testing.assert_array_equal(bits(plain), bits(ones))


@layouts
@pytest.mark.parametrize("pairs", [4, 3, 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_special_values(interleaved: bool, pairs: int, dtype: str) -> None:
    """A row has a NaN or an infinity where rms_norm and then rotary have one; others have none."""
    x = torch.randn(7, 16).to(getattr(torch, dtype))
    x[0], x[1, 5], x[2, 5], x[3, 15], x[4] = 0.0, torch.nan, torch.inf, -torch.inf, -0.0
    if dtype in ("bfloat16", "float32"):
        x[5, 2] = 3e38  # the square overflows
    elif dtype == "float64":
        x[5, 2] = 1e300
    angles = torch.rand(pairs)
    weight, cos, sin = (a.to(x.dtype) for a in (torch.rand(16) + 0.5, angles.cos(), angles.sin()))
    found = bridge.torch.rms_norm_rotary(x, weight, cos, sin, interleaved=interleaved)
    right = bridge.torch.rotary(
        bridge.torch.rms_norm(x.double(), weight.double())
        if dtype == "float16"
        else bridge.torch.rms_norm(x, weight),
        cos,
        sin,
        interleaved=interleaved,
    )
    unit = 8 * EPSILON[dtype]
    torch.testing.assert_close(found.double(), right.double(), rtol=unit, atol=unit, equal_nan=True)
    np.testing.assert_array_equal(torch.signbit(found[[0, 4]]), torch.signbit(right[[0, 4]]))


@layouts
@pytest.mark.parametrize("pairs", [4, 3, 1])
def test_derivatives_and_transforms(interleaved: bool, pairs: int) -> None:
    x = torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, dtype=torch.float64, requires_grad=True)
    cos, sin = (torch.randn(3, pairs, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def f(x: Any, w: Any, c: Any, s: Any) -> Any:
        return bridge.torch.rms_norm_rotary(x, w, c, s, offset=0.5, interleaved=interleaved)

    operands = (x, weight, cos, sin)
    assert torch.autograd.gradcheck(f, operands, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, operands)
    expected = f(*operands).detach()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*operands), expected)
    assert torch.equal(torch.func.vmap(f, (0, None, None, None))(*operands), expected)
    assert torch.equal(torch.stack([f(row, *operands[1:]) for row in x]), expected)
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a.detach().numpy()) for a in operands]

        def of_jax(x: Any, w: Any, c: Any, s: Any) -> Any:
            return bridge.jax.rms_norm_rotary(x, w, c, s, offset=0.5, interleaved=interleaved)

        in_axes = (0, None, None, None)
        for found in (jax.jit(of_jax)(*arrays), jax.vmap(of_jax, in_axes)(*arrays)):
            np.testing.assert_array_equal(found, expected)


REFUSED: dict[str, Refusal] = {
    "odd": (
        lambda f, a: f(a(2, 7), a(7), a(3), a(3)),
        ValueError,
        r"x has shape \[2, 7\], expected an even",
    ),
    "long": (
        lambda f, a: f(a(2, 8), a(8), a(5), a(5)),
        ValueError,
        r"cos has shape \[5\] and sin \[5\], expected 4 or 8 in the last dimension of both",
    ),
    "weight": (
        lambda f, a: f(a(2, 8), a(4), a(4), a(4)),
        ValueError,
        r"weight has shape \[4\], expected \[8\]",
    ),
    "weight of rows": (
        lambda f, a: f(a(2, 8), a(1, 8), a(4), a(4)),
        ValueError,
        r"weight has shape \[1, 8\], expected \[8\]",
    ),
    "leading": (
        lambda f, a: f(a(2, 8), a(8), a(3, 4), a(3, 4)),
        ValueError,
        r"cos has shape \[3, 4\], expected one that broadcasts to \[2, 4\]",
    ),
    "integers": (
        lambda f, a: f(a(2, 8), a(8, dtype="int32"), a(4), a(4)),
        TypeError,
        "weight has dtype int32, expected one of float16",
    ),
    "no dimension": (lambda f, a: f(a(), a(8), a(4), a(4)), ValueError, "x is 0-dimensional"),
    "no weight": (
        lambda f, a: f(a(2, 8), None, a(4), a(4), offset=1.0),
        ValueError,
        r"offset is 1\.0 .*weight",
    ),
    "eps": (
        lambda f, a: f(a(2, 8), a(8), a(4), a(4), eps=0.0),
        ValueError,
        r"eps is 0\.0, expected a positive",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_in_the_same_words(case: str) -> None:
    run, kind, words = REFUSED[case]
    assert_refused(
        (lambda module, make: run(module.rms_norm_rotary, make), kind, words), "rms_norm_rotary: "
    )
