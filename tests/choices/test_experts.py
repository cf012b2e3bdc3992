"""Mixtures of experts: values, gradients and losses against float64, and their order of sums."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch

import bridge.jax
import bridge.torch
from tests.choices.reference import drawn
from tests.frameworks import DTYPES, FRAMEWORKS, bits

each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
SCORES = ("softmax", "sigmoid")


def same(found: Any, expected: Any) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert np.array_equal(bits(found), bits(expected))


def exact_router(
    logits: Any, columns: Any, score: str, normalize: bool, scale: float
) -> tuple[Any, Any, Any]:
    """Returns weights, balance and z in float64, in torch, for chosen columns."""
    s = logits.softmax(-1) if score == "softmax" else logits.sigmoid()
    weights = s.gather(-1, columns)
    if normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    experts = logits.shape[-1]
    tokens = logits.reshape(-1, experts)
    parts = (s / s.sum(-1, keepdim=True)).reshape(-1, experts).mean(0)
    often = torch.bincount(columns.reshape(-1), minlength=experts) / columns.numel()
    balance = experts * (often * parts).sum()
    return weights * scale, balance, (tokens.logsumexp(-1) ** 2).mean()


def router_in_torch(x: Any, k: int, **options: Any) -> Any:
    return bridge.torch.moe_router(x, k, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("normalize", "scale"), [(True, 1.0), (False, 1.0), (True, 2.5)])
@pytest.mark.parametrize(("shape", "k"), [((1, 1), 1), ((37, 8), 2), ((2, 70, 64), 8)])
def test_router(
    dtype: str,
    score: str,
    has_bias: bool,
    normalize: bool,
    scale: float,
    shape: Any,
    k: int,
    rng: np.random.Generator,
) -> None:
    """Both frameworks have one set of bits, close to float64, gradients included."""
    logits = drawn(rng, shape, dtype)
    bias = drawn(rng, shape[-1:], "float32") if has_bias else None
    options = {"score": score, "normalize": normalize, "scale": scale, "losses": True}
    ones = [rng.standard_normal(size).astype(np.float32) for size in ((*shape[:-1], k), (), ())]
    if dtype == "float64":
        ones = [each.astype(np.float64) for each in ones]

    x = FRAMEWORKS[0].array(logits).clone().requires_grad_()
    given = None if bias is None else torch.tensor(bias)
    weights, columns, *losses = bridge.torch.moe_router(x, k, bias=given, **options)
    results = [weights, *losses]
    (gradient,) = torch.autograd.grad(results, [x], [torch.tensor(each) for each in ones])

    def function(x: Any) -> Any:
        weights, columns, *losses = bridge.jax.moe_router(x, k, bias=bias, **options)
        return (weights, *losses), columns

    with jax.enable_x64(True):
        values, pull, chosen = jax.vjp(jax.jit(function), jax.numpy.asarray(logits), has_aux=True)
        theirs = pull(tuple(jax.numpy.asarray(each) for each in ones))[0]
        assert np.array_equal(chosen, columns)
        for ours, other in zip(results, values, strict=True):
            same(ours.detach(), other)
        same(FRAMEWORKS[0].numpy(gradient), theirs)

    wide = x.detach().double().requires_grad_()
    expected = exact_router(wide, columns, score, normalize, scale)
    (exact,) = torch.autograd.grad(expected, [wide], [torch.tensor(e).double() for e in ones])
    for ours, other in zip(results, expected, strict=True):
        torch.testing.assert_close(ours.detach().double(), other.detach(), rtol=3e-6, atol=3e-6)
    step = {"float16": 2e-3, "bfloat16": 1e-2}.get(dtype, 1e-5)
    torch.testing.assert_close(gradient.double(), exact, rtol=step, atol=step)
    wide = wide.detach()
    s = wide.softmax(-1) if score == "softmax" else wide.sigmoid()
    ranked = s if given is None else s + given
    least = ranked.gather(-1, columns).amin(-1, keepdim=True)
    others = torch.ones_like(ranked, dtype=torch.bool).scatter(-1, columns, False)
    assert not (others & (ranked > least + 1e-6)).any()


@each
def test_router_choice(own: Any) -> None:
    """A bias moves the choice and not the weights; equal scores go to the smaller column."""
    logits = np.array([[0.0, 1.0, 1.0, 1.0]], np.float32)
    weights, columns = own.ops.moe_router(own.array(logits), 2, normalize=False)
    assert columns.tolist() == [[1, 2]]
    bias = np.array([5, 0, 0, 0.25], np.float32)
    other, moved = own.ops.moe_router(own.array(logits), 2, bias=own.array(bias), normalize=False)
    assert moved.tolist() == [[0, 3]]
    assert float(other[0, 1]) == float(weights[0, 0])
    none = own.ops.moe_router(own.array(logits), 2, bias=own.array(0 * bias), normalize=False)
    assert none[1].tolist() == [[1, 2]]
    balance, z = own.ops.moe_router(own.array(np.zeros((8, 4), np.float32)), 4, losses=True)[2:]
    assert float(balance) == 1.0
    assert abs(float(z) - np.log(4) ** 2) < 1e-6
    empty = own.ops.moe_router(own.array(np.zeros((0, 4), np.float32)), 2, losses=True)
    assert [float(x) for x in empty[2:]] == [0.0, 0.0]


def chain(rows: Any, weights: Any) -> Any:
    """Adds k rows in increasing order with fused multiply-adds, of float32 in float64.

    A product of two 24-bit numbers is exact in float64; its sum with a third number is rounded to
    odd before it is rounded to float32.
    """
    total = (rows[0].astype(np.float64) * weights[0]).astype(np.float32)
    for row, weight in zip(rows[1:], weights[1:], strict=True):
        product, other = row.astype(np.float64) * weight, total.astype(np.float64)
        found = product + other
        back = found - product
        lost = (product - (found - back)) + (other - back)
        words = found.view(np.int64)
        is_even = (words & 1 == 0) & (lost != 0)
        step = np.where((lost > 0) == (found > 0), 1, -1)
        total = np.where(is_even, words + step, words).view(np.float64).astype(np.float32)
    return total


@each
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("tokens", "d", "experts", "k"), [(1, 1, 1, 1), (30, 17, 5, 3), (9, 33, 70, 20)]
)
def test_moves(
    dtype: str, tokens: int, d: int, experts: int, k: int, own: Any, rng: np.random.Generator
) -> None:
    x = drawn(rng, (tokens, d), dtype)
    columns = np.argsort(rng.random((tokens, experts)), -1)[:, :k].astype(np.int32)
    weights = rng.standard_normal((tokens, k)).astype(np.float32)
    rows, places, counts = own.ops.moe_permute(own.array(x), own.array(columns), experts)
    flat = columns.reshape(-1)
    expected = np.argsort(flat, kind="stable")
    same(own.numpy(rows), x[expected // k])
    assert np.asarray(counts).tolist() == np.bincount(flat, minlength=experts).tolist()
    assert np.array_equal(np.asarray(places).reshape(-1)[expected], np.arange(tokens * k))
    # The gradient of a token: its k rows in the order of its choices.
    g = drawn(rng, rows.shape, dtype)
    permute = lambda x: own.ops.moe_permute(x, own.array(columns), experts)[0]  # noqa: E731
    _, gradient = own.vjp(permute, [x], g)
    own_rows = g.astype(np.float32)[np.asarray(places)].swapaxes(0, 1)
    if k <= 16:
        same(gradient, chain(own_rows, np.ones(k)).astype(x.dtype))
    size = np.abs(own_rows).astype(np.float64).sum(0)
    error = np.abs(gradient.astype(np.float64) - own_rows.astype(np.float64).sum(0))
    assert np.all(error <= size * (2.0**-20 if dtype == "float32" else 2.0**-8))
    # The combination: a chain of fused multiply-adds.
    y = drawn(rng, rows.shape, dtype)
    combine = lambda y, w: own.ops.moe_combine(y, w, own.array(np.asarray(places)))  # noqa: E731
    cotangent = drawn(rng, (tokens, d), dtype)
    value, of_y, of_weights = own.vjp(combine, [y, weights], cotangent)
    parts = y.astype(np.float32)[np.asarray(places)].swapaxes(0, 1)
    same(value, chain(parts, weights.T[..., None].astype(np.float64)).astype(x.dtype))
    each_row = weights[..., None] * cotangent.astype(np.float32)[:, None]
    wanted = np.zeros(y.shape, np.float32)
    wanted[np.asarray(places)] = each_row
    same(of_y, wanted.astype(x.dtype))
    exact = np.einsum("ktd,td->tk", parts.astype(np.float64), cotangent.astype(np.float64))
    np.testing.assert_allclose(of_weights, exact, rtol=1e-4, atol=1e-4)


@each
def test_any_placement(own: Any, rng: np.random.Generator) -> None:
    """Other numbers of experts, and other tokens beside it, change no bit of a token's gradient."""
    tokens, d, experts, k = 25, 19, 7, 4
    x, g = (drawn(rng, (tokens, d), "float32") for _ in range(2))
    columns = np.argsort(rng.random((tokens, experts)), -1)[:, :k]
    weights = rng.standard_normal((tokens, k)).astype(np.float32)
    slopes = drawn(rng, (experts, d), "float32")

    def run(x: Any, columns: Any, weights: Any, g: Any, number: Any) -> Any:
        """Runs experts that multiply by their slopes; expert e has the number number[e]."""

        def model(x: Any, w: Any) -> Any:
            rows, places, _ = own.ops.moe_permute(x, own.array(number[columns]), experts)
            counts = np.bincount(number[columns].reshape(-1), minlength=experts)
            expert = np.repeat(np.argsort(number), counts)
            return own.ops.moe_combine(rows * own.array(slopes[expert]), w, places)

        return own.vjp(model, [x, weights], g)

    expected = run(x, columns, weights, g, np.arange(experts))
    for found, wanted in zip(
        run(x, columns, weights, g, rng.permutation(experts)), expected, strict=True
    ):
        same(found, wanted)
    part = slice(5, 12)
    alone = run(x[part], columns[part], weights[part], g[part], rng.permutation(experts))
    for found, wanted in zip(alone, expected, strict=True):
        same(found, wanted[part])


