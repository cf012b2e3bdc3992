"""Attention under the transforms of both frameworks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import bridge.jax
import bridge.torch
from tests.attention.reference import SMOOTH, close, drawn, everything_torch, same, tensors_of

FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "causal": ({"causal": True}, {}),
    "all": (
        {"causal": True, "window": 9, "softcap": 2.0, "scale": 0.4},
        {"has_sink": True, "queries": 55},
    ),
    "chunks": ({"causal": True}, {"batch": (1,), "heads": 2, "key_heads": 1, "queries": 300}),
}


class Drawn:
    """Operands, directions and cotangent of a form, with functions of the operands."""

    def __init__(self, form: str, rng: np.random.Generator, dtype: str = "float32") -> None:
        self.options, sizes = FORMS[form]
        self.tensors = tensors_of(drawn(rng, **sizes), dtype)
        self.names = [name for name in SMOOTH if name in self.tensors]
        self.operands = tuple(self.tensors[name] for name in self.names)
        self.g = self.tensors["g"]
        self.directions = tuple(
            torch.tensor(rng.standard_normal(x.shape)).to(x.dtype) for x in self.operands
        )

    def in_torch(self, q: Any, k: Any, v: Any, sink: Any = None) -> torch.Tensor:
        return bridge.torch.attention(q, k, v, sink=sink, **self.options)

    def in_jax(self, q: Any, k: Any, v: Any, sink: Any = None) -> jax.Array:
        return bridge.jax.attention(q, k, v, sink=sink, **self.options)

    def loss_in_torch(self, *operands: Any) -> torch.Tensor:
        return (self.in_torch(*operands) * self.g).sum()

    def loss_in_jax(self, *operands: Any) -> jax.Array:
        return (self.in_jax(*operands) * bridge.to_jax(self.g)).sum()

    @property
    def arrays(self) -> tuple[jax.Array, ...]:
        return tuple(map(bridge.to_jax, self.operands))

    @property
    def moves(self) -> tuple[jax.Array, ...]:
        return tuple(map(bridge.to_jax, self.directions))

    @property
    def places(self) -> tuple[int, ...]:
        return tuple(range(len(self.operands)))


@pytest.mark.parametrize("form", FORMS)
def test_forward_mode(form: str, rng: np.random.Generator) -> None:
    case = Drawn(form, rng)
    y, dy = torch.func.jvp(case.in_torch, case.operands, case.directions)
    theirs = jax.jvp(jax.jit(case.in_jax), case.arrays, case.moves)
    same(y, theirs[0])
    same(dy, theirs[1])
    same(y, case.in_torch(*case.operands))
    ends = [
        case.in_torch(
            *[
                x.double() + e * d.double()
                for x, d in zip(case.operands, case.directions, strict=True)
            ]
        )
        for e in (1e-4, -1e-4)
    ]
    close(dy, ((ends[0] - ends[1]) / 2e-4).numpy(), "float32", 4)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_torch_func_are_those_of_autograd(form: str, rng: np.random.Generator) -> None:
    case = Drawn(form, rng)
    found = torch.func.grad(case.loss_in_torch, argnums=case.places)(*case.operands)
    expected = everything_torch(case.tensors, **case.options)
    for name, own in zip(case.names, found, strict=True):
        same(own, expected[name])


@pytest.mark.parametrize("form", FORMS)
def test_second_derivatives(form: str, rng: np.random.Generator) -> None:
    """Forward over reverse and reverse over reverse agree, and the frameworks with each other."""
    case = Drawn(form, rng)
    gradient = torch.func.grad(case.loss_in_torch, argnums=case.places)
    gradient_in_jax = jax.grad(case.loss_in_jax, argnums=case.places)
    along = torch.func.jvp(gradient, case.operands, case.directions)[1]
    their_along = jax.jvp(jax.jit(gradient_in_jax), case.arrays, case.moves)[1]

    def turned(*operands: Any) -> Any:
        pairs = zip(gradient_in_jax(*operands), case.moves, strict=True)
        return sum((x * d).sum() for x, d in pairs)

    smooth = [x.clone().requires_grad_() for x in case.operands]
    first = torch.autograd.grad(case.loss_in_torch(*smooth), smooth, create_graph=True)
    total = sum((x * d).sum() for x, d in zip(first, case.directions, strict=True))
    twice = torch.autograd.grad(total, smooth)
    their_twice = jax.jit(jax.grad(turned, argnums=case.places))(*case.arrays)
    for own, theirs, second, their_second in zip(
        along, their_along, twice, their_twice, strict=True
    ):
        same(own, theirs)
        close(second, own.double().numpy(), "float32", 4)
        close(bridge.to_torch(their_second), own.double().numpy(), "float32", 4)


def test_against_finite_differences(rng: np.random.Generator) -> None:
    case = Drawn("all", rng, "float64")
    small = [x[..., :1, :2, :3, :].clone() for x in case.operands[:1]]
    small += [x[..., :1, :1, :4, :].clone() for x in case.operands[1:3]]
    smooth = [x.requires_grad_() for x in (*small, case.operands[3][:2].clone())]
    options = {"check_batched_grad": True, "check_forward_ad": True}
    assert torch.autograd.gradcheck(case.in_torch, smooth, **options)
    assert torch.autograd.gradgradcheck(case.in_torch, smooth, check_fwd_over_rev=True)


@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, 1), (2, 1, 0)])
def test_vmap(dims: tuple[Any, ...], rng: np.random.Generator) -> None:
    shapes = ((2, 4, 7, 8), (2, 2, 9, 8), (2, 2, 9, 6))
    values = [
        torch.tensor(
            rng.standard_normal(s if d is None else (*s[:d], 3, *s[d:])), dtype=torch.float32
        )
        for s, d in zip(shapes, dims, strict=True)
    ]
    mask = torch.tensor(rng.random((3, 7, 9)) < 0.3)
    arrays = [bridge.to_jax(x) for x in (*values, mask)]

    def run(q: Any, k: Any, v: Any, m: Any) -> Any:
        return bridge.torch.attention(q, k, v, mask=m, sink=0.1)

    def loss(*operands: Any) -> Any:
        return run(*operands).square().sum()

    def run_in_jax(q: Any, k: Any, v: Any, m: Any) -> Any:
        return bridge.jax.attention(q, k, v, mask=m, sink=0.1)

    y = torch.func.vmap(run, (*dims, 0))(*values, mask)
    same(y, jax.jit(jax.vmap(run_in_jax, (*dims, 0)))(*arrays))
    gradients = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)), (*dims, 0))(*values, mask)
    theirs = jax.vmap(
        jax.grad(lambda *x: jnp.square(run_in_jax(*x)).sum(), argnums=(0, 1, 2)), (*dims, 0)
    )(*arrays)
    for i in range(3):
        alone = [x if d is None else x.select(d, i) for x, d in zip(values, dims, strict=True)]
        same(y[i], run(*alone, mask[i]))
        smooth = [x.detach().clone().requires_grad_() for x in alone]
        for own, x in zip(
            gradients, torch.autograd.grad(loss(*smooth, mask[i]), smooth), strict=True
        ):
            same(own[i], x)
    for own, their in zip(gradients, theirs, strict=True):
        close(own, np.asarray(their), "float32")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_compiled(form: str, dynamic: bool, rng: np.random.Generator) -> None:
    case = Drawn(form, rng)

    def loss(*operands: Any) -> torch.Tensor:
        return (case.in_torch(*operands) * case.g).sum()

    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    smooth = [x.clone().requires_grad_() for x in case.operands]
    found = torch.autograd.grad(compiled(*smooth), smooth)
    expected = everything_torch(case.tensors, **case.options)
    for name, own in zip(case.names, found, strict=True):
        same(own, expected[name])


def test_traces_hold_one_op(rng: np.random.Generator) -> None:
    case = Drawn("chunks", rng)
    y = case.in_torch(*case.operands)
    graph = make_fx(lambda q, k, v: case.in_torch(q, k, v))(*case.operands)
    assert sum(n.op == "call_function" for n in graph.graph.nodes) == 1
    same(graph(*case.operands), y)

    class Model(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return case.in_torch(q, k, v)

    exported = torch.export.export(Model(), case.operands)
    same(exported.module()(*case.operands), y)


def test_the_op_keeps_the_rules_of_torch(rng: np.random.Generator) -> None:
    case = Drawn("causal", rng)
    smooth = [x.clone().requires_grad_() for x in case.operands]
    numbers = (0.3, 0.0, True, 0, 0)
    torch.library.opcheck(torch.ops.bridge.attention.default, (*smooth, None, None, *numbers))
    given = (case.g, *case.operands, None, None, *numbers, [True, False, True, False])
    torch.library.opcheck(torch.ops.bridge.attention_backward.default, given)


def test_gradients_in_batches(rng: np.random.Generator) -> None:
    case = Drawn("causal", rng)
    q = case.operands[0].clone().requires_grad_()
    many = torch.tensor(rng.standard_normal((3, *case.g.shape)), dtype=torch.float32)
    y = case.in_torch(q, *case.operands[1:])
    (found,) = torch.autograd.grad(y, q, many, is_grads_batched=True, retain_graph=True)
    for own, g in zip(found, many, strict=True):
        same(own, torch.autograd.grad(y, q, g, retain_graph=True)[0])


def test_the_backward_pass_stores_the_operands_alone(rng: np.random.Generator) -> None:
    case = Drawn("chunks", rng)
    smooth = [x.clone().requires_grad_() for x in case.operands]
    stored: list[torch.Tensor] = []

    def store(x: torch.Tensor) -> torch.Tensor:
        stored.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(store, lambda x: x):
        y = case.in_torch(*smooth)
    assert {x.data_ptr() for x in stored} <= {x.data_ptr() for x in (*smooth, y)}
    residuals = jax.tree.leaves(jax.vjp(case.in_jax, *case.arrays)[1])
    sizes = [x.size for x in residuals]
    assert max(sizes) <= max(x.size for x in case.arrays)


def test_memory_in_jax_is_that_of_a_chunk() -> None:
    """The chunks of 16 have as much memory as one, besides sums that wait for their neighbour."""

    def used(queries: int) -> int:
        q = jax.ShapeDtypeStruct((1, queries, 16), jnp.float32)
        k = jax.ShapeDtypeStruct((1, 4096, 16), jnp.float32)
        run = jax.grad(lambda *x: bridge.jax.attention(*x).sum(), argnums=(0, 1, 2))
        return jax.jit(run).lower(q, k, k).compile().memory_analysis().temp_size_in_bytes  # type: ignore[no-any-return]

    scores = 512 * 4096 * 4
    assert used(8192) < used(512) + 1.5 * scores


def test_jit_scan_and_checkpoint(rng: np.random.Generator) -> None:
    case = Drawn("causal", rng)
    y = case.in_torch(*case.operands)
    over_batch = jax.lax.scan(lambda c, x: (c, case.in_jax(*x)), 0, case.arrays)[1]
    same(y, over_batch)
    run = jax.jit(jax.grad(jax.checkpoint(case.loss_in_jax), argnums=case.places))
    expected = everything_torch(case.tensors, **case.options)
    for name, own in zip(case.names, run(*case.arrays), strict=True):
        same(expected[name], own)


def test_shard_map(rng: np.random.Generator) -> None:
    """Batches and heads may be split over devices."""
    case = Drawn("chunks", rng)
    tensors = tensors_of(drawn(rng, batch=(2,)), "float32")
    arrays = [tensors[name].numpy() for name in ("q", "k", "v")]
    mesh = jax.make_mesh((2, 2), ("b", "h"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spec = jax.sharding.PartitionSpec("b", "h")
    split = jax.shard_map(case.in_jax, mesh=mesh, in_specs=spec, out_specs=spec)
    expected = everything_torch(tensors, **case.options)
    same(expected["y"], jax.jit(split)(*arrays))
    back = jax.jit(lambda *x: jax.vjp(split, *x)[1](jnp.asarray(tensors["g"].numpy())))
    for name, own in zip(("q", "k", "v"), back(*arrays), strict=True):
        same(expected[name], own)


def test_sharded_jit(rng: np.random.Generator) -> None:
    """XLA keeps batches and heads on their devices, and sends nothing."""
    case = Drawn("chunks", rng)
    tensors = tensors_of(drawn(rng, batch=(2,)), "float32")
    mesh = jax.make_mesh((2, 2), ("b", "h"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("b", "h"))
    arrays = [jax.device_put(tensors[name].numpy(), split) for name in ("q", "k", "v", "g")]

    def run(q: Any, k: Any, v: Any, g: Any) -> Any:
        y, back = jax.vjp(case.in_jax, q, k, v)
        return y, *back(g)

    compiled = jax.jit(run).lower(*arrays).compile()
    assert not [
        word for word in ("all-", "collective", "reduce-scatter") if word in compiled.as_text()
    ]
    expected = everything_torch(tensors, **case.options)
    for name, own in zip(("y", "q", "k", "v"), compiled(*arrays), strict=True):
        same(expected[name], own)


@pytest.mark.parametrize("window", [None, 70])
def test_a_symbolic_graph_holds_for_any_number_of_rows(window: Any) -> None:
    """Forward mode inside a graph runs the parts one by one: no row may be left out."""

    def tangent(q: Any, k: Any, v: Any) -> Any:
        def run(q: Any, k: Any, v: Any) -> Any:
            return bridge.torch.attention(q, k, v, causal=True, window=window)

        return torch.func.jvp(run, (q, k, v), (q, k, v))[1]

    def operands(length: int) -> list[torch.Tensor]:
        return [torch.randn(1, 2, length, 8) for _ in range(3)]

    graph = make_fx(tangent, tracing_mode="symbolic")(*operands(300))
    for length in (300, 700, 20):
        given = operands(length)
        same(graph(*given), tangent(*given))
