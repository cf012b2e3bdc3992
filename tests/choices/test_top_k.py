"""The largest numbers of each row: values, columns and derivatives, and all transformations."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import bridge.jax
import bridge.torch
from bridge import _native
from tests.choices.reference import drawn, order
from tests.frameworks import DTYPES, FRAMEWORKS, bits
from tests.isas import ISAS

each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)

SHAPES = [((1,), 1), ((2, 3), 2), ((5, 64), 64), ((3, 4, 65), 7), ((7, 1000), 40), ((2, 5000), 3)]


def same(found: Any, expected: Any) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert np.array_equal(bits(found), bits(expected))


def columns(own: Any, x: Any, k: int) -> Any:
    return np.asarray(own.ops.top_k(own.array(x), k)[1])


@each
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "k"), SHAPES)
@pytest.mark.parametrize("coarse", [False, True])
def test_values_and_derivatives(
    shape: Any, k: int, dtype: str, coarse: bool, own: Any, rng: np.random.Generator
) -> None:
    x, tangent, direction = (drawn(rng, shape, dtype, coarse) for _ in range(3))
    g = drawn(rng, (*shape[:-1], k), dtype)
    chosen = order(x)[..., :k]
    assert np.array_equal(columns(own, x, k), chosen)
    found = own.everything(lambda x: own.ops.top_k(x, k)[0], [x], g, [tangent], [direction])
    take = partial(np.take_along_axis, indices=chosen, axis=-1)
    spread = np.zeros_like(x)
    np.put_along_axis(spread, chosen, g, -1)
    same(found.value, take(x))
    same(found.tangent, take(tangent))
    same(found.gradients[0], spread + np.zeros_like(x))
    same(found.second[0], np.zeros_like(x))
    same(found.second[1], take(direction))


@each
@pytest.mark.parametrize("dtype", DTYPES)
def test_special_numbers(own: Any, dtype: str) -> None:
    """NaN of either sign is above +infinity; zeros are equal; denormals are not zero."""
    nan, inf = np.nan, np.inf
    rows = np.array([[0.0, nan, inf, -0.0, -nan, -inf, -1.0], [-0.0, 0.0, -inf, 0.0, -0.0, 1, 1]])
    x = rows.astype(drawn(np.random.default_rng(0), (1,), dtype).dtype)
    x[0, 4] = np.copysign(x[0, 4], -1)
    assert columns(own, x, 7).tolist() == [[1, 4, 2, 0, 3, 6, 5], [5, 6, 0, 1, 3, 4, 2]]
    if dtype == "float32":
        tiny = np.array([0.0, 1e-45, -1e-45, -0.0], np.float32)
        assert columns(own, tiny, 4).tolist() == [1, 0, 3, 2]
    assert order(x)[0].tolist() == [1, 4, 2, 0, 3, 6, 5]


def test_nan_ranks_as_in_torch() -> None:
    x = torch.tensor([1.0, torch.nan, torch.inf, 2.0])
    assert bridge.torch.top_k(x, 4)[1].tolist() == torch.topk(x, 4)[1].tolist() == [1, 2, 3, 0]


@each
def test_a_row_alone_and_instruction_sets(own: Any, rng: np.random.Generator) -> None:
    x = drawn(rng, (300, 400), "bfloat16", coarse=True)
    expected = order(x)[:, :9]
    before = torch.get_num_threads()
    try:
        for isa in ISAS:
            _native.set_cpu_isa(isa)
            for threads in (1, 3):
                torch.set_num_threads(threads)
                assert np.array_equal(columns(own, x, 9), expected)
        assert np.array_equal(columns(own, x[7], 9), expected[7])
        assert np.array_equal(columns(own, x.T[::2].T, 9), order(x.T[::2].T)[:, :9])
    finally:
        _native.set_cpu_isa(None)
        torch.set_num_threads(before)


@each
@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 5)])
def test_no_rows(own: Any, shape: Any) -> None:
    values, chosen = own.ops.top_k(own.array(np.zeros(shape, np.float32)), 2)
    assert tuple(values.shape) == tuple(chosen.shape) == (*shape[:-1], 2)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_vmap(dim: int, rng: np.random.Generator) -> None:
    x = drawn(rng, (3, 4, 6), "float32")
    expected = np.moveaxis(np.sort(np.moveaxis(x, dim, 0), -1)[..., ::-1][..., :2], 0, 0)
    for found in (
        torch.func.vmap(lambda x: bridge.torch.top_k(x, 2)[0], dim)(torch.tensor(x)),
        jax.jit(jax.vmap(lambda x: bridge.jax.top_k(x, 2)[0], dim))(x),
    ):
        same(found, expected)
    ours = torch.func.vmap(torch.func.grad(lambda x: bridge.torch.top_k(x, 2)[0].sum()), dim)
    theirs = jax.vmap(jax.grad(lambda x: bridge.jax.top_k(x, 2)[0].sum()), dim)
    same(ours(torch.tensor(x)), theirs(x))
    assert np.sum(theirs(x)) == {0: 3 * 4, 1: 4 * 3, 2: 6 * 3}[dim] * 2


def test_derivatives_of_any_order() -> None:
    x = torch.tensor([[0.3, -1.0, 2.0, 0.9], [1.1, 5.0, -3.0, 0.2]], dtype=torch.float64)

    def function(x: Any) -> Any:
        return bridge.torch.top_k(x, 2)[0].sin()

    x.requires_grad_()
    torch.autograd.gradcheck(function, x, check_forward_ad=True, check_batched_grad=True)
    torch.autograd.gradgradcheck(function, x, check_fwd_over_rev=True)
    cubed = lambda x: (bridge.jax.top_k(x, 2)[0] ** 3).sum()  # noqa: E731
    point = x.detach().numpy().astype(np.float32)
    hessian = jax.hessian(cubed)(point).reshape(8, 8)
    chosen = np.zeros((2, 4))
    np.put_along_axis(chosen, order(point)[:, :2], 1, -1)
    np.testing.assert_allclose(hessian, np.diag((6 * point * chosen).reshape(-1)), rtol=1e-6)


def test_compile_and_export(rng: np.random.Generator) -> None:
    x = torch.tensor(drawn(rng, (5, 30), "float32"), requires_grad=True)

    def function(x: Any) -> Any:
        values, chosen = bridge.torch.top_k(x, 4)
        return values * 2, chosen + 1

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(compiled(x), function(x), strict=True):
        same(ours.detach(), theirs.detach())
    same(
        torch.autograd.grad(compiled(x)[0].sum(), x)[0],
        torch.autograd.grad(function(x)[0].sum(), x)[0],
    )

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return function(x)

    exported = torch.export.export(Module(), (x.detach(),)).module()
    same(exported(x.detach())[1], function(x.detach())[1])
    allowed = [jax.export.DisabledSafetyCheck.custom_call("bridge_selection")]
    own = jnp.asarray(x.detach().numpy())
    stored = jax.export.export(jax.jit(lambda x: bridge.jax.top_k(x, 4)), disabled_checks=allowed)(
        own
    )
    same(stored.call(own)[1], bridge.jax.top_k(own, 4)[1])


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("split", [("a", None), ("a", "b"), (None, "a"), (("a", "b"), None)])
def test_split_rows(kind: Any, split: Any, rng: np.random.Generator) -> None:
    """Rows stay where they are; columns are gathered."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"), (kind,) * 2)
    x = drawn(rng, (8, 16), "float32", coarse=True)
    spec = PartitionSpec(*split)
    with jax.set_mesh(mesh):
        placed = jax.device_put(x, NamedSharding(mesh, spec))
        compiled = jax.jit(lambda x: bridge.jax.top_k(x, 3))
        values, chosen = compiled(placed)
        text = compiled.lower(placed).compile().as_text()
    same(chosen, order(x)[:, :3].astype(np.int32))
    same(values, np.take_along_axis(x, order(x)[:, :3], -1))
    if split[1] is None:
        assert "all-gather" not in text
        assert chosen.sharding.spec[0] == split[0]


