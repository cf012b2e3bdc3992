"""Embeddings under the transformations of both frameworks, and their errors."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental.jet import jet
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.test_util import check_grads

import bridge.jax
import bridge.torch
from bridge.ops.embedding import workspace_bytes
from tests.embedding.reference import drawn, drawn_ids, sums
from tests.frameworks import FRAMEWORKS, bits

each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)

N, D, COUNT = 7, 5, 90


def same(found: Any, expected: Any) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert np.array_equal(bits(found), bits(expected))


def operands(rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Returns ids, a table and a cotangent."""
    ids = drawn_ids(rng, (3, COUNT), N).astype(np.int32)
    return ids, drawn(rng, (N, D), "float32"), drawn(rng, (3, COUNT, D), "float32")


def in_torch(*arrays: Any) -> list[torch.Tensor]:
    return [torch.tensor(array) for array in arrays]


def gradient_in_torch(ids: Any, weight: Any, g: Any) -> Any:
    return torch.func.vjp(lambda w: bridge.torch.embedding(ids, w), weight)[1](g)[0]


def gradient_in_jax(ids: Any, weight: Any, g: Any) -> Any:
    return jax.vjp(lambda w: bridge.jax.embedding(ids, w), weight)[1](g)[0]


DIMS = [
    dims for dims in itertools.product((None, 0, 1), repeat=3) if any(d is not None for d in dims)
]


@pytest.mark.parametrize("dims", DIMS)
def test_vmap(dims: Any, rng: np.random.Generator) -> None:
    shapes = [(COUNT,), (N, D), (COUNT, D)]
    shapes = [s if d is None else (*s[:d], 4, *s[d:]) for s, d in zip(shapes, dims, strict=True)]
    ids = drawn_ids(rng, shapes[0], N)
    weight, g = (drawn(rng, shape, "float32") for shape in shapes[1:])
    given = [ids.astype(np.int32), weight, g]
    one_of = [lambda x, i, d=d: x if d is None else np.take(x, i, d) for d in dims]
    alone = [[take(x, i) for take, x in zip(one_of, given, strict=True)] for i in range(4)]
    gradients = np.stack([sums(own, own_ids, N) for own_ids, _, own in alone])
    same(torch.func.vmap(gradient_in_torch, dims)(*in_torch(*given)), gradients)
    same(jax.jit(jax.vmap(gradient_in_jax, dims))(*given), gradients)
    if dims[:2] == (None, None):
        return
    values = np.stack([own_weight[own_ids] for own_ids, own_weight, _ in alone])
    tensors = in_torch(*given)[:2]
    same(torch.func.vmap(bridge.torch.embedding, dims[:2])(*tensors), values)
    same(jax.vmap(bridge.jax.embedding, dims[:2])(*given[:2]), values)


def test_nested_vmap(rng: np.random.Generator) -> None:
    ids = drawn_ids(rng, (2, 3, COUNT), N).astype(np.int32)
    weight, g = drawn(rng, (3, N, D), "float32"), drawn(rng, (2, 3, COUNT, D), "float32")
    expected = np.stack([[sums(g[i, j], ids[i, j], N) for j in range(3)] for i in range(2)])
    nested = torch.func.vmap(torch.func.vmap(gradient_in_torch), (0, None, 0))
    same(nested(*in_torch(ids, weight, g)), expected)
    same(jax.vmap(jax.vmap(gradient_in_jax), (0, None, 0))(ids, weight, g), expected)


@each
def test_jacobians(own: Any, rng: np.random.Generator) -> None:
    """Forward over reverse, reverse over forward and batched tangents agree with the definition."""
    ids, weight, _ = operands(rng)
    ids = ids[0, :6]
    jacobian = np.zeros((6, D, N, D), np.float32)
    for position, column in itertools.product(range(6), range(D)):
        jacobian[position, column, ids[position], column] = 1
    library = torch.func if own.name == "torch" else jax
    function = lambda w: own.ops.embedding(own.array(ids), w)  # noqa: E731
    for transform in (library.jacrev, library.jacfwd):
        same(transform(function)(own.array(weight)), jacobian)
    cubed = lambda w: (function(w) ** 3).sum()  # noqa: E731
    hessians = [library.hessian(cubed), library.jacrev(library.jacrev(cubed))]
    expected = np.zeros((N, D, N, D))
    for position, column in itertools.product(range(6), range(D)):
        row = ids[position]
        expected[row, column, row, column] += 6 * float(weight[row, column])
    for hessian in hessians:
        np.testing.assert_allclose(hessian(own.array(weight)), expected, rtol=1e-5, atol=1e-5)


