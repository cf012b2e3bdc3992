"""linear_cross_entropy of DTensors against whole tensors, in one process of several."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import implicit_replication

import bridge.torch
from bridge.torch._adapter import linear_losses as module
from bridge.torch.liger import LigerMegatronFusedLinearCrossEntropy
from tests.distributed.gather_checks import numbers
from tests.distributed.group_checks import raises
from tests.distributed.processes import Place

_SHAPE, _COLUMNS = (4, 8, 16), 64

# Placements of hidden, weight, labels and bias; None means a plain tensor.
_PLACEMENTS: list[tuple[Any, ...]] = [
    (Shard(0), Replicate(), Shard(0), Replicate()),
    (Shard(1), Replicate(), Replicate(), None),
    (Shard(1), Shard(0), Replicate(), Shard(0)),
    (Replicate(), Shard(0), Replicate(), Shard(0)),
    (Shard(2), Shard(1), None, Replicate()),
    (Shard(0), None, None, None),
    (None, Shard(0), None, Shard(0)),
    (Partial(), Replicate(), Shard(1), Replicate()),
]


def _values(shape: tuple[int, ...]) -> list[Tensor]:
    """Returns hidden, weight, labels and bias; every fifth label is ignored."""
    rows = torch.Size(shape[:-1])
    labels = torch.arange(rows.numel()).reshape(rows) * 7 % _COLUMNS
    labels.view(-1)[::5] = -100
    return [
        numbers(0, shape),
        numbers(1, (_COLUMNS, shape[-1])),
        labels,
        numbers(2, (_COLUMNS,)),
    ]


def _spread(value: Tensor, mesh: Any, placement: Any) -> Tensor:
    if placement is None:
        return value
    if placement.is_partial():  # the first process has the whole value
        own = value if mesh.get_local_rank() == 0 else torch.zeros_like(value)
        return DTensor.from_local(own, mesh, [placement], run_check=False)
    return distribute_tensor(value, mesh, [placement])


def _whole(value: Any) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _loss(values: list[Tensor], reduction: str, chunk: int | None = 8) -> Tensor:
    hidden, weight, labels, bias = values
    return bridge.torch.linear_cross_entropy(
        hidden, weight, labels, bias=bias, reduction=reduction, chunk=chunk, z_loss=1e-2
    )


def _derivatives(given: list[Tensor], reduction: str) -> list[Tensor]:
    values = [v.detach().requires_grad_(v.is_floating_point()) for v in given]
    smooth = [v for v in values if v.requires_grad]
    loss = _loss(values, reduction)
    found = [loss]
    # Second derivatives of a square go through every cotangent; the loss itself has none.
    for each in (loss**2, loss):
        firsts = torch.autograd.grad(each.sum(), smooth, create_graph=True)
        found += firsts
        found += torch.autograd.grad([(g**2).sum() for g in firsts], smooth, retain_graph=True)
    return found


def as_whole(place: Place, reduction: str) -> None:
    """Losses, gradients and second derivatives agree for every way to split operands."""
    mesh = init_device_mesh("cpu", (place.world_size,))
    values = _values(_SHAPE)
    expected = _derivatives(values, reduction)
    for placements in _PLACEMENTS:
        spread = [_spread(v, mesh, p) for v, p in zip(values, placements, strict=True)]
        with implicit_replication() if placements[0] is None else nullcontext():
            found = _derivatives(spread, reduction)
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            torch.testing.assert_close(
                _whole(a), b, rtol=1e-9, atol=1e-9, msg=lambda m, at=(placements, i): f"{at}: {m}"
            )


def portable(place: Place, reduction: str) -> None:
    """By bridge's products, losses and gradients have the bits of whole tensors."""
    mesh = init_device_mesh("cpu", (place.world_size,))
    values = [v.float() if v.is_floating_point() else v for v in _values((4, 150, 16))]

    def run(given: list[Any]) -> list[Tensor]:
        smooth = [v.detach().requires_grad_() for v in given if v.is_floating_point()]
        hidden, weight, bias = smooth
        loss = bridge.torch.linear_cross_entropy(
            hidden, weight, given[2], bias=bias, reduction=reduction, chunk=256, bits="portable"
        )
        return [loss.detach(), *torch.autograd.grad(loss.sum(), smooth)]

    expected = run(values)
    for placements in _PLACEMENTS:
        spread = [_spread(v, mesh, p) for v, p in zip(values, placements, strict=True)]
        with implicit_replication() if placements[0] is None else nullcontext():
            found = run(spread)
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert torch.equal(_whole(a), b), (placements, i)


