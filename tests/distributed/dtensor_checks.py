"""The ops on DTensors against the same ops on the whole tensors, in one process of several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import implicit_replication

import bridge
import bridge.torch as bt
from tests.distributed.gather_checks import numbers, same_bits
from tests.distributed.group_checks import raises
from tests.distributed.processes import Place
from tests.lang import declarations

Function = Callable[..., Tensor]

# [rows, columns] of split arrays: whole leaves of the row tree on each of up to four ranks.
_SHAPE = (4, 48, 8)


_rms_norm, _swish_gate = bridge.op(declarations.rms_norm), bridge.op(declarations.swish_gate)


@bridge.op
def _tabled(x: bridge.Full, table: bridge.Table) -> Any:
    return x * table + bridge.lang.mean(x)


def _functions() -> dict[str, tuple[Function, list[tuple[int, ...]]]]:
    """Returns each op as a function of floating tensors, and the shapes of these."""
    mask = numbers(77, (4, 1, 8)) > 0.5
    masks: dict[Any, Tensor] = {}  # cached, so that only the op itself communicates

    def like(x: Tensor) -> Tensor:
        key = getattr(x, "placements", None)
        if key not in masks:
            masks[key] = _like(mask, x)
        return masks[key]

    row, packed = (_SHAPE[-1],), (*_SHAPE[:-1], 2 * _SHAPE[-1])
    return {
        "bias_gelu": (lambda x, b: bt.bias_gelu(x, b), [_SHAPE, row]),
        "bias_gelu exact": (lambda x: bt.bias_gelu(x, approximate="none"), [_SHAPE]),
        "dropout": (
            lambda x, b, r: bt.bias_dropout_add(x, b, r, p=0.4, seed=5, offset=3),
            [_SHAPE, row, _SHAPE],
        ),
        "no dropout": (
            lambda x, b, r: bt.bias_dropout_add(x, b, r, training=False),
            [_SHAPE, row, _SHAPE],
        ),
        "softmax": (lambda x: bt.scaled_softmax(x, 0.7), [_SHAPE]),
        "masked": (lambda x: bt.scaled_masked_softmax(x, like(x), 0.7), [_SHAPE]),
        "norm": (_rms_norm, [_SHAPE, row]),
        "halves": (_swish_gate, [packed, row]),
        "packed": (lambda x, b: bt.swiglu(x, None, b), [packed, (2 * _SHAPE[-1],)]),
        "interleaved": (lambda x: bt.geglu(x, interleaved=True), [packed]),
        "blocks": (lambda x: bt.swiglu(x, blocks=4), [packed]),
        "table": (_tabled, [_SHAPE, (_SHAPE[-2], 1)]),
        "causal": (lambda x: bt.scaled_causal_softmax(x, 0.7), [(4, 8, 8)]),
    }


def _like(mask: Tensor, x: Tensor) -> Tensor:
    if isinstance(x, DTensor):
        return distribute_tensor(mask, x.device_mesh, [Replicate()] * x.device_mesh.ndim)
    return mask


def _mesh(place: Place, shape: tuple[int, ...]) -> Any:
    names = ("data", "model")[: len(shape)]
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def whole(x: Tensor) -> Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def as_unsharded(
    place: Place, mesh: tuple[int, ...], dims: tuple[int | None, ...], dtype: str, names: list[str]
) -> None:
    """Forward, gradients and second derivatives have the bits of the whole tensors.

    `dims` has, for each dimension of the mesh, the dimension of the arrays that it splits, or None.
    """
    device_mesh = _mesh(place, mesh)
    placements = [Replicate() if dim is None else Shard(dim) for dim in dims]
    replicated = [Replicate()] * len(mesh)
    functions = _functions()
    for name in names:
        function, shapes = functions[name]
        values = [numbers(i, shape, getattr(torch, dtype)) for i, shape in enumerate(shapes)]
        upstream = numbers(20, tuple(function(*values).shape), getattr(torch, dtype))

        def derivatives(xs: list[Tensor], g: Tensor, f: Function = function) -> list[Tensor]:
            xs = [x.detach().requires_grad_() for x in xs]
            g = g.detach().requires_grad_()
            y = f(*xs)
            firsts = torch.autograd.grad(y, xs, g, create_graph=True)
            (second,) = torch.autograd.grad(firsts[0], g, upstream_like(firsts[0]))
            return [y, *firsts, second]

        def upstream_like(x: Tensor) -> Tensor:
            flat = numbers(21, tuple(x.shape), x.dtype)
            return distribute_tensor(flat, device_mesh, placements) if _is_spread(x) else flat

        expected = derivatives(values, upstream)
        spread = [
            distribute_tensor(v, device_mesh, placements if v.ndim == 3 else replicated)
            for v in values
        ]
        found = derivatives(spread, distribute_tensor(upstream, device_mesh, placements))
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert isinstance(a, DTensor), (name, i)
            assert same_bits(whole(a), b), (name, i, (whole(a) - b).abs().max())


def _is_spread(x: Tensor) -> bool:
    return isinstance(x, DTensor)


def communication(place: Place) -> dict[str, Any]:
    """Returns the collectives of each op, forward and backward, for each split dimension."""
    device_mesh = _mesh(place, (place.world_size,))
    counts = {}
    for name, (function, shapes) in _functions().items():
        for dim in range(3):
            xs = [
                distribute_tensor(
                    numbers(i, shape), device_mesh, [Shard(dim) if len(shape) == 3 else Replicate()]
                ).requires_grad_()
                for i, shape in enumerate(shapes)
            ]
            function(*xs)
            with CommDebugMode() as forward:
                y = function(*xs)
            g = torch.ones_like(y.detach())
            with CommDebugMode() as backward:
                torch.autograd.grad(y, xs, g)
            counts[f"{name} {dim}"] = (forward.get_total_counts(), backward.get_total_counts())
    return counts


def partial_and_uneven(place: Place) -> None:
    """Partial tensors are first summed; unevenly split tensors are gathered."""
    mesh = _mesh(place, (place.world_size,))
    x = numbers(0, (5, 7))
    expected = bt.bias_gelu(x)
    assert same_bits(bt.bias_gelu(distribute_tensor(x, mesh, [Shard(0)])).full_tensor(), expected)
    parts = numbers(place.rank, (5, 7))
    total = DTensor.from_local(parts, mesh, [Partial()], run_check=False)
    summed = total.full_tensor()
    assert same_bits(bt.bias_gelu(total).full_tensor(), bt.bias_gelu(summed))
    both = bt.bias_dropout_add(
        total, None, distribute_tensor(numbers(9, (5, 7)), mesh, [Replicate()]), p=0.5, seed=1
    )
    assert same_bits(
        both.full_tensor(), bt.bias_dropout_add(summed, None, numbers(9, (5, 7)), p=0.5, seed=1)
    )


def without_rows(place: Place) -> None:
    """Sums over the rows of empty tensors are zeros, whatever dimension is split."""
    mesh = _mesh(place, (place.world_size,))
    for shape, dim in (((4, 0, 8), 0), ((0, 4, 8), 1), ((0, 4, 8), 2)):
        for f in (bt.bias_gelu, lambda x, b: bt.bias_dropout_add(x, b, p=0.4, seed=5)):
            x = distribute_tensor(torch.ones(shape), mesh, [Shard(dim)])
            bias = distribute_tensor(torch.ones(8), mesh, [Replicate()]).requires_grad_()
            y = f(x, bias)
            y.sum().backward()
            assert y.shape == shape
            assert same_bits(bias.grad.full_tensor(), torch.zeros(8))


def column_parallel(place: Place) -> None:
    """x and the bias are split over the last dimension, as in tensor parallelism."""
    mesh = _mesh(place, (place.world_size,))
    x, bias = numbers(0, (6, 12), torch.float32), numbers(1, (12,), torch.float32)
    spread = [distribute_tensor(v, mesh, [Shard(v.ndim - 1)]).requires_grad_() for v in (x, bias)]
    g = distribute_tensor(x, mesh, [Shard(1)])
    with CommDebugMode() as seen:
        bt.bias_gelu(*spread).backward(g)
    assert seen.get_total_counts() == 0
    bt.bias_gelu(x.requires_grad_(), bias.requires_grad_()).backward(x.detach())
    assert same_bits(spread[0].grad.full_tensor(), x.grad)
    assert same_bits(spread[1].grad.full_tensor(), bias.grad)


def drawn_seeds(place: Place) -> None:
    """If no seed is given, all processes use the first one's, so that the whole has one mask."""
    torch.manual_seed(place.rank)
    mesh = _mesh(place, (place.world_size,))
    ones = torch.ones(8, 64)
    y = bt.bias_dropout_add(distribute_tensor(ones, mesh, [Shard(0)]), p=0.5).full_tensor()
    torch.manual_seed(0)
    assert same_bits(y, bt.bias_dropout_add(ones, p=0.5))
    replicated = bt.bias_dropout_add(distribute_tensor(ones, mesh, [Replicate()]), p=0.5)
    everyones = bt.all_gather(replicated.to_local(), tiled=False)
    assert all(same_bits(one, everyones[0]) for one in everyones)


