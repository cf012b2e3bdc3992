"""Matrix products have the same bits in both frameworks, with all derivatives and transforms."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge
from bridge.jax._adapter import products as in_jax
from bridge.ops.product import ProductParams
from bridge.torch._adapter import products as in_torch

DTYPES = ("float16", "bfloat16", "float32", "float64")
# Batches of a, of b, and m, n, k.
SHAPES = [
    ((), (), (1, 1, 1)),
    ((), (), (5, 33, 7)),
    ((), (), (3, 40, 600)),
    ((), (), (37, 29, 257)),
    ((4,), (4,), (6, 9, 31)),
    ((4,), (1,), (6, 9, 31)),
    ((2, 1), (1, 3), (5, 4, 300)),
    ((1, 3), (2, 3), (0, 4, 5)),
    ((2,), (2,), (3, 4, 0)),
]
FLAGS = list(itertools.product((False, True), repeat=2))


def drawn(rng: np.random.Generator, shape: Any, case: int) -> Any:
    """Returns operands in float64, the cotangent of the result among them."""
    a_batch, b_batch, (m, n, k) = shape
    transposed_a, transposed_b = FLAGS[case % 4]
    a = rng.standard_normal((*a_batch, *((k, m) if transposed_a else (m, k))))
    b = rng.standard_normal((*b_batch, *((n, k) if transposed_b else (k, n))))
    batch = np.broadcast_shapes(a_batch, b_batch)
    bias = rng.standard_normal(n) if case % 3 else None
    return a, b, bias, rng.standard_normal((*batch, m, n)), (transposed_a, transposed_b)


def reference(a: Any, b: Any, bias: Any, flags: tuple[bool, bool]) -> Any:
    left, right = (np.swapaxes(x, -1, -2) if f else x for x, f in zip((a, b), flags, strict=True))
    return left @ right + (0 if bias is None else bias)


def to_torch(x: Any, dtype: str) -> Any:
    return None if x is None else torch.tensor(x).to(getattr(torch, dtype))


def same(ours: torch.Tensor, theirs: jax.Array) -> None:
    moved = bridge.to_torch(jnp.asarray(theirs), copy=True)
    assert ours.dtype == moved.dtype
    assert ours.shape == moved.shape
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[ours.element_size()]
    assert torch.equal(ours.contiguous().view(kind), moved.contiguous().view(kind))


def close(ours: torch.Tensor, expected: Any, dtype: str) -> None:
    ulp = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6, "float64": 1e-14}[dtype]
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    assert ours.shape == np.shape(expected)
    np.testing.assert_allclose(ours.double().numpy(), expected, rtol=0, atol=4 * ulp * scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", range(len(SHAPES)))
@pytest.mark.parametrize("case", range(12))
def test_values_and_gradients(case: int, number: int, dtype: str, rng: np.random.Generator) -> None:
    a, b, bias, g, flags = drawn(rng, SHAPES[number], case)
    params = ProductParams(dtype, *flags)
    with jax.enable_x64(True):
        operands = [to_torch(x, dtype) for x in (a, b, bias)]
        present = [x.requires_grad_() for x in operands if x is not None]
        y = in_torch.product(*operands, params)
        gradients = torch.autograd.grad(y, present, to_torch(g, dtype))
        arrays = [bridge.to_jax(x.detach()) for x in present]

        def run(*arrays: Any) -> Any:
            padded = (*arrays, None)[:3]
            return in_jax.product(*padded, params)

        theirs, back = jax.vjp(jax.jit(run), *arrays)
        same(y.detach(), theirs)
        found = back(bridge.to_jax(to_torch(g, dtype)))
        for own, their in zip(gradients, found, strict=True):
            same(own, their)
    exact = [x.detach().double().numpy() for x in present]
    padded = (*exact, None)[:3]
    close(y.detach(), reference(*padded, flags), dtype)
    rounded = to_torch(g, dtype).double()
    wide = [x.detach().double().requires_grad_() for x in present]
    left, right = (x.mT if f else x for x, f in zip(wide, flags, strict=False))
    plain = left @ right + (wide[2] if len(wide) > 2 else 0)
    for own, expected in zip(gradients, torch.autograd.grad(plain, wide, rounded), strict=True):
        close(own, expected.numpy(), dtype)


@pytest.mark.parametrize("number", range(1, 7))
def test_forward_mode_and_second_derivatives(number: int, rng: np.random.Generator) -> None:
    a, b, bias, g, flags = drawn(rng, SHAPES[number], 3 * number + 1)
    operands = [to_torch(x, "float32") for x in (a, b, bias)]
    directions = [to_torch(rng.standard_normal(x.shape), "float32") for x in (a, b, bias)]
    params = ProductParams("float32", *flags)
    arrays, moves = ([bridge.to_jax(x) for x in each] for each in (operands, directions))
    y, dy = torch.func.jvp(
        lambda *x: in_torch.product(*x, params), tuple(operands), tuple(directions)
    )
    theirs = jax.jvp(lambda *x: in_jax.product(*x, params), arrays, moves)
    same(y, theirs[0])
    same(dy, theirs[1])
    weights = to_torch(g, "float32")

    def loss_in_torch(*x: Any) -> Any:
        return (in_torch.product(*x, params) * weights).sum()

    def loss_in_jax(*x: Any) -> Any:
        return (in_jax.product(*x, params) * bridge.to_jax(weights)).sum()

    def along(x: Any, y: Any) -> Any:
        return torch.func.jvp(torch.func.grad(loss_in_torch, argnums=(0, 1)), x, y)[1]

    found = along(tuple(operands), tuple(directions))
    expected = jax.jvp(jax.grad(loss_in_jax, argnums=(0, 1)), arrays, moves)[1]
    for own, their in zip(found, expected, strict=True):
        same(own, their)


@pytest.mark.parametrize("dims", list(itertools.product((None, 0, 1), repeat=3)))
def test_vmap(dims: tuple[int | None, ...], rng: np.random.Generator) -> None:
    if dims == (None, None, None):
        return
    shapes = ((6, 300), (300, 5), (5,))
    values = [
        rng.standard_normal(s if d is None else (*s[:d], 3, *s[d:]))
        for s, d in zip(shapes, dims, strict=True)
    ]
    operands = [to_torch(x, "float32") for x in values]
    params = ProductParams("float32")
    y = torch.func.vmap(lambda *x: in_torch.product(*x, params), dims)(*operands)
    theirs = jax.vmap(lambda *x: in_jax.product(*x, params), dims)(*map(bridge.to_jax, operands))
    same(y, theirs)
    for i in range(3):
        alone = [x if d is None else x.select(d, i) for x, d in zip(operands, dims, strict=True)]
        assert torch.equal(y[i], in_torch.product(*alone, params))


def test_rows_alone_have_the_bits_of_the_batch(rng: np.random.Generator) -> None:
    a, b = (to_torch(rng.standard_normal(s), "float32") for s in ((70, 3000), (3000, 90)))
    params = ProductParams("float32")
    whole = in_torch.product(a, b, None, params)
    for rows in (slice(0, 1), slice(3, 11), slice(20, 60)):
        assert torch.equal(in_torch.product(a[rows], b, None, params), whole[rows])
        across = in_torch.product(b.mT.contiguous(), a[rows].mT, None, params)
        assert torch.equal(across.mT, whole[rows])


def test_split_contractions_add_up(rng: np.random.Generator) -> None:
    """Parts of 256 * 2^n terms are subtrees of the whole sum."""
    a, b = (to_torch(rng.standard_normal(s), "float32") for s in ((9, 2048), (2048, 17)))
    params = ProductParams("float32")
    whole = in_torch.product(a, b, None, params)
    for parts in (2, 4, 8):
        sums = [
            in_torch.product(x, y, None, params)
            for x, y in zip(a.chunk(parts, 1), b.chunk(parts, 0), strict=True)
        ]
        while len(sums) > 1:
            sums = [x + y for x, y in zip(sums[::2], sums[1::2], strict=True)]
        assert torch.equal(sums[0], whole)


def test_compiled(rng: np.random.Generator) -> None:
    a, b = (to_torch(rng.standard_normal(s), "float32") for s in ((6, 300), (300, 5)))
    params = ProductParams("float32")

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return in_torch.product(x * 2, y, None, params) + 1

    a.requires_grad_()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(a, b), run(a, b))
    assert torch.equal(
        torch.autograd.grad(compiled(a, b).sum(), a)[0], torch.autograd.grad(run(a, b).sum(), a)[0]
    )


def test_shapes_that_do_not_fit() -> None:
    params = ProductParams("float32")
    for a, b in (((2, 3), (4, 5)), ((2, 2, 3), (3, 3, 5))):
        with pytest.raises(ValueError, match="do not fit each other"):
            in_torch.product(torch.zeros(a), torch.zeros(b), None, params)
        with pytest.raises(ValueError, match="do not fit each other"):
            in_jax.product(jnp.zeros(a), jnp.zeros(b), None, params)
