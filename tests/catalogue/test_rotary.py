"""rotary: against complex numbers in float64, in every layout."""

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
from tests.frameworks import DTYPES, EPSILON, FRAMEWORKS, bits, numpy_dtype

each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
# Shapes of x and of the tables: per position, per batch and position, and of a single position.
SHAPES = [
    ((2, 3, 5, 8), (5, 4)),
    ((2, 3, 5, 8), (2, 1, 5, 4)),
    ((2, 3, 5, 8), (5, 8)),  # doubled
    ((2, 3, 5, 12), (5, 2)),  # the leading columns alone
    ((7, 130), (7, 65)),
    ((6,), (3,)),
    ((4, 2), (1,)),
    ((0, 4), (2,)),
]


def tables(rng: Any, shape: Any, x: Any, dtype: str) -> Any:
    angles = rng.uniform(-3, 3, size=shape)
    if shape[-1] == x[-1]:
        angles = np.concatenate([angles[..., : x[-1] // 2]] * 2, -1)
    return np.cos(angles).astype(numpy_dtype(dtype)), np.sin(angles).astype(numpy_dtype(dtype))


def reference(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    x, turn = np.asarray(x, np.float64), np.asarray(cos, np.float64) + 1j * np.asarray(sin, float)
    turn = turn[..., : x.shape[-1] // 2]
    r = turn.shape[-1]
    head, rest = x[..., : 2 * r], x[..., 2 * r :]
    pairs = (
        head[..., 0::2] + 1j * head[..., 1::2]
        if interleaved
        else head[..., :r] + 1j * head[..., r:]
    )
    turned = pairs * turn
    parts = [turned.real, turned.imag]
    y = np.stack(parts, -1).reshape(head.shape) if interleaved else np.concatenate(parts, -1)
    return np.concatenate([y, rest], -1)


@each
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients(
    own: Any, interleaved: bool, shapes: Any, dtype: str, rng: Any
) -> None:
    x, g = (rng.normal(size=shapes[0]).astype(numpy_dtype(dtype)) for _ in range(2))
    cos, sin = tables(rng, shapes[1], shapes[0], dtype)

    def run(x: Any, cos: Any, sin: Any) -> Any:
        return own.ops.rotary(x, cos, sin, interleaved=interleaved)

    y, dx, dcos, dsin = own.vjp(run, [x, cos, sin], g)
    for found, operand in ((y, x), (dx, x), (dcos, cos), (dsin, sin)):
        assert (found.dtype, found.shape) == (operand.dtype, operand.shape)
    tolerance = {"rtol": 0, "atol": 8 * EPSILON[dtype]}
    np.testing.assert_allclose(y.astype(float), reference(x, cos, sin, interleaved), **tolerance)
    back = reference(g, cos, -np.asarray(sin, np.float64), interleaved)
    np.testing.assert_allclose(dx.astype(float), back, **tolerance)
    # y is linear in the tables, so their gradients give its change along another pair of tables.
    other = tables(rng, shapes[1], shapes[0], dtype)
    expected = (g * reference(x, *other, interleaved)).sum()
    if shapes[0][-1] > 2 * shapes[1][-1]:  # columns beyond the tables are not rotated
        rest = np.s_[..., 2 * shapes[1][-1] :]
        expected -= (g[rest].astype(float) * x[rest].astype(float)).sum()
    found = sum(
        (np.asarray(a, float) * np.asarray(b, float)).sum()
        for a, b in zip((dcos, dsin), other, strict=True)
    )
    assert abs(found - expected) <= 40 * EPSILON[dtype] * max(1, x.size) ** 0.5


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_same_bits(interleaved: bool, shapes: Any, rng: Any) -> None:
    x = rng.normal(size=shapes[0]).astype(numpy_dtype("bfloat16"))
    cos, sin = tables(rng, shapes[1], shapes[0], "float32")
    t, j = (
        own.call(lambda *a, own=own: own.ops.rotary(*a, interleaved=interleaved), x, cos, sin)
        for own in FRAMEWORKS
    )
    assert t.dtype == np.float32
    np.testing.assert_array_equal(bits(t), bits(j))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_autocast_leaves_alone(dtype: torch.dtype) -> None:
    """Autocast changes no other dtype, also in columns that pass: torch.cat cannot join all."""
    x, tables = torch.randn(2, 8).to(dtype), torch.randn(2, 2, 3).to(dtype)
    x[0, 6], x[0, 7] = -0.0, torch.inf

    def all_of(f: Any) -> list[Any]:
        y, tangent = torch.func.jvp(f, (x, *tables), (x, *tables))
        _, pull = torch.func.vjp(f, x, *tables)
        second = torch.func.jacrev(torch.func.jacrev(f, 1), 1)(x, *tables)
        return [y, tangent, *pull(x), second, torch.func.vmap(f)(x, *tables)]

    compiled = torch.compile(bridge.torch.rotary, fullgraph=True, backend="aot_eager")
    expected = all_of(bridge.torch.rotary)
    for autocast in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", autocast):
            exported = torch.export.export(_Rotary(), (x, *tables)).module()
            found = [*all_of(bridge.torch.rotary), compiled(x, *tables), exported(x, *tables)]
        for a, b in zip(found, (*expected, expected[0], expected[0]), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a.float().numpy(), b.float().numpy())
        np.testing.assert_array_equal(*(bits(y.float().numpy()) for y in (found[0], expected[0])))


class _Rotary(torch.nn.Module):
    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        return bridge.torch.rotary(x, cos, sin)


def test_derivatives_and_transforms(rng: Any) -> None:
    x = torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True)
    cos, sin = (torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    for interleaved in (False, True):

        def f(x: Any, c: Any, s: Any, interleaved: bool = interleaved) -> Any:
            return bridge.torch.rotary(x, c, s, interleaved=interleaved)

        assert torch.autograd.gradcheck(f, (x, cos, sin), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(f, (x, cos, sin))
        expected = f(x, cos, sin).detach()
        compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x, cos, sin), expected)
        assert torch.equal(torch.func.vmap(f, (0, None, None))(x, cos, sin), expected)
        with jax.enable_x64(True):
            arrays = [jnp.asarray(a.detach().numpy()) for a in (x, cos, sin)]

            def of_jax(x: Any, c: Any, s: Any, interleaved: bool = interleaved) -> Any:
                return bridge.jax.rotary(x, c, s, interleaved=interleaved)

            for found in (
                jax.jit(of_jax)(*arrays),
                jax.vmap(of_jax, (0, None, None))(*arrays),
            ):
                np.testing.assert_array_equal(found, expected)


REFUSED: dict[str, Refusal] = {
    "odd": (
        lambda f, a: f(a(2, 7), a(3), a(3)),
        ValueError,
        r"x has shape \[2, 7\], expected an even",
    ),
    "long": (
        lambda f, a: f(a(2, 8), a(5), a(5)),
        ValueError,
        r"cos has shape \[5\] and sin \[5\], expected 4 or 8 in the last dimension of both",
    ),
    "two lengths": (lambda f, a: f(a(2, 8), a(4), a(2)), ValueError, r"sin \[2\], expected 4 or 8"),
    "leading": (
        lambda f, a: f(a(2, 8), a(3, 4), a(3, 4)),
        ValueError,
        r"cos has shape \[3, 4\], expected one that broadcasts to \[2, 4\]",
    ),
    "integers": (
        lambda f, a: f(a(2, 8), a(4, dtype="int32"), a(4)),
        TypeError,
        "cos has dtype int32, expected one of float16",
    ),
    "no dimension": (lambda f, a: f(a(), a(4), a(4)), ValueError, "x is 0-dimensional"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_in_the_same_words(case: str) -> None:
    run, kind, words = REFUSED[case]
    assert_refused((lambda module, make: run(module.rotary, make), kind, words), "rotary: ")
