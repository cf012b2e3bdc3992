"""`matmul`, `linear` and `dot_general` in both frameworks."""

from __future__ import annotations

from functools import partial
from typing import Any

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge.jax as bj
import bridge.torch as bt
from bridge.jax._adapter import products as in_jax
from bridge.ops.product import ProductParams
from bridge.torch._adapter import products as in_torch
from tests.products.test_products import DTYPES, close, same, to_torch

# numpy.matmul takes operands of these shapes.
SHAPES = [
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((2, 300), (300, 5)),
    ((4, 2, 3), (3, 5)),
    ((4, 2, 3), (3,)),
    ((3,), (4, 3, 5)),
    ((2, 3), (4, 3, 5)),
    ((2, 1, 5, 3), (4, 3, 2)),
    ((0, 3), (3, 2)),
    ((2, 0), (0, 3)),
    ((5, 0, 3), (3, 2)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_matmul(shapes: Any, dtype: str, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal(shape) for shape in shapes)
    expected = np.matmul(a, b)
    g = rng.standard_normal(expected.shape)
    x, y = (to_torch(each, dtype).requires_grad_() for each in (a, b))
    made = bt.matmul(x, y)
    gradients = torch.autograd.grad(made, [x, y], to_torch(g, dtype))
    close(made.detach(), expected, dtype)
    with jax.enable_x64(True):
        theirs, pull = jax.vjp(bj.matmul, jnp.asarray(a, dtype), jnp.asarray(b, dtype))
        same(made.detach(), theirs)
        for ours, other in zip(gradients, pull(jnp.asarray(g, dtype)), strict=True):
            same(ours, other)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (0, 5), (2, 2, 3, 300)], ids=str)
@pytest.mark.parametrize("dtypes", [("float32",) * 3, ("bfloat16", "float32", "bfloat16")])
def test_linear(dtypes: Any, shape: Any, has_bias: bool, rng: np.random.Generator) -> None:
    given = [rng.standard_normal(s) for s in (shape, (7, shape[-1]), (7,))][: 2 + has_bias]
    ours = [to_torch(x, d).requires_grad_() for x, d in zip(given, dtypes, strict=False)]
    theirs = [jnp.asarray(x, d) for x, d in zip(given, dtypes, strict=False)]
    y = bt.linear(*ours)
    rounded = [x.detach().double().numpy() for x in ours]
    close(y.detach(), rounded[0] @ rounded[1].T + (rounded[2] if has_bias else 0), "float32")
    g = rng.standard_normal(y.shape)
    z, pull = jax.vjp(bj.linear, *theirs)
    same(y.detach(), z)
    gradients = torch.autograd.grad(y, ours, to_torch(g, "float32"))
    for one, two in zip(gradients, pull(jnp.asarray(g, "float32")), strict=True):
        same(one, two)


def test_rows_alone_have_the_bits_of_the_batch(rng: np.random.Generator) -> None:
    x, w = to_torch(rng.standard_normal((9, 4, 700)), "float32"), torch.randn(33, 700)
    whole = bt.linear(x, w)
    for i, j in ((0, 0), (3, 2), (8, 3)):
        assert torch.equal(bt.linear(x[i, j], w), whole[i, j])
        assert torch.equal(bt.matmul(x[i, j : j + 1], w.T)[0], whole[i, j])


def test_linear_module_is_torchs() -> None:
    torch.manual_seed(0)
    original = torch.nn.Linear(40, 9)
    torch.manual_seed(0)
    ours = bt.Linear(40, 9)
    assert ours.state_dict().keys() == original.state_dict().keys()
    assert torch.equal(ours.weight, original.weight)
    x = torch.randn(3, 40)
    torch.testing.assert_close(ours(x), original(x))
    assert torch.equal(ours(x), bt.linear(x, ours.weight, ours.bias))
    assert bt.Linear(4, 3, bias=False)(x[:, :4]).shape == (3, 3)