def seeds_of_others(place: Place) -> None:
    """If x is plain and the residual a DTensor, the drawn seed is the first process's too."""
    mesh, ones = _mesh(place, (place.world_size,)), torch.ones(8, 64)
    residual = distribute_tensor(ones, mesh, [Shard(0)])
    for drawn in (False, True):  # from the default generator, or from a given one
        torch.manual_seed(place.rank)
        given = torch.Generator().manual_seed(place.rank) if drawn else None
        y = bt.bias_dropout_add(ones, None, residual, p=0.5, seed=given).full_tensor()
        torch.manual_seed(0)
        first = torch.Generator().manual_seed(0) if drawn else None
        assert same_bits(y, bt.bias_dropout_add(ones, None, ones, p=0.5, seed=first))


def reductions_of_losses(place: Place) -> None:
    """The losses have no rows, or rows split over a later dimension; compiled too."""
    mesh = _mesh(place, (place.world_size,))
    for shape, split in (((0, 4, 8), 0), ((4, 0, 8), 0), ((3, 4, 8), 1)):
        x = numbers(0, shape, torch.float32)
        labels = torch.zeros(shape[:-1], dtype=torch.int64)
        for reduction in ("mean", "sum"):

            def loss(x: Tensor, labels: Tensor, reduction: str = reduction) -> Tensor:
                return bt.cross_entropy(x, labels, reduction=reduction)

            whole = x.clone().requires_grad_()
            expected = loss(whole, labels)
            expected.backward()
            torch._dynamo.reset()
            compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
            for f in (loss, compiled) if x.numel() else (loss,):
                spread = distribute_tensor(x, mesh, [Shard(split)]).requires_grad_()
                found = f(spread, distribute_tensor(labels, mesh, [Replicate()]))
                found.backward()
                assert same_bits(found.full_tensor(), expected.detach()), (shape, reduction)
                assert same_bits(spread.grad.full_tensor(), whole.grad), (shape, reduction)


