"""Declared ops on DTensors whose columns are split, in one process of several."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import bridge.torch
from bridge.torch._sharded import shards
from bridge.torch.liger import LigerVocabParallelCrossEntropy
from tests.declared.split_columns import CASES, COLUMNS
from tests.distributed.gather_checks import numbers, same_bits
from tests.distributed.group_checks import raises
from tests.distributed.processes import Place

_ROWS = (2, 32)


def _placements(array: Any, dims: tuple[int, ...], shape: tuple[int, ...]) -> list[Any]:
    """Returns placements: operands with all rows are split like x, row vectors like the columns."""
    has_rows = tuple(array.shape[:2]) == shape[:2]
    is_row = tuple(array.shape) == shape[2:]
    return [
        Shard(dim)
        if has_rows and dim < array.ndim
        else Shard(0)
        if is_row and dim == 2
        else Replicate()
        for dim in dims
    ]


def as_unsharded(
    place: Place, mesh: tuple[int, ...], dims: tuple[int, ...], dtype: str, columns: list[str]
) -> None:
    """Results, gradients and second derivatives have the bits of the whole tensors.

    `dims` has, for each dimension of the mesh, the dimension of x that it splits.
    """
    device_mesh = init_device_mesh("cpu", mesh)
    for name, case in CASES.items():
        for each in columns:
            shape = (*_ROWS, COLUMNS[each])
            function = case.function(torch.tensor, shape)

            def derivatives(values: list[Tensor], given: list[Tensor], f: Any = function) -> Any:
                values = [value.detach().requires_grad_() for value in values]
                *cotangents, last = [each.detach().requires_grad_() for each in given]
                results = f(*values)
                firsts = torch.autograd.grad(results, values, cotangents, create_graph=True)
                inputs = [*values, *cotangents]
                seconds = torch.autograd.grad(firsts[0], inputs, last, allow_unused=True)
                return [*results, *firsts, *(each for each in seconds if each is not None)]

            values = [
                torch.tensor(v).to(getattr(torch, dtype)) for v in case.values(shape, np.float64)
            ]
            results = function(*values)
            given = [
                numbers(20 + i, tuple(like.shape), like.dtype)
                for i, like in enumerate([*results, values[0]])
            ]
            expected = derivatives(values, given)
            spread = [
                [distribute_tensor(v, device_mesh, _placements(v, dims, shape)) for v in group]
                for group in (values, given)
            ]
            found = derivatives(*spread)
            for i, (a, b) in enumerate(zip(found, expected, strict=True)):
                assert isinstance(a, DTensor), (name, each, i)
                assert same_bits(a.full_tensor(), b), (name, each, i)


def what_is_sent(place: Place) -> dict[str, list[int]]:
    """Counts, for each op, the numbers that a process sends per row in each exchange of a call."""
    mesh = init_device_mesh("cpu", (place.world_size,))
    shape = (*_ROWS, 1024 * place.world_size)
    found = {}
    for name, case in CASES.items():
        values = [
            distribute_tensor(torch.tensor(v), mesh, _placements(v, (2,), shape))
            for v in case.values(shape, np.float32)
        ]
        with _counted() as sent:
            case.function(torch.tensor, shape)(*values)
        found[name] = sent
    return found


@contextlib.contextmanager
def _counted() -> Iterator[list[int]]:
    """Collects the numbers per row that this process sends in each exchange."""
    sent: list[int] = []
    gather = shards.gather_along

    def counted(x: Tensor, *arguments: Any) -> Tensor:
        sent.append(x.numel() // math.prod(_ROWS))
        return gather(x, *arguments)

    with mock.patch.object(shards, "gather_along", counted):
        yield sent


def one_row_and_none(place: Place) -> None:
    mesh = init_device_mesh("cpu", (place.world_size,))
    for columns in (1024, 700):
        for rows in ((), (0,), (0, 3)):
            for name in ("rms_norm", "log_softmax", "largest"):
                op = CASES[name].op
                x = numbers(1, (*rows, columns * place.world_size), torch.float32)
                spread = distribute_tensor(x, mesh, [Shard(x.ndim - 1)])
                for value in (x, spread):
                    value.requires_grad_()
                    result = op(value)
                    result = result if isinstance(result, tuple) else (result,)
                    torch.autograd.backward(result, [torch.ones_like(r.detach()) for r in result])
                assert same_bits(spread.grad.full_tensor(), x.grad), (name, columns, rows)


def _causal(x: Tensor) -> Tensor:
    return bridge.torch.scaled_causal_softmax(x, 0.5)


def _gradient_of_softmax(x: Tensor, softmax: Any = _causal) -> Any:
    y = softmax(x)
    (y * y.detach()).sum().backward()
    return x.grad


def compiled(place: Place) -> None:
    mesh = init_device_mesh("cpu", (place.world_size,))
    for columns in (1024, 100):
        x = numbers(1, (*_ROWS, columns * place.world_size), torch.float32)
        expected = _gradient_of_softmax(x.clone().requires_grad_())
        spread = distribute_tensor(x, mesh, [Shard(2)]).requires_grad_()
        torch._dynamo.reset()
        softmax = torch.compile(_causal, fullgraph=True, backend="aot_eager")
        assert same_bits(_gradient_of_softmax(spread, softmax).full_tensor(), expected)
    case, shape = CASES["cross_entropy"], (*_ROWS, 1024 * place.world_size)
    (x,) = case.values(shape, np.float32)
    label = torch.arange(64).reshape(_ROWS)

    def run(f: Any) -> list[Tensor]:
        spread = distribute_tensor(torch.tensor(x), mesh, [Shard(2)]).requires_grad_()
        y = f(spread, distribute_tensor(label, mesh, [Replicate()]))
        y.sum().backward()
        return [y.full_tensor(), spread.grad.full_tensor()]

    torch._dynamo.reset()
    whole = torch.compile(case.op.torch, fullgraph=True, backend="aot_eager")
    for a, b in zip(run(whole), run(case.op.torch), strict=True):
        assert same_bits(a, b)


def cross_entropy_of_a_group(place: Place) -> None:
    """Losses and gradients have the bits of whole rows; ranks outside the group refuse."""
    group = torch.distributed.group.WORLD
    mesh = init_device_mesh("cpu", (place.world_size,), mesh_dim_names=("model",))
    for columns in (1024 * place.world_size, 330 * place.world_size):
        whole = numbers(1, (2, 32, columns), torch.float32).requires_grad_()
        labels = torch.arange(64).reshape(2, 32) * 5
        labels[0, 3] = -100
        width = columns // place.world_size
        own = slice(place.rank * width, (place.rank + 1) * width)
        for options in (
            {"reduction": "none", "label_smoothing": 0.1},
            {"reduction": "mean", "z_loss": 1e-3},
        ):
            expected = bridge.torch.cross_entropy(whole, labels, **options)
            g = numbers(2, tuple(expected.shape), torch.float32)
            (gradient,) = torch.autograd.grad(expected, whole, g)
            for given in (group, mesh, (mesh, "model")):
                part = whole.detach()[..., own].clone().requires_grad_()
                found = bridge.torch.cross_entropy(part, labels, group=given, **options)
                (dx,) = torch.autograd.grad(found, part, g)
                assert type(found) is Tensor
                assert same_bits(found, expected), (columns, options)
                assert same_bits(dx, gradient[..., own]), (columns, options)
            function = functools.partial(bridge.torch.cross_entropy, group=group, **options)
            compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
            found = compiled(part, labels)
            (dx,) = torch.autograd.grad(found, part, g)
            assert same_bits(found, expected), (columns, options)
            assert same_bits(dx, gradient[..., own]), (columns, options)
        expected = bridge.torch.cross_entropy(whole, labels, reduction="none", label_smoothing=0.1)
        loss = LigerVocabParallelCrossEntropy(label_smoothing=0.1)
        assert same_bits(loss(part, labels, group), expected)
    with raises(ValueError, f"labels has {columns}, expected numbers of columns"):
        bridge.torch.cross_entropy(
            whole.detach()[..., own], torch.full((2, 32), columns), group=group
        )
    spread = distribute_tensor(whole.detach(), mesh, [Shard(2)])
    with raises(ValueError, "group is given and logits is a DTensor"):
        bridge.torch.cross_entropy(spread, labels, group=group)


def second_derivatives_of_a_loss(place: Place) -> None:
    """Logits of one, two and three dimensions are split over a mesh, or over a group.

    The square of a loss has second derivatives through its cotangent; the loss itself has none.
    """
    mesh, group = init_device_mesh("cpu", (place.world_size,)), torch.distributed.group.WORLD
    whole = numbers(0, (2, 4, 8), torch.float64), torch.arange(8).reshape(2, 4)

    def second(x: Tensor, labels: Tensor, power: int, **options: Any) -> Tensor:
        x = x.detach().requires_grad_()
        loss = bridge.torch.cross_entropy(x, labels, **options)
        loss = loss if power == 1 else loss.square()
        (first,) = torch.autograd.grad(loss.sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    for reduction, power in itertools.product(("mean", "sum", "none"), (1, 2)):
        expected = second(*whole, power, reduction=reduction)
        for placement in (Replicate(), Shard(0), Shard(1), Shard(2)):
            of_labels = placement if placement in (Shard(0), Shard(1)) else Replicate()
            given = (
                distribute_tensor(tensor, mesh, [each])
                for tensor, each in zip(whole, (placement, of_labels), strict=True)
            )
            found: Any = second(*given, power, reduction=reduction)
            torch.testing.assert_close(found.full_tensor(), expected)
        for logits, labels in (whole, [each[0] for each in whole], [each[0, 0] for each in whole]):
            own = logits.chunk(place.world_size, -1)[place.rank]
            found = second(own, labels, power, reduction=reduction, group=group)
            expected = second(logits, labels, power, reduction=reduction)
            torch.testing.assert_close(found, expected.chunk(place.world_size, -1)[place.rank])


def groups_that_differ(place: Place) -> None:
    """All ranks raise before anything is exchanged, and can continue."""
    group, rank = torch.distributed.group.WORLD, place.rank
    x, labels = numbers(0, (6, 40), torch.float32), torch.arange(6)

    def loss(x: Any, labels: Tensor, **options: Any) -> Tensor:
        return bridge.torch.cross_entropy(x, labels, group=group, **options)

    each: list[tuple[str, tuple[Any, Any]]] = [
        ("reduction", ("mean", "sum")),
        ("ignore_index", (-100, 3)),
        ("label_smoothing", (0.0, 0.1)),
        ("z_loss", (0.0, 1.0)),
        ("softcap", (None, 2.0)),
    ]
    for name, values in each:
        with raises(ValueError, f"than rank 0 beside logits, here .*{name} .*the same on all"):
            loss(x, labels, **{name: values[rank == 1]})
    with raises(ValueError, "the shape of logits differs between ranks.*pad the vocabulary"):
        loss(numbers(0, (6, 40 + rank), torch.float32), labels)
    with raises(ValueError, "the shape of logits differs between ranks"):
        loss(x[: 6 - rank], labels[: 6 - rank])
    with raises(ValueError, "the dtype of logits differs between ranks"):
        loss(x.double() if rank else x, labels)
    own, others = "expected numbers of columns", "arguments were refused there.*on rank 1"
    with raises(ValueError, own if rank == 1 else others):
        loss(x, labels + 1000 * (rank == 1))
    with raises(ValueError, "labels has shape" if rank == 1 else others):
        loss(x, labels[:5] if rank == 1 else labels)
    with raises(*((TypeError, "logits has type list") if rank == 1 else (ValueError, others))):
        loss([1.0] if rank == 1 else x, labels)
    with raises(NotImplementedError, "group is given under a transform of torch.func"):
        torch.func.grad(loss)(x, labels)
    with torch.autograd.forward_ad.dual_level(), raises(NotImplementedError, "in forward mode"):
        loss(torch.autograd.forward_ad.make_dual(x, x), labels)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    compiled(x, labels)  # called before too: a graph without tangents must not serve this call
    unsupported = torch._dynamo.exc.Unsupported
    with torch.autograd.forward_ad.dual_level(), raises(unsupported, "in forward mode"):
        compiled(torch.autograd.forward_ad.make_dual(x, x), labels)
    assert loss(x, labels).isfinite()


def softmaxes(place: Place) -> None:
    """Results and derivatives agree; a part that is a subtree sends a few numbers per row."""
    mesh = init_device_mesh("cpu", (place.world_size,))
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for columns in (1024 * place.world_size, 330 * place.world_size):
            shape = (*_ROWS, columns)
            mask = numbers(4, shape, torch.float32) > 0.3
            for masked in (None, mask, mask[:, :1], "causal"):

                def derivatives(given: list[Tensor], masked: Any) -> list[Tensor]:
                    x, g, h = (each.detach().requires_grad_() for each in given)
                    if masked is None:
                        y = bridge.torch.scaled_softmax(x, 0.7)
                    elif isinstance(masked, str):
                        y = bridge.torch.scaled_causal_softmax(x, 0.5)
                    else:
                        y = bridge.torch.scaled_masked_softmax(x, masked, -1.3)
                    (dx,) = torch.autograd.grad(y, x, g, create_graph=True)
                    return [y, dx, *torch.autograd.grad(dx, (x, g), h)]

                given = [numbers(i, shape, dtype) for i in range(3)]
                expected = derivatives(given, masked)
                spread = [distribute_tensor(each, mesh, [Shard(2)]) for each in given]
                hidden = masked
                if isinstance(masked, Tensor):
                    hidden = distribute_tensor(masked, mesh, [Shard(2)])
                with _counted() as sent:
                    found = derivatives(spread, hidden)
                for a, b in zip(found, expected, strict=True):
                    assert isinstance(a, DTensor)
                    assert a.placements == (Shard(2),)
                    assert same_bits(a.full_tensor(), b), (dtype, columns, masked)
                sums = 2 if dtype == torch.float32 else 1
                if columns == 1024 * place.world_size:
                    assert sent[:3] == [1, sums, 1]
                    assert max(sent) <= 3