def test_compiled_and_exported(rng: np.random.Generator) -> None:
    layer, x = bt.Linear(20, 6), torch.randn(5, 3, 20, requires_grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = layer(x)
        return bt.matmul(y, y.mT).sum(0)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert torch.equal(f(x), compiled(x))
    assert torch.equal(*(torch.autograd.grad(h(x).sum(), x)[0] for h in (f, compiled)))
    exported = torch.export.export(layer, (x.detach(),)).module()
    assert torch.equal(exported(x), layer(x))


def test_transforms_of_jax(rng: np.random.Generator) -> None:
    a, b = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((6, 4, 30), (30, 5)))
    whole = bj.matmul(a, b)
    for other in (
        jax.jit(bj.matmul)(a, b),
        jax.vmap(bj.matmul, (0, None))(a, b),
        jax.lax.scan(lambda c, x: (c, bj.matmul(x, b)), 0, a)[1],
        jax.checkpoint(bj.matmul)(a, b),  # type: ignore[attr-defined]
    ):
        np.testing.assert_array_equal(np.asarray(whole), np.asarray(other))


def test_memory_that_is_not_aligned(rng: np.random.Generator) -> None:
    def unaligned(*shape: int) -> torch.Tensor:
        raw = np.zeros(4 * int(np.prod(shape)) + 8, np.uint8)
        found = torch.from_numpy(raw[1 : 1 + 4 * int(np.prod(shape))].view(np.float32))
        return found.view(*shape).copy_(to_torch(rng.standard_normal(shape), "float32"))

    x, w, bias = unaligned(4, 6), unaligned(3, 6), unaligned(3)
    assert all(t.data_ptr() % 4 for t in (x, w, bias))
    assert torch.equal(bt.linear(x, w, bias), bt.linear(x.clone(), w.clone(), bias.clone()))
    assert torch.equal(bt.matmul(x, w.T), bt.matmul(x.clone(), w.clone().T))


def test_autocast_casts_the_operands() -> None:
    x, w = torch.randn(4, 16), torch.randn(3, 16)
    with torch.autocast("cpu", torch.bfloat16):
        y, z = bt.linear(x, w), bt.matmul(x, w.T)
    assert y.dtype == z.dtype == torch.bfloat16
    assert torch.equal(y, bt.linear(x.bfloat16(), w.bfloat16()))


NUMBERS = [
    ((4, 5), (5, 6), (((1,), (0,)), ((), ()))),
    ((4, 5), (6, 5), (((1,), (1,)), ((), ()))),
    ((5, 4), (5, 6), (((0,), (0,)), ((), ()))),
    ((2, 3, 5), (5, 6), (((2,), (0,)), ((), ()))),
    ((2, 3, 5), (2, 5, 6), (((2,), (1,)), ((0,), (0,)))),
    ((3, 2, 5), (6, 5, 2), (((2,), (1,)), ((1,), (2,)))),
    ((3, 4, 5, 2), (5, 4, 7), (((1, 2), (1, 0)), ((), ()))),
    ((3, 4), (5, 6), (((), ()), ((), ()))),
    ((4,), (4,), (((0,), (0,)), ((), ()))),
    ((2, 3, 4, 5), (3, 2, 5, 6), (((3,), (2,)), ((0, 1), (1, 0)))),
]


@pytest.mark.parametrize("case", NUMBERS, ids=lambda case: str(case[2]))
def test_dot_general(case: Any, rng: np.random.Generator) -> None:
    a, b = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in case[:2])
    ours = bj.dot_general(a, b, case[2])
    expected = jax.lax.dot_general(a, b, case[2], jax.lax.Precision.HIGHEST)
    assert ours.shape == expected.shape
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
    for place in (0, 1):
        made, wanted = (
            jax.grad(lambda *x, f=f: f(*x, case[2]).sum(), place)(a, b)
            for f in (bj.dot_general, jax.lax.dot_general)
        )
        np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)


def test_dot_general_in_layers(rng: np.random.Generator) -> None:
    x = jnp.asarray(rng.standard_normal((2, 3, 40)), jnp.float32)
    layer = nnx.Linear(40, 7, rngs=nnx.Rngs(0), dot_general=bj.dot_general)
    np.testing.assert_array_equal(layer(x), bj.matmul(x, layer.kernel[...]) + layer.bias[...])
    y = jnp.einsum("abi,aci->abc", x, x, _dot_general=bj.dot_general)
    np.testing.assert_allclose(y, np.einsum("abi,aci->abc", x, x), rtol=1e-5, atol=1e-5)
    half = x.astype(jnp.bfloat16)
    wide = bj.dot_general(
        half, half, (((2,), (2,)), ((0,), (0,))), preferred_element_type="float32"
    )
    assert wide.dtype == jnp.float32
    ids = jnp.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(bj.dot_general(ids, ids, (((1,), (1,)), ((), ()))), ids @ ids.T)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 40])