def plain_rows(place: Place) -> None:
    """Plain rows with a split weight, as in FSDP2, are refused unless torch is told about them."""
    mesh = init_device_mesh("cpu", (place.world_size,))
    values = _values(_SHAPE)
    spread = [_spread(v, mesh, Shard(0) if i in (1, 3) else None) for i, v in enumerate(values)]
    with raises(TypeError, "hidden is a plain tensor and weight a DTensor, expected DTensors"):
        _loss(spread, "mean")


def odd_shapes(place: Place) -> None:
    """Rows may be split unevenly, absent, or single."""
    mesh = init_device_mesh("cpu", (place.world_size,))
    for shape in ((3, 5, 16), (0, 4, 16), (1, 16), (16,)):
        values = _values(shape)
        spread = [
            _spread(v, mesh, Shard(0) if i in (0, 2) and v.ndim else Replicate())
            for i, v in enumerate(values)
        ]
        results = []
        for given in (values, spread):
            hidden = given[0].detach().requires_grad_()
            loss = _loss([hidden, *given[1:]], "mean")
            loss.backward()
            assert hidden.grad is not None
            results.append((_whole(loss).detach(), _whole(hidden.grad)))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def rows_stay(place: Place) -> None:
    """Split rows are not sent, and logits of a chunk are computed again, not saved."""
    mesh = init_device_mesh("cpu", (place.world_size,))
    values = _values(_SHAPE)
    for dim in (0, 1):
        spread = [
            _spread(v, mesh, Shard(dim) if i in (0, 2) else Replicate())
            for i, v in enumerate(values)
        ]
        spread = [v.detach().requires_grad_(v.is_floating_point()) for v in spread]
        with CommDebugMode() as seen:
            _loss(spread, "none")
        assert seen.get_total_counts() == 0
        with mock.patch.object(module, "linear", wraps=module.linear) as linear:
            loss = _loss(spread, "none")
            assert linear.call_count == 4  # 32 rows, 8 at a time, for any number of processes
            loss.sum().backward()
            assert linear.call_count == 8


def compiled(place: Place) -> None:
    mesh = init_device_mesh("cpu", (place.world_size,))
    values = _values(_SHAPE)
    for placements in _PLACEMENTS[:1] + _PLACEMENTS[3:4]:
        for reduction in ("mean", "none"):
            torch._dynamo.reset()
            compiled_loss = torch.compile(_loss, fullgraph=True, backend="aot_eager")
            results = []
            for f in (_loss, compiled_loss):
                spread = [
                    _spread(v, mesh, p).detach().requires_grad_(v.is_floating_point())
                    for v, p in zip(values, placements, strict=True)
                ]
                loss = f(spread, reduction)
                smooth = [v for v in spread if v.requires_grad]
                results.append([loss, *torch.autograd.grad(loss.sum(), smooth)])
            for a, b in zip(*results, strict=True):
                torch.testing.assert_close(_whole(a), _whole(b), rtol=1e-9, atol=1e-9)


def of_a_group(place: Place) -> None:
    """Ranks have parts of the vocabulary; each gets the whole gradient of hidden."""
    group = torch.distributed.group.WORLD
    hidden, weight, labels, bias = _values(_SHAPE)
    width = _COLUMNS // place.world_size
    own = slice(place.rank * width, (place.rank + 1) * width)
    loss = LigerMegatronFusedLinearCrossEntropy()
    whole = [v.clone().requires_grad_() for v in (hidden, weight, bias)]
    expected = bridge.torch.linear_cross_entropy(
        whole[0], whole[1], labels, bias=whole[2], reduction="none"
    )
    g = numbers(3, tuple(expected.shape))
    gradients = torch.autograd.grad(expected, whole, g)
    parts = [v.clone().requires_grad_() for v in (hidden, weight[own], bias[own])]
    found = loss(parts[0], parts[1], labels, parts[2], group)
    assert type(found) is Tensor
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    dh, dw, db = torch.autograd.grad(found, parts, g)
    for one, other in zip(
        (dh, dw, db), (gradients[0], *(d[own] for d in gradients[1:])), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    with raises(ValueError, "the shape of weight differs between ranks"):
        loss(hidden, weight[: width - place.rank], labels.clamp(max=8), None, group)
    beside = "was given something else than rank 0 beside weight, here hidden"
    with raises(ValueError, beside):
        loss(hidden, weight[own], labels, bias[own] if place.rank else None, group)
    with raises(ValueError, beside):
        loss(hidden[place.rank :], weight[own], labels[place.rank :], None, group)
    others = "arguments were refused there.*on rank 1"
    with raises(ValueError, "labels has" if place.rank == 1 else others):
        loss(hidden, weight[own], labels + 1000 * (place.rank == 1), None, group)