def test_derivatives_of_any_order() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    logits = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)

    def model(x: Any, logits: Any) -> Any:
        weights, columns, balance, z = bridge.torch.moe_router(
            logits, 2, score="sigmoid", scale=1.5, losses=True
        )
        rows, places, _ = bridge.torch.moe_permute(x, columns, 4)
        return bridge.torch.moe_combine(rows.sin(), weights, places), balance, z

    torch.autograd.gradcheck(model, (x, logits), check_forward_ad=True)
    torch.autograd.gradgradcheck(model, (x, logits))


def test_vmap_and_compile(rng: np.random.Generator) -> None:
    x, logits = drawn(rng, (3, 6, 5), "float32"), drawn(rng, (3, 6, 4), "float32")

    def model(ops: Any) -> Any:
        def run(x: Any, logits: Any) -> Any:
            weights, columns, balance, z = ops.moe_router(logits, 2, losses=True)
            rows, places, counts = ops.moe_permute(x, columns, 4)
            return ops.moe_combine(rows * 2, weights, places), counts, balance, z

        return run

    ours, theirs = model(bridge.torch), model(bridge.jax)
    tensors = torch.tensor(x), torch.tensor(logits)
    alone = [ours(*(each[i] for each in tensors)) for i in range(3)]
    expected = [torch.stack(each) for each in zip(*alone, strict=True)]
    for found in (torch.func.vmap(ours)(*tensors), jax.jit(jax.vmap(theirs))(x, logits)):
        for result, wanted in zip(found, expected, strict=True):
            assert np.array_equal(np.asarray(result), np.asarray(wanted))
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for result, wanted in zip(compiled(tensors[0][0], tensors[1][0]), alone[0], strict=True):
        assert torch.equal(result, wanted)


