"""`all_gather` under torch's transforms, wrappers and compilers, in one process of several."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import forward_ad

import bridge.torch as bt
from tests.distributed.gather_checks import numbers, parts_of, together
from tests.distributed.processes import Place
from tools.own_process import bytes_sent

_SHAPE = (2, 3)


def _everyones(place: Place, seed: int, shape: tuple[int, ...] = _SHAPE) -> list[Tensor]:
    return [numbers(seed + rank, shape) for rank in range(place.world_size)]


def forward_mode(place: Place, dim: int, tiled: bool) -> None:
    """The tangent is the gathered tangents under every rule, in torch.func and in dual numbers."""
    xs, ts = _everyones(place, 0), _everyones(place, 10)
    for rule in ("sum", "local", "mean"):

        def f(x: Tensor, rule: str = rule) -> Tensor:
            return bt.all_gather(x, dim=dim, tiled=tiled, grad=rule)

        y, dy = torch.func.jvp(f, (xs[place.rank],), (ts[place.rank],))
        assert torch.equal(y, together(xs, dim, tiled))
        assert torch.equal(dy, together(ts, dim, tiled))
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(xs[place.rank], ts[place.rank])
            y, dy = forward_ad.unpack_dual(f(dual))
        assert torch.equal(dy, together(ts, dim, tiled))


def mixed_modes(place: Place) -> None:
    """Modes are combined in three orders, forward and reverse, for a loss of all ranks."""
    world, rank = place.world_size, place.rank
    xs, ts = _everyones(place, 0), _everyones(place, 10)

    def loss(x: Tensor) -> Tensor:
        return bt.all_gather(x).pow(3).sum()

    # Every rank has the same loss of all x; with "sum" the gradient counts it W times.
    gradient = torch.func.grad(loss)
    x, t = xs[rank], ts[rank]
    assert torch.allclose(gradient(x), world * 3 * x**2)
    _, forward_over_reverse = torch.func.jvp(gradient, (x,), (t,))
    assert torch.allclose(forward_over_reverse, world * 6 * x * t)
    reverse_over_reverse = torch.func.grad(lambda x: (gradient(x) * t).sum())(x)
    assert torch.allclose(reverse_over_reverse, world * 6 * x * t)
    directional = torch.func.grad(lambda x: torch.func.jvp(loss, (x,), (t,))[1])
    assert torch.allclose(directional(x), world * 6 * x * t)

    def second(x: Tensor) -> Tensor:
        return torch.func.jvp(lambda x: torch.func.jvp(loss, (x,), (t,))[1], (x,), (t,))[1]

    expected = torch.stack([(6 * x * t**2).sum() for x, t in zip(xs, ts, strict=True)]).sum()
    assert torch.allclose(second(x), expected)


def vjp_of_func(place: Place) -> None:
    xs, gs = _everyones(place, 0), _everyones(place, 20, (place.world_size * 2, 3))
    _, pull = torch.func.vjp(bt.all_gather, xs[place.rank])
    (dx,) = pull(gs[place.rank])
    parts = [parts_of(g, 0, True, place.world_size)[place.rank] for g in gs]
    assert torch.allclose(dx, torch.stack(parts).sum(0))


def vmapped(place: Place, in_dim: int, dim: int, tiled: bool) -> None:
    """vmap gathers each example, and so do its gradient and tangent."""
    world, rank = place.world_size, place.rank
    shape = list(_SHAPE)
    shape.insert(in_dim, 4)
    xs = _everyones(place, 0, tuple(shape))

    def f(x: Tensor) -> Tensor:
        return bt.all_gather(x, dim=dim, tiled=tiled)

    y = torch.func.vmap(f, in_dims=in_dim)(xs[rank])
    examples = [
        together([x.select(in_dim, i) for x in xs], dim, tiled) for i in range(shape[in_dim])
    ]
    assert torch.equal(y, torch.stack(examples))
    per_example = torch.func.vmap(torch.func.grad(lambda x: f(x).pow(2).sum()), in_dims=in_dim)
    dx = per_example(xs[rank])
    assert torch.allclose(dx, (2 * world * xs[rank]).movedim(in_dim, 0))
    _, dy = torch.func.jvp(torch.func.vmap(f, in_dims=in_dim), (xs[rank],), (xs[rank],))
    assert torch.equal(dy, y)
    jacobian = torch.func.jacrev(lambda x: bt.all_gather(x, grad="local"))(xs[rank][0, 0])
    size = xs[rank][0, 0].numel()
    expected = torch.zeros(world * size, size, dtype=jacobian.dtype)
    expected[rank * size : (rank + 1) * size] = torch.eye(size)
    assert torch.equal(jacobian, expected)


def gradients_in_batches(place: Place) -> None:
    """is_grads_batched: one backward pass has several cotangents."""
    world, rank = place.world_size, place.rank
    for rule in ("sum", "local", "mean"):
        x = numbers(rank, (2, 3)).requires_grad_()
        y = bt.all_gather(x, grad=rule)
        gs = [numbers(30 + r, (5, *y.shape)) for r in range(world)]
        (batched,) = torch.autograd.grad(y, x, gs[rank], is_grads_batched=True, retain_graph=True)
        single = [torch.autograd.grad(y, x, g, retain_graph=True)[0] for g in gs[rank]]
        assert torch.equal(batched, torch.stack(single))


def gradcheck(place: Place) -> None:
    """Numerical derivatives, if they exist: for "local" with other ranks' inputs fixed."""
    if place.world_size > 1:
        return
    for rule in ("sum", "local", "mean"):
        for tiled in (True, False):
            f = _gather_of(1, tiled, rule)
            x = numbers(0, (2, 3)).requires_grad_()
            torch.autograd.gradcheck(f, x, check_forward_ad=True, check_batched_grad=True)
            torch.autograd.gradgradcheck(f, x)