def errors(place: Place) -> None:
    mesh, other = _mesh(place, (place.world_size,)), init_device_mesh("cpu", (1, place.world_size))
    x = distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])
    residual = distribute_tensor(torch.ones(4, 2), other, [Replicate(), Shard(0)])
    with raises(ValueError, "expected one mesh"):
        bt.bias_dropout_add(x, None, residual, p=0.5, seed=1)
    with raises(TypeError, "DTensor.*redistribute"):
        bt.all_gather(x)
    plain, weight = torch.ones(4, 2), distribute_tensor(torch.ones(2), mesh, [Replicate()])
    with raises(TypeError, "^rms_norm: x is a plain tensor and weight a DTensor, expected"):
        bt.rms_norm(plain, weight)
    with raises(TypeError, "^bias_gelu: x is a plain tensor and bias a DTensor, expected"):
        bt.bias_gelu(plain, weight)
    with implicit_replication():
        y = bt.bias_gelu(plain, weight).full_tensor()
    assert same_bits(y, bt.bias_gelu(plain, torch.ones(2)))


def compiled(place: Place) -> None:
    mesh = _mesh(place, (place.world_size,))
    x, bias = numbers(0, (32, 8), torch.float32), numbers(1, (8,), torch.float32)

    def f(x: Tensor, bias: Tensor) -> Tensor:
        return bt.bias_dropout_add(bt.bias_gelu(x, bias), p=0.5, seed=3)

    def run(f: Function) -> list[Tensor]:
        xs = [
            distribute_tensor(v, mesh, [p]).requires_grad_()
            for v, p in ((x, Shard(0)), (bias, Replicate()))
        ]
        y = f(*xs)
        y.backward(torch.ones_like(y.detach()))
        return [y.full_tensor(), *(x.grad.full_tensor() for x in xs)]

    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for a, b in zip(run(compiled), run(f), strict=True):
        assert same_bits(a, b)