X, COLUMNS = np.zeros((2, 3), np.float32), np.zeros((2, 2), np.int32)
WRONG: list[Any] = [
    ("moe_router", (X, 4), {}, ValueError, "k is 4, expected an integer from 1 to 3"),
    ("moe_router", (X, 1), {"score": "relu"}, ValueError, "score is 'relu', expected one of"),
    ("moe_router", (X, 1), {"bias": X[0, :2]}, ValueError, r"bias has shape \[2\], expected \[3\]"),
    ("moe_router", (X, 1), {"scale": np.inf}, ValueError, "scale is inf"),
    ("moe_router", (X, 1), {"normalize": 1}, TypeError, "normalize is 1"),
    ("moe_router", (COLUMNS, 1), {}, TypeError, "logits has dtype int32"),
    ("moe_permute", (X, COLUMNS, 0), {}, ValueError, "experts is 0"),
    ("moe_permute", (X, COLUMNS + 4, 4), {}, ValueError, "columns has 4, expected numbers"),
    ("moe_permute", (X, COLUMNS[:1], 4), {}, ValueError, r"columns has shape \[1, 2\]"),
    ("moe_permute", (X, COLUMNS[:, :0], 4), {}, ValueError, r"columns has shape \[2, 0\]"),
    ("moe_permute", (X, X, 4), {}, TypeError, "columns has dtype float32"),
    ("moe_combine", (X, None, COLUMNS + 2), {}, ValueError, "places has 2, expected numbers"),
    ("moe_combine", (X, X, COLUMNS), {}, ValueError, r"weights has shape \[2, 3\]"),
    ("moe_combine", (X[None], None, COLUMNS), {}, ValueError, r"y has shape \[1, 2, 3\]"),
]


@each
@pytest.mark.parametrize(("name", "given", "options", "error", "words"), WRONG)
def test_wrong_arguments(
    own: Any, name: str, given: Any, options: Any, error: Any, words: str
) -> None:
    arrays = [own.array(each) if isinstance(each, np.ndarray) else each for each in given]
    options = {
        key: own.array(each) if isinstance(each, np.ndarray) else each
        for key, each in options.items()
    }
    with pytest.raises(error, match=f"{name}: {words}"):
        getattr(own.ops, name)(*arrays, **options)


@pytest.mark.parametrize("number", [2**32, -(2**32) + 1])
def test_numbers_of_64_bits_are_not_cut(number: int) -> None:
    """JAX keeps 32 bits of an integer while x64 is off: 2**32 would become the expert 0."""
    wide = np.array([[number], [1]])
    with pytest.raises(ValueError, match=f"moe_permute: columns has {number}, expected integers"):
        bridge.jax.moe_permute(X, wide, 2)
    with pytest.raises(ValueError, match=f"moe_combine: places has {number}, expected integers"):
        bridge.jax.moe_combine(X, None, wide)