def test_derivatives_of_any_order() -> None:
    rng = np.random.default_rng(3)
    ids, weight = drawn_ids(rng, (8,), 3), rng.standard_normal((3, 2))
    tensor = torch.tensor(weight, requires_grad=True)

    def function(w: Any) -> Any:
        return bridge.torch.embedding(torch.tensor(ids), w).sin()

    torch.autograd.gradcheck(
        function,
        tensor,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )
    torch.autograd.gradgradcheck(function, tensor, check_fwd_over_rev=True, check_rev_over_rev=True)
    with jax.enable_x64(True):
        check_grads(lambda w: jnp.sin(bridge.jax.embedding(ids, w)), (weight,), 3)
        value, (second, third) = jet(
            lambda w: bridge.jax.embedding(ids, w), (weight,), ([weight * 2, weight * 3],)
        )
    same(value, weight[ids])
    np.testing.assert_allclose(second, weight[ids] * 2)
    np.testing.assert_allclose(third, weight[ids] * 3)


@each
def test_out_of_range(own: Any, rng: np.random.Generator) -> None:
    weight = own.array(drawn(rng, (N, D), "float32"))
    for wrong in (-1, N, 2**31 - 1, -(2**31)):
        ids = own.array(np.array([[0, wrong, 1]], np.int32))
        with pytest.raises(
            ValueError,
            match=rf"embedding: ids has {wrong}, expected numbers of rows, from 0 to {N - 1}",
        ):
            own.ops.embedding(ids, weight)
    with pytest.raises(ValueError, match="of which there are none"):
        own.ops.embedding(own.array(np.array([0])), own.array(np.zeros((0, 3), np.float32)))


UNSEEN = [-1, N, 2, -N, 2, 2**31 - 1, -(2**31)]


def check_unseen(value: Any, gradient: Any, tangent: Any, weight: Any, g: Any, ids: Any) -> None:
    value, is_row = np.asarray(value), (ids >= 0) & (ids < N)
    same(value[is_row], weight[ids[is_row]])
    assert np.isnan(value[~is_row]).all()
    same(gradient, sums(g, ids, N))
    same(tangent, np.where(is_row[:, None], weight[np.where(is_row, ids, 0)], np.float32(0)))


def test_out_of_range_in_a_trace(rng: np.random.Generator) -> None:
    """An id that nobody could check gives a row of NaN, which has no gradient; it does not wrap."""
    ids = np.array(UNSEEN, np.int32)
    weight, g = drawn(rng, (N, D), "float32"), drawn(rng, (len(ids), D), "float32")
    traced = jax.jit(bridge.jax.embedding)
    tangent = jax.jit(lambda i, w: jax.jvp(lambda x: bridge.jax.embedding(i, x), (w,), (w,))[1])
    gradient = jax.jit(gradient_in_jax)(ids, weight, g)
    check_unseen(traced(ids, weight), gradient, tangent(ids, weight), weight, g, ids)
    batched = jax.vmap(bridge.jax.embedding, (0, None))(ids[None], weight)
    check_unseen(batched[0], gradient, tangent(ids, weight), weight, g, ids)
    tables = jax.vmap(bridge.jax.embedding)(np.stack([ids, ids]), np.stack([weight, weight]))
    check_unseen(tables[1], gradient, tangent(ids, weight), weight, g, ids)
    assert np.isnan(traced(ids, np.zeros((0, 2), np.float32))).all()

    tensors = in_torch(ids, weight, g)
    one = torch.func.vmap(bridge.torch.embedding, (0, None))(tensors[0][None], tensors[1])[0]
    two = torch.func.vmap(bridge.torch.embedding)(
        torch.stack([tensors[0]] * 2), torch.stack([tensors[1]] * 2)
    )[1]
    found = torch.func.vmap(gradient_in_torch, (0, None, 0))(
        tensors[0][None], tensors[1], tensors[2][None]
    )[0]
    moved = torch.func.vmap(
        lambda i: torch.func.jvp(
            lambda w: bridge.torch.embedding(i, w), (tensors[1],), (tensors[1],)
        )[1]
    )(tensors[0][None])[0]
    for value in (one, two):
        check_unseen(value, found, moved, weight, g, ids)


def test_compiled(rng: np.random.Generator) -> None:
    ids, weight, g = in_torch(*operands(rng))
    weight.requires_grad_()

    def run(ids: Any, w: Any) -> Any:
        return bridge.torch.embedding(ids, w * 2) + 1

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for part in (ids, ids[:2], ids[:, :50]):
        y, expected = compiled(part, weight), run(part, weight)
        assert torch.equal(y, expected)
        cotangent = g[: part.shape[0], : part.shape[1]]
        found = torch.autograd.grad(y, weight, cotangent)[0]
        assert torch.equal(found, torch.autograd.grad(expected, weight, cotangent)[0])
    beyond = compiled(torch.full((2, 50), N), weight)
    assert beyond.isnan().all()