def test_zeros_are_absent(rows: int, transposed: bool, rng: np.random.Generator) -> None:
    terms, cols = 900, 21
    a = np.tril(rng.standard_normal((rows, terms)), terms - rows - 200)
    a[:, 5] = 0
    a[::2, 7] = 0  # a term that some rows have
    b = rng.standard_normal((terms, cols))
    expected = a @ b
    b[5], b[7], b[terms - 100 :] = np.nan, np.nan, np.inf
    params = ProductParams("float32", transposed, False, skips_zeros=True)
    if transposed:
        a = np.ascontiguousarray(a.T)
    ours = in_torch.product(to_torch(a, "float32"), to_torch(b, "float32"), None, params)
    close(ours[::2], expected[::2], "float32")
    assert ours[1::2].isnan().all()
    same(ours, in_jax.product(jnp.asarray(a, "float32"), jnp.asarray(b, "float32"), None, params))


def test_zeros_are_absent_from_gradients(rng: np.random.Generator) -> None:
    a, b, g = (rng.standard_normal(s) for s in ((12, 300), (300, 7), (12, 7)))
    a[:, 100:] = 0
    b[100:] = np.nan
    a[3], g[3] = 0, 0
    expected = a.T @ g
    g[3] = np.nan  # all terms of this row are absent
    for transposed_b in (False, True):
        params = ProductParams("float32", False, transposed_b, skips_zeros=True)
        given = b.T if transposed_b else b
        x, y = to_torch(a, "float32"), to_torch(given, "float32").requires_grad_()
        made = torch.autograd.grad(in_torch.product(x, y, None, params), y, to_torch(g, "float32"))
        close(made[0], expected.T if transposed_b else expected, "float32")
        _, pull = jax.vjp(
            partial(in_jax.product, jnp.asarray(a, "float32"), bias=None, params=params),
            jnp.asarray(given, "float32"),
        )
        same(made[0], pull(jnp.asarray(g, "float32"))[0])


@pytest.mark.parametrize(
    ("function", "given", "words"),
    [
        ("matmul", [(2, 3), (4, 5)], r"matmul: a has shape \[2, 3\] and b \[4, 5\], expected"),
        ("matmul", [(2, 2, 3), (3, 3, 5)], "batches that broadcast"),
        ("matmul", [(), (3,)], "matmul: a has no dimensions, expected at least one"),
        ("linear", [(2, 3), (4, 5)], r"linear: x has shape \[2, 3\], expected 5 in the last"),
        ("linear", [(2, 3), (3,)], r"linear: weight has shape \[3\], expected \[out, in\]"),
        ("linear", [(2, 3), (4, 3), (3,)], r"linear: bias has shape \[3\], expected \[4\]"),
    ],
)
def test_shapes_that_do_not_fit(function: str, given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        getattr(bt, function)(*(torch.zeros(s) for s in given))
    with pytest.raises(ValueError, match=words):
        getattr(bj, function)(*(jnp.zeros(s) for s in given))


def test_other_bad_input() -> None:
    x = np.zeros((2, 2), np.float32)
    for module, made in ((bt, torch.tensor(x)), (bj, jnp.asarray(x))):
        with pytest.raises(ValueError, match="matmul: bits is 'fast', expected one of 'portable'"):
            module.matmul(made, made, bits="fast")
        with pytest.raises(ValueError, match="matmul: bits is 1, expected"):
            module.matmul(made, made, bits=1)
    with pytest.raises(TypeError, match="matmul: b has dtype int64, expected one of float16"):
        bt.matmul(torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match="matmul: b has dtype int32"):
        bj.matmul(jnp.zeros((2, 2)), jnp.zeros((2, 2), jnp.int32))
    with pytest.raises(TypeError, match="linear: x has type list"):
        bt.linear([1.0], torch.zeros(1, 1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dot_general: dimension_numbers"):
        bj.dot_general(jnp.zeros(2), jnp.zeros(2), (((0, 0), (0, 0)), ((), ())))
    with pytest.raises(ValueError, match="dot_general: lhs has shape"):
        bj.dot_general(jnp.zeros(2), jnp.zeros(3), (((0,), (0,)), ((), ())))