def test_shard_map(rng: np.random.Generator) -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("a",))
    x = drawn(rng, (6, 9), "float32")
    spec = PartitionSpec("a")
    function = lambda x: bridge.jax.top_k(x, 2)  # noqa: E731
    values, _ = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec))(x)
    same(values, function(x)[0])
    total = lambda x: jax.shard_map(  # noqa: E731
        function, mesh=mesh, in_specs=spec, out_specs=spec
    )(x)[0].sum()
    same(jax.jit(jax.grad(total))(x), jax.grad(lambda x: function(x)[0].sum())(x))


@each
@pytest.mark.parametrize(
    ("x", "k", "error", "words"),
    [
        (np.zeros((2, 3), np.float32), 4, ValueError, r"k is 4, .* from 1 to 3, as there are 3"),
        (np.zeros((2, 99), np.float32), 65, ValueError, "k is 65, .* from 1 to 64"),
        (np.zeros((2, 3), np.float32), 0, ValueError, "k is 0"),
        (np.zeros((2, 3), np.float32), 1.5, TypeError, "k has type float"),
        (np.zeros((2, 3), np.float32), True, TypeError, "k has type bool"),
        (np.zeros((2, 0), np.float32), 1, ValueError, r"x has shape \[2, 0\]"),
        (np.zeros((), np.float32), 1, ValueError, "x is 0-dimensional"),
        (np.zeros((2, 3), np.int32), 1, TypeError, "x has dtype int32"),
    ],
)
def test_wrong_arguments(own: Any, x: Any, k: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=f"top_k: {words}"):
        own.ops.top_k(own.array(x), k)


def test_a_wrong_type() -> None:
    with pytest.raises(TypeError, match="top_k: x has type list"):
        bridge.torch.top_k([1.0], 1)
    with pytest.raises(TypeError, match="top_k: k is traced"):
        jax.jit(bridge.jax.top_k)(jnp.ones(3), 2)