class _Model(torch.nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return bridge.torch.embedding(ids, self.weight)


def test_exported_and_meta(rng: np.random.Generator) -> None:
    ids, weight, _ = in_torch(*operands(rng))
    count = torch.export.Dim("count", min=2, max=500)
    program = torch.export.export(_Model(weight), (ids,), dynamic_shapes=({1: count},))
    for part in (ids, ids[:, :30]):
        assert torch.equal(program.module()(part), weight[part])
    meta = bridge.torch.embedding(ids.to("meta"), weight.to("meta"))
    assert meta.is_meta
    assert meta.shape == (*ids.shape, D)


def test_scan_and_remat(rng: np.random.Generator) -> None:
    ids, weight, g = operands(rng)

    def loss(w: Any) -> Any:
        def step(total: Any, each: Any) -> Any:
            return total + jnp.sum(bridge.jax.embedding(each[0], w) * each[1]), None

        return jax.lax.scan(jax.checkpoint(step), jnp.float32(0), (ids, g))[0]

    found = jax.jit(jax.grad(loss))(weight)
    parts = [sums(g[i], ids[i], N) for i in range(3)]  # scan adds them up from the last
    same(found, (parts[2] + parts[1]) + parts[0])


def test_sharded(rng: np.random.Generator) -> None:
    """Under jit XLA gathers split arrays for the gradient, which keeps its bits."""
    ids, weight, g = (x[:2] if i != 1 else x for i, x in enumerate(operands(rng)))
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    split = NamedSharding(mesh, PartitionSpec("data"))
    on_mesh = [jax.device_put(x, split) for x in (ids, g)]
    table = jax.device_put(weight, NamedSharding(mesh, PartitionSpec()))
    same(jax.jit(bridge.jax.embedding)(on_mesh[0], table), weight[ids])
    same(jax.jit(gradient_in_jax)(on_mesh[0], table, on_mesh[1]), sums(g, ids, N))


def test_inside_shard_map(rng: np.random.Generator) -> None:
    """Each device has its positions; the gradient of a replicated table is added over devices."""
    ids, weight, g = (x[:2] if i != 1 else x for i, x in enumerate(operands(rng)))
    mesh, spec = Mesh(np.array(jax.devices()[:2]), ("data",)), PartitionSpec("data")
    run = jax.shard_map(
        bridge.jax.embedding, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec
    )
    same(jax.jit(run)(ids, weight), weight[ids])
    found = jax.jit(lambda i, w, c: jax.vjp(lambda x: run(i, x), w)[1](c)[0])(ids, weight, g)
    same(found, sums(g[0], ids[0], N) + sums(g[1], ids[1], N))


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_exported_from_jax(platform: str, rng: np.random.Generator) -> None:
    """A symbolic number of positions; for CUDA the call has its workspace."""
    ids, weight, g = operands(rng)
    (count,) = jax.export.symbolic_shape("count")
    given = (
        jax.ShapeDtypeStruct((count,), jnp.int32),
        jax.ShapeDtypeStruct(weight.shape, weight.dtype),
        jax.ShapeDtypeStruct((count, D), g.dtype),
    )
    checks = [jax.export.DisabledSafetyCheck.custom_call("bridge_embedding_gradient")]
    exported = jax.export.export(
        jax.jit(gradient_in_jax), platforms=[platform], disabled_checks=checks
    )(*given)
    assert "bridge_embedding_gradient" in exported.mlir_module()
    if platform == "cpu":
        same(exported.call(ids[0], weight, g[0]), sums(g[0], ids[0], N))


def test_size_of_the_workspace(rng: np.random.Generator) -> None:
    """The size is at least the one that bridge.h states, and a multiple of nothing larger."""
    for batch, count, rows, cols in rng.integers(1, 300, (50, 4)).tolist():
        for dtype, size in (("bfloat16", 4), ("float32", 4), ("float64", 8)):
            stated = -(-batch * (rows + 1) * 8 // 16) * 16
            stated += batch * 2 * -(-count // 128) * cols * size
            assert 0 <= workspace_bytes(batch, count, rows, cols, dtype) - stated <= 16


@each
def test_bad_arguments(own: Any) -> None:
    embedding, ids = own.ops.embedding, own.array(np.array([0, 1]))
    weight = own.array(np.zeros((3, 2), np.float32))
    for wrong_ids in (np.array([0.0]), np.array([True])):
        with pytest.raises(
            TypeError, match=f"embedding: ids has dtype {wrong_ids.dtype.name}, expected one of"
        ):
            embedding(own.array(wrong_ids), weight)
    with pytest.raises(TypeError, match="embedding: weight has dtype int32, expected one of"):
        embedding(ids, own.array(np.zeros((3, 2), np.int32)))
    for shape in ((3,), (2, 3, 4)):
        with pytest.raises(ValueError, match=r"embedding: weight has shape \[.*\], expected two"):
            embedding(ids, own.array(np.zeros(shape, np.float32)))
    with pytest.raises(TypeError, match="embedding: ids has type list, expected"):
        embedding([0, 1], weight)
    with pytest.raises(TypeError, match="embedding: weight has type str, expected"):
        embedding(ids, "weight")


def test_devices_that_differ() -> None:
    with pytest.raises(ValueError, match="embedding: weight is on meta, expected cpu"):
        bridge.torch.embedding(torch.tensor([0]), torch.zeros(2, 2, device="meta"))