def _gather_of(dim: int, tiled: bool, rule: str) -> Any:
    return lambda x: bt.all_gather(x, dim=dim, tiled=tiled, grad=rule)


def compiled(place: Place, backend: str, rule: str, dim: int, tiled: bool) -> None:
    """torch.compile(fullgraph=True) gives the same numbers, forward and backward."""
    group = dist.group.WORLD

    def loss(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = bt.all_gather(x * 2, dim=dim, group=group, tiled=tiled, grad=rule)
        return (y * w).sum(), y

    def run(f: Any) -> tuple[Tensor, Tensor]:
        x = numbers(place.rank, _SHAPE, torch.float32).requires_grad_()
        shape = together([x] * place.world_size, dim, tiled).shape
        w = numbers(60 + place.rank, tuple(shape), torch.float32)
        value, y = f(x, w)
        value.backward()
        assert x.grad is not None
        return y.detach(), x.grad

    torch._dynamo.reset()
    expected = run(loss)
    found = run(torch.compile(loss, fullgraph=True, backend=backend))
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-6)


def compiled_with_mesh(place: Place) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (place.world_size,), mesh_dim_names=("data",))
    torch._dynamo.reset()
    f = torch.compile(
        lambda x: bt.all_gather(x, group=(mesh, "data")), fullgraph=True, backend="aot_eager"
    )
    xs = _everyones(place, 0)
    assert torch.equal(f(xs[place.rank]), torch.cat(xs))


def compiled_transform(place: Place) -> None:
    """A transform of torch.func inside a compiled function."""
    torch._dynamo.reset()
    xs, ts = _everyones(place, 0), _everyones(place, 10)
    x, t = xs[place.rank], ts[place.rank]

    def loss(x: Tensor) -> Tensor:
        return bt.all_gather(x).pow(3).sum()

    grad = torch.compile(torch.func.grad(loss), fullgraph=True, backend="aot_eager")
    assert torch.allclose(grad(x), place.world_size * 3 * x**2)
    jvp = torch.compile(
        lambda x, t: torch.func.jvp(bt.all_gather, (x,), (t,))[1],
        fullgraph=True,
        backend="aot_eager",
    )
    assert torch.equal(jvp(x, t), torch.cat(ts))


def asynchronous(place: Place) -> None:
    world, rank = place.world_size, place.rank
    xs = _everyones(place, 0)
    for rule in ("sum", "local", "mean"):
        x = xs[rank].clone().requires_grad_()
        first = bt.all_gather(x, grad=rule, async_op=True)
        second = bt.all_gather(x * 2, dim=1, tiled=False, grad=rule, async_op=True)
        busy = (x * 3).sum()
        b, a = second.wait(), first.wait()
        assert first.wait() is a
        assert torch.equal(a, torch.cat(xs))
        assert torch.equal(b, torch.stack([2 * x for x in xs], 1))
        (a.sum() + b.sum() + busy).backward()
        assert x.grad is not None
        factor = world if rule == "sum" else 1
        assert torch.allclose(x.grad, torch.full_like(x, 3.0 * factor + 3.0))
    _, dy = torch.func.jvp(
        lambda x: bt.all_gather(x, async_op=True).wait(), (xs[rank],), (xs[rank],)
    )
    assert torch.equal(dy, torch.cat(xs))


def local_sends_nothing(place: Place) -> tuple[int, int, int]:
    """Returns the bytes sent backward under "local" and "sum", and forward."""
    x = torch.ones(1 << 16, requires_grad=True)
    sent = {}
    for rule in ("local", "sum"):
        dist.barrier()
        before = bytes_sent()
        y = bt.all_gather(x, grad=rule)
        dist.barrier()
        between = bytes_sent()
        y.sum().backward()
        sent[rule] = bytes_sent() - between
        dist.barrier()
        forward = between - before
    return sent["local"], sent["sum"], forward


