"""rms_norm and layer_norm: against the formulas in float64, with and without a residual."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge.jax
import bridge.torch
from tests.catalogue.refusals import Refusal, assert_refused
from tests.frameworks import DTYPES, EPSILON, FRAMEWORKS, Torch, bits, numpy_dtype

SHAPES = [(3, 5), (2, 3, 64), (17, 1000), (1, 1), (7,), (2, 2500), (0, 4), (3, 0)]
MIXES = [
    ("float32", "float32", "float32"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("float16", "float16", "float16"),
    ("float64", "float64", "float64"),
    ("bfloat16", "float32", "bfloat16"),  # the dtypes of weights under autocast
    ("bfloat16", "bfloat16", "float32"),
    ("float16", "float32", "bfloat16"),
    ("float32", "float64", "bfloat16"),
]
NORMS = ("rms_norm", "layer_norm")
both = pytest.mark.parametrize("norm", NORMS)
each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)


def numbers(rng: np.random.Generator, shape: Any, dtype: str) -> Any:
    return (rng.normal(size=shape) * 2 + 0.5).astype(numpy_dtype(dtype))


def reference(norm: str, h: Any, weight: Any, bias: Any, g: Any, eps: float, offset: float) -> Any:
    """Returns y and the gradients of h, weight and bias, in float64, from the papers' formulas.

    The last result is the largest number from which the formula of h's gradient subtracts.
    """
    h, weight, bias, g = (np.asarray(a, np.float64) for a in (h, weight, bias, g))
    rows = tuple(range(h.ndim - 1))
    scale, wg = offset + weight, (offset + weight) * g
    centred = h - h.mean(-1, keepdims=True) if norm == "layer_norm" else h
    r = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    normal = centred * r
    dh = wg - normal * (wg * normal).mean(-1, keepdims=True)
    if norm == "layer_norm":
        dh = dh - wg.mean(-1, keepdims=True)
    found = normal * scale + bias, r * dh, (g * normal).sum(rows), g.sum(rows)
    return found, np.max(np.abs(r * wg), initial=0.0)


def near(found: Any, expected: Any, dtype: str, terms: int = 1, largest: float = 0.0) -> None:
    """Compares within a few units of the largest number, or of the largest intermediate number."""
    unit = EPSILON[dtype] + 4 * EPSILON["float64" if dtype == "float64" else "float32"]
    size = max(largest, np.max(np.abs(expected), initial=1e-3 if terms == 1 else 1.0))
    np.testing.assert_allclose(
        np.asarray(found, np.float64), expected, rtol=0, atol=unit * size * (1 + terms**0.5 / 4)
    )


@each
@both
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients(own: Any, norm: str, shape: Any, dtype: str, rng: Any) -> None:
    d, is_rms = shape[-1], norm == "rms_norm"
    x, g = (numbers(rng, shape, dtype) for _ in range(2))
    weight, bias = (numbers(rng, d, dtype) for _ in range(2))
    offset = {"offset": 1.0} if is_rms else {}
    operands = [x, weight] if is_rms else [x, weight, bias]
    y, *gradients = own.vjp(partial(getattr(own.ops, norm), eps=1e-3, **offset), operands, g)
    for found, operand in zip((y, *gradients), (x, *operands), strict=True):
        assert (found.dtype, found.shape) == (operand.dtype, operand.shape)
    if x.size == 0:
        return
    own_bias = np.zeros(d) if is_rms else bias
    expected, largest = reference(norm, x, weight, own_bias, g, 1e-3, float(is_rms))
    rows = max(1, int(np.prod(shape[:-1])))
    terms, sizes = (1, d, rows, rows), (0.0, largest, 0.0, 0.0)
    for i, found in enumerate((y, *gradients)):
        near(found, expected[i], dtype, terms[i], sizes[i])


@both
@pytest.mark.parametrize("mix", MIXES, ids=str)
@pytest.mark.parametrize("shape", [(5, 7), (3, 600)], ids=str)
def test_one_call_has_the_bits_of_two_in_both_frameworks(
    norm: str, mix: Any, shape: Any, rng: Any
) -> None:
    of_x, of_weight, of_residual = mix
    x, residual = numbers(rng, shape, of_x), numbers(rng, shape, of_residual)
    weight = numbers(rng, shape[-1], of_weight)
    g, gh = (numbers(rng, shape, "float32") for _ in range(2))
    by_framework = []
    with jax.enable_x64(True):
        for is_one in (True, False):

            def of_torch(x: Any, w: Any, res: Any, is_one: bool = is_one) -> Any:
                function = getattr(bridge.torch, norm)
                if is_one:
                    return function(x, w, residual=res)
                return function(x + res, w), x + res

            leaves = [Torch().array(a).requires_grad_() for a in (x, weight, residual)]
            h = leaves[0] + leaves[2]
            y, h = of_torch(*leaves) if is_one else (getattr(bridge.torch, norm)(h, leaves[1]), h)
            cotangents = [torch.tensor(g).to(y.dtype), torch.tensor(gh).to(h.dtype)]
            found = [y, h, *torch.autograd.grad((y, h), leaves, cotangents)]
            by_framework.append([Torch().numpy(a) for a in found])

            def of_jax(x: Any, w: Any, res: Any, is_one: bool = is_one) -> Any:
                function = getattr(bridge.jax, norm)
                if is_one:
                    return function(x, w, residual=res)
                h = x + res
                return function(h, w), h

            (y, h), back = jax.vjp(of_jax, *map(jnp.asarray, (x, weight, residual)))
            found = [y, h, *back((jnp.asarray(g, y.dtype), jnp.asarray(gh, h.dtype)))]
            by_framework.append([np.asarray(a) for a in found])
    for others in by_framework[1:]:
        for ours, theirs in zip(by_framework[0], others, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(bits(ours), bits(theirs))


@each
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_equal_numbers_is_its_bias(own: Any, dtype: str, rng: Any) -> None:
    for d in (1, 3, 7, 100, 1000, 1023, 4097):
        value = np.full((2, d), rng.normal() * 100).astype(numpy_dtype(dtype))
        weight, bias = (numbers(rng, d, dtype) for _ in range(2))
        found = own.call(own.ops.layer_norm, value, weight, bias)
        np.testing.assert_array_equal(found, np.broadcast_to(bias, (2, d)))


@each
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("d", [7, 16, 333, 5000])
@pytest.mark.parametrize(
    ("dtype", "mean"),
    [
        *[("float32", mean) for mean in (100.0, 2e3, 1e4, 1e6)],
        *[("float64", mean) for mean in (1e6, 1e12)],
        ("bfloat16", 100.0),
        ("float16", 1000.0),
    ],
)
def test_rows_whose_mean_is_far_above_their_spread(
    own: Any, dtype: str, mean: float, d: int, has_residual: bool, rng: Any
) -> None:
    """Errors are in units of 2^-23 of the largest number (float64: 2^-52); h itself is exact."""
    x = (rng.normal(size=(5, d)) + mean).astype(numpy_dtype(dtype))
    weight, bias, g = (numbers(rng, shape, dtype) for shape in (d, d, (5, d)))
    operands, h = [x, weight, bias], x
    if has_residual:
        residual = numbers(rng, (5, d), dtype)
        operands, h = [*operands, residual], x + residual
    norm = own.ops.layer_norm
    y, *gradients = own.vjp(
        lambda *given: norm(*given)[0] if has_residual else norm(*given), operands, g
    )
    # A shift of a row does not change its norm. This shift has no rounding.
    shifted = h.astype(np.float64)
    shifted = shifted - shifted[:, :1]
    expected, largest = reference("layer_norm", shifted, weight, bias, g, 1e-5, 0.0)
    assert largest > 0.1
    for found, exact in zip((y, *gradients), (*expected, expected[1]), strict=False):
        size = max(np.max(np.abs(exact)), largest if exact is expected[1] else 0.0)
        unit = EPSILON[dtype] + 4 * EPSILON["float64" if dtype == "float64" else "float32"]
        np.testing.assert_allclose(found.astype(np.float64), exact, rtol=0, atol=unit * size)


def test_a_row_of_thousandths_on_ten_thousand() -> None:
    x = torch.tensor(1e4 + np.arange(16) * 1e-3, dtype=torch.float32)
    exact = torch.nn.functional.layer_norm(x.double(), (16,))
    assert float(exact[0]) == pytest.approx(-1.33133, abs=1e-5)
    torch.testing.assert_close(bridge.torch.layer_norm(x).double(), exact, rtol=1e-6, atol=1e-6)


@each
@both
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_row_whose_squares_overflow(own: Any, norm: str, dtype: str, rng: Any) -> None:
    """The row has its norm just below the bound of the docs, and 0 beyond it."""
    bound = 2.0**511 if dtype == "float64" else 2.0**63
    for scale, is_right in ((bound / 2, True), (4 * bound, False)):
        x = (scale * np.array([[1.0, -1.0, 0.5, -0.5]])).astype(numpy_dtype(dtype))
        y, dx = own.vjp(getattr(own.ops, norm), [x], np.ones_like(x))
        expected = np.array([[1.0, -1.0, 0.5, -0.5]]) / 0.625**0.5
        near(y, expected if is_right else 0 * expected, dtype)
        assert is_right or not np.any(dx)


@each
@both
def test_a_row_alone_and_among_others(own: Any, norm: str, rng: Any) -> None:
    x = numbers(rng, (40, 333), "bfloat16")
    whole = own.call(getattr(own.ops, norm), x)
    for row in (0, 17, 39):
        np.testing.assert_array_equal(
            bits(own.call(getattr(own.ops, norm), x[row])), bits(whole[row])
        )


@both
def test_derivatives_of_second_order_and_forward_mode(norm: str) -> None:
    torch.manual_seed(0)
    leaves = [torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((3, 5), (5,))]
    residual = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    function = getattr(bridge.torch, norm)

    def added(x: Any, w: Any, r: Any) -> Any:
        return function(x, w, residual=r)

    for f, operands in ((function, leaves), (added, [*leaves, residual])):
        assert torch.autograd.gradcheck(f, operands, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(f, operands)


@both
@pytest.mark.parametrize("has_residual", [False, True])
def test_derivatives_along_some_operands(norm: str, has_residual: bool) -> None:
    """The tangent is 0 for a result that does not depend on the operand, such as a weight gradient.

    Tested for all subsets of the operands, with a loss that is linear in the result.
    """
    torch.manual_seed(0)
    shapes = [(2, 3), (3,), *[(2, 3)] * has_residual]
    operands = [torch.randn(*shape, dtype=torch.float64) for shape in shapes]
    factor = torch.randn(2, 3, dtype=torch.float64)

    def loss(f: Any, *given: Any) -> Any:
        found = f(*given)
        return sum((y * factor).sum() for y in (found if has_residual else (found,)))

    def plain(x: Any, w: Any, r: Any = 0.0) -> Any:
        s = x + r
        m = s.mean(-1, keepdim=True) if norm == "layer_norm" else 0.0
        eps = 1e-5 if norm == "layer_norm" else 1e-6
        y = (s - m) / ((s - m).square().mean(-1, keepdim=True) + eps).sqrt() * w
        return (y, s) if has_residual else y

    def own(x: Any, w: Any, r: Any = None) -> Any:
        return getattr(bridge.torch, norm)(x, w, residual=r)

    for chosen in itertools.product([False, True], repeat=len(operands)):
        places = tuple(i for i, is_chosen in enumerate(chosen) if is_chosen)
        for transform in (
            torch.func.hessian,
            lambda f, i: torch.func.jacfwd(torch.func.jacfwd(f, i), i),
        ):
            if not places:
                continue
            found, expected = (transform(partial(loss, f), places)(*operands) for f in (own, plain))
            torch.testing.assert_close(found, expected)


@both
def test_transforms(norm: str, rng: Any) -> None:
    x, residual = (numbers(rng, (4, 3, 8), "float32") for _ in range(2))
    weight = numbers(rng, 8, "float32")
    of_torch, of_jax = getattr(bridge.torch, norm), getattr(bridge.jax, norm)
    expected = of_torch(*map(torch.tensor, (x, weight)), residual=torch.tensor(residual))

    def in_torch(x: Any, w: Any, r: Any) -> Any:
        return of_torch(x, w, residual=r)

    def in_jax(x: Any, w: Any, r: Any) -> Any:
        return of_jax(x, w, residual=r)

    tensors, arrays = [torch.tensor(a) for a in (x, weight, residual)], (x, weight, residual)
    for found in (
        torch.compile(in_torch, fullgraph=True, backend="aot_eager")(*tensors),
        torch.func.vmap(in_torch, (0, None, 0))(*tensors),
        jax.jit(in_jax)(*arrays),
        jax.vmap(in_jax, (0, None, 0))(*map(jnp.asarray, arrays)),
    ):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(a), b.numpy())


def test_calls_on_other_dtypes_follow_each_other() -> None:
    """The cached plan of a call is not used for a call whose sum has another dtype."""
    floats = (torch.float32, torch.bfloat16, torch.float16)
    for x_dtype, r_dtype, w_dtype in itertools.product(floats, floats, (None, *floats)):
        x, residual = torch.randn(3, 40).to(x_dtype), torch.randn(3, 40).to(r_dtype)
        weight = None if w_dtype is None else torch.randn(40).to(w_dtype)
        expected = bridge.torch.rms_norm(x + residual, weight)
        y, h = bridge.torch.rms_norm(x, weight, residual)
        assert y.dtype == expected.dtype
        assert torch.equal(y, expected)
        assert torch.equal(h, x + residual)


def test_out() -> None:
    x, out = torch.randn(3, 8), torch.empty(3, 8)
    assert bridge.torch.rms_norm(x, out=out) is out
    assert torch.equal(out, bridge.torch.rms_norm(x))
    with pytest.raises(ValueError, match="out is given with a residual"):
        bridge.torch.layer_norm(x, residual=x, out=out)


REFUSED: dict[str, Refusal] = {
    "eps": (lambda n, a: n(a(3, 8), eps=0.0), ValueError, "eps is 0.0, expected a positive"),
    "small": (lambda n, a: n(a(3, 8), eps=1e-46), ValueError, "eps is 1e-46, expected a positive"),
    "NaN": (lambda n, a: n(a(3, 8), eps=float("nan")), ValueError, "eps is nan, expected a pos"),
    "text": (lambda n, a: n(a(3, 8), eps="1"), TypeError, "eps has type str, expected a number"),
    "weight": (
        lambda n, a: n(a(3, 8), a(3)),
        ValueError,
        r"weight has shape \[3\], expected \[8\]",
    ),
    "residual": (
        lambda n, a: n(a(3, 8), residual=a(8)),
        ValueError,
        r"residual has shape \[8\], expected \[3, 8\]",
    ),
    "no dimension": (lambda n, a: n(a()), ValueError, "x is 0-dimensional"),
    "integers": (
        lambda n, a: n(a(3, 8, dtype="int32")),
        TypeError,
        "x has dtype int32, expected one of float16",
    ),
    "integer residual": (
        lambda n, a: n(a(3, 8), residual=a(3, 8, dtype="int32")),
        TypeError,
        "residual has dtype int32, expected one of float16",
    ),
}


@both
@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_in_the_same_words(norm: str, case: str) -> None:
    run, kind, words = REFUSED[case]
    called = (lambda module, make: run(getattr(module, norm), make)), kind, words
    assert_refused(called, f"{norm}: ")


@each
@pytest.mark.parametrize(
    ("offset", "weight", "words"),
    [(1.0, None, "weight is None, expected a weight"), (float("inf"), True, "offset is inf")],
)
def test_offsets(own: Any, offset: float, weight: Any, words: str) -> None:
    x = np.ones((2, 4), np.float32)
    with pytest.raises(ValueError, match=words):
        own.call(lambda x: own.ops.rms_norm(x, None if weight is None else x[0], offset=offset), x)


def test_numbers_that_require_a_gradient_are_refused() -> None:
    offset = torch.ones((), requires_grad=True)
    x = torch.ones(2, 4)
    with pytest.raises(TypeError, match="rms_norm: offset requires a gradient, which it would not"):
        bridge.torch.rms_norm(x, x[0], offset=offset)
    with pytest.raises(TypeError, match="scaled_softmax: scale requires a gradient"):
        torch.func.grad(lambda scale: bridge.torch.scaled_softmax(x, scale).sum())(torch.ones(()))
    assert torch.equal(
        bridge.torch.rms_norm(x, x[0], offset=offset.detach()),
        bridge.torch.rms_norm(x, x[0], offset=1.0),
    )


def test_traced_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match="rms_norm: eps is traced"):
        jax.jit(lambda x, eps: bridge.jax.rms_norm(x, eps=eps))(jnp.ones((2, 4)), 1e-6)