def embedding(place: Place) -> None:
    """Ids and table are gathered, whichever of them is split; gradients have their placements."""
    mesh = _mesh(place, (place.world_size,))
    ids = torch.arange(32).reshape(8, 4) * 5 % 12
    weight, g = numbers(0, (12, 6)), numbers(1, (8, 4, 6))

    def derivatives(ids: Tensor, weight: Tensor, g: Tensor) -> list[Tensor]:
        leaf, cotangent = weight.detach().requires_grad_(), g.detach().requires_grad_()
        y = bt.embedding(ids, leaf)
        (first,) = torch.autograd.grad(y, leaf, cotangent, create_graph=True)
        return [y, first, *torch.autograd.grad(first, cotangent, weight)]

    expected = derivatives(ids, weight, g)
    for placements in ((Shard(0), Replicate()), (Shard(1), Shard(0)), (Replicate(), Shard(1))):
        spread = [
            distribute_tensor(x, mesh, [p]) for x, p in zip((ids, weight), placements, strict=True)
        ]
        found = derivatives(*spread, distribute_tensor(g, mesh, [Shard(0)]))
        assert found[1].placements == spread[1].placements
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert isinstance(a, DTensor)
            assert same_bits(whole(a), b), (placements, i)
    on_all = distribute_tensor(weight, mesh, [Replicate()])
    with raises(TypeError, "ids is a plain tensor and weight a DTensor"):
        bt.embedding(ids, on_all)


def selections(place: Place) -> None:
    """Rows that are split stay where they are, and columns are gathered; gradients follow."""
    mesh = _mesh(place, (place.world_size,))
    x = numbers(0, (8, 12)).round()  # many equal numbers
    expected = bt.top_k(x, 3)
    tokens = bt.seeded_sample(x, 3, 5)
    for placement in (Shard(0), Shard(1), Replicate()):
        spread = distribute_tensor(x, mesh, [placement]).requires_grad_()
        values, columns = bt.top_k(spread, 3)
        drawn = bt.seeded_sample(spread, 3, 5)
        own = placement if placement == Shard(0) else Replicate()
        for found, wanted in ((values, expected[0]), (columns, expected[1]), (drawn, tokens)):
            assert found.placements == (own,)
            assert torch.equal(whole(found.detach()), wanted)
        (gradient,) = torch.autograd.grad(values.sum(), spread)
        assert torch.equal(whole(gradient), torch.zeros_like(x).scatter(-1, expected[1], 1.0))
    with raises(TypeError, "an argument is a DTensor, expected plain tensors"):
        bt.moe_router(spread, 2)