def checkpointed(place: Place) -> None:
    from torch.utils.checkpoint import checkpoint

    xs = _everyones(place, 0)
    x = xs[place.rank].clone().requires_grad_()
    y = checkpoint(lambda x: bt.all_gather(x).pow(3), x, use_reentrant=False)
    y.sum().backward()
    assert torch.allclose(x.grad, place.world_size * 3 * x.detach() ** 2)


def under_ddp(place: Place) -> None:
    """DDP averages: "sum" gives the gradient of the mean loss, as in one process with all rows."""
    rank = place.rank
    batches = _everyones(place, 0, (4, 3))

    def model() -> torch.nn.Module:
        layer = torch.nn.Linear(3, 5, dtype=torch.float64)
        with torch.no_grad():
            for i, parameter in enumerate(layer.parameters()):
                parameter.copy_(numbers(40 + i, tuple(parameter.shape)))
        return layer

    def loss(mine: Tensor, everyones: Tensor) -> Tensor:
        return (mine @ everyones.T).pow(2).mean()

    whole = model()
    features = whole(torch.cat(batches))
    loss(features, features).backward()
    parallel = torch.nn.parallel.DistributedDataParallel(model())
    mine = parallel(batches[rank])
    loss(mine, bt.all_gather(mine, grad="sum")).backward()
    for a, b in zip(whole.parameters(), parallel.module.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad)


def under_fsdp(place: Place) -> None:
    from torch.distributed.fsdp import fully_shard

    rank = place.rank
    batches = _everyones(place, 0, (4, 3))

    def model() -> torch.nn.Module:
        layers = torch.nn.Sequential(
            torch.nn.Linear(3, 8, dtype=torch.float64),
            torch.nn.Linear(8, 5, dtype=torch.float64),
        )
        with torch.no_grad():
            for i, parameter in enumerate(layers.parameters()):
                parameter.copy_(numbers(40 + i, tuple(parameter.shape)))
        return layers

    whole = model()
    features = whole(torch.cat(batches))
    (features @ features.T).pow(2).mean().backward()
    sharded = model()
    for layer in sharded:
        fully_shard(layer)
    fully_shard(sharded)
    mine = sharded(batches[rank])
    (mine @ bt.all_gather(mine).T).pow(2).mean().backward()
    for a, b in zip(whole.parameters(), sharded.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad.full_tensor())


def traced(place: Place) -> None:
    """Fake tensors, make_fx and torch.export see torch's own collective, and nothing is sent."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    with FakeTensorMode():
        for shape in ((2, 3), (1 << 10, 1 << 10)):
            y = bt.all_gather(torch.ones(shape), dim=1)
            assert y.shape == (shape[0], place.world_size * shape[1])
    for shape in ((2, 3), (1 << 10, 1 << 9)):
        xs = _everyones(place, 0, shape)
        x = xs[place.rank]
        graph = make_fx(lambda x: bt.all_gather(x))(x)
        if place.world_size > 1:
            assert "all_gather_into_tensor" in graph.code
        assert torch.equal(graph(x), torch.cat(xs))

    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return bt.all_gather(x, dim=1)

    x = xs[place.rank]
    assert torch.equal(torch.export.export(Module(), (x,)).module()(x), torch.cat(xs, 1))


def collective_tensors(place: Place) -> None:
    """The gather waits for the unfinished result of another collective."""
    import torch.distributed._functional_collectives as functional

    x = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    y = bt.all_gather(x)
    assert torch.equal(y, torch.full((3 * place.world_size,), float(place.world_size)))


def compiled_asynchronously(place: Place) -> None:
    """A handle in a compiled function: inductor sees the collective and its wait separately."""

    def f(x: Tensor) -> Tensor:
        gathering = bt.all_gather(x * 2, async_op=True)
        busy = x.sin().sum()
        return gathering.wait() * busy

    torch._dynamo.reset()
    xs = _everyones(place, 0)
    x, y = (xs[place.rank].clone().requires_grad_() for _ in range(2))
    found = torch.compile(f, fullgraph=True, backend="aot_eager")(x)
    expected = f(y)
    assert torch.allclose(found, expected)
    found.sum().backward()
    expected.sum().backward()
    assert torch.allclose(x.grad, y.grad)


def compiled_drop_in(place: Place) -> None:
    from types import SimpleNamespace

    from bridge.torch.towhee import AllGather

    args = SimpleNamespace(world_size=place.world_size, local_rank=place.rank)
    torch._dynamo.reset()
    f = torch.compile(lambda x: AllGather.apply(x, args), fullgraph=True, backend="aot_eager")
    xs = _everyones(place, 0)
    x = xs[place.rank].clone().requires_grad_()
    y = f(x)
    assert torch.equal(y, torch.cat(xs))
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    _, dy = torch.func.jvp(lambda x: AllGather.apply(x, args), (x.detach(),), (x.detach(),))
    assert torch.equal(dy, torch.cat(xs))
