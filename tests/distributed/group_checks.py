"""`all_gather` on groups and meshes, and its errors, in one process of several."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh

import bridge.torch as bt
from bridge.torch._collectives.groups import _device_of
from tests.distributed.gather_checks import numbers
from tests.distributed.processes import Place


@contextlib.contextmanager
def raises(error: type[Exception], words: str) -> Iterator[None]:
    raised = None
    try:
        yield
    except Exception as any_error:
        raised = any_error
    assert type(raised) is error, raised
    assert re.search(words, str(raised)), raised


def subgroups(place: Place) -> None:
    """Ranks 0 and 2, and ranks 1 and 3: each group gathers by itself, with gradients."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine, other = groups[place.rank % 2], groups[1 - place.rank % 2]
    members = [place.rank % 2, place.rank % 2 + 2]
    for rule, factor in (("sum", 2.0), ("mean", 1.0), ("local", 1.0)):
        x = numbers(place.rank, (2, 3)).requires_grad_()
        y = bt.all_gather(x, group=mine, dim=1, grad=rule)
        assert torch.equal(y, torch.cat([numbers(r, (2, 3)) for r in members], 1))
        y.sum().backward()
        assert torch.equal(x.grad, torch.full_like(x, factor))
    with raises(ValueError, "does not have this process"):
        bt.all_gather(torch.ones(2), group=other)
    dist.barrier()
    dist.destroy_process_group(mine)
    with raises(ValueError, "destroyed"):
        bt.all_gather(torch.ones(2), group=mine)


def order_of_the_group(place: Place) -> None:
    """A group gathers in its own order of ranks, whatever the global order is."""
    group = (
        dist.new_group([2, 0, 1], sort_ranks=False) if _unsorted() else dist.new_group([0, 1, 2])
    )
    order = dist.get_process_group_ranks(group)
    y = bt.all_gather(torch.full((1,), place.rank), group=group)
    assert y.tolist() == order
    x = torch.zeros(1, requires_grad=True)
    y = bt.all_gather(x, group=group, grad="local")
    y.backward(torch.arange(3.0))
    assert x.grad.item() == order.index(place.rank)


def _unsorted() -> bool:
    import inspect

    return "sort_ranks" in inspect.signature(dist.new_group).parameters


def meshes(place: Place) -> None:
    """Both dimensions of a 2 × 2 mesh, by number and by name, and a mesh of one dimension."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    row, column = divmod(place.rank, 2)
    along = {"data": [column, column + 2], "model": [2 * row, 2 * row + 1]}
    for number, (name, members) in enumerate(along.items()):
        for group in ((mesh, number), (mesh, name), mesh[name], mesh.get_group(name)):
            x = numbers(place.rank, (2, 3)).requires_grad_()
            y = bt.all_gather(x, group=group)
            assert torch.equal(y, torch.cat([numbers(r, (2, 3)) for r in members]))
            y.backward(numbers(70 + place.rank, tuple(y.shape)))
            at = members.index(place.rank)
            parts = [numbers(70 + r, (4, 3))[2 * at : 2 * at + 2] for r in members]
            assert torch.equal(x.grad, parts[0] + parts[1])
    x = torch.ones(2)
    with raises(ValueError, "DeviceMesh of 2 dimensions.*'data'"):
        bt.all_gather(x, group=mesh)
    with raises(ValueError, "dimension 'tensor'.*0 to 1 or one of"):
        bt.all_gather(x, group=(mesh, "tensor"))
    with raises(ValueError, "dimension 2"):
        bt.all_gather(x, group=(mesh, 2))
    for group in ("data", [0, 1], (mesh, 0, 1), 5):
        with raises(TypeError, "expected a ProcessGroup"):
            bt.all_gather(x, group=group)
    half = init_device_mesh("cpu", (4,))
    assert bt.all_gather(x, group=half).shape == (8,)


def errors_on_every_rank(place: Place) -> None:
    """If one rank is wrong, in any way, all raise the same error and can continue."""
    good = torch.ones(2, 3)
    wrong = place.rank == 1
    last = place.world_size - 1

    def each(error: type[Exception], words: str, *bad: Any, **arguments: Any) -> None:
        with raises(error, words):
            if wrong:
                bt.all_gather(*(bad or (good,)), **arguments)
            else:
                bt.all_gather(good)
        assert bt.all_gather(good).shape == (2 * place.world_size, 3)

    each(
        ValueError, r"shape of x differs.*\[2, 3\] on rank 0, \[3, 3\] on rank 1", torch.ones(3, 3)
    )
    each(ValueError, "number of x's dimensions differs", torch.ones(2))
    each(ValueError, "dtype of x differs.*float32 on rank 0, int32 on rank 1", good.int())
    each(ValueError, "0-dimensional.*rank 1", torch.tensor(1.0))
    each(ValueError, "dim is 2, expected from -2 to 1.*rank 1", dim=2)
    each(ValueError, "dim is -4, expected from -3 to 2.*rank 1", dim=-4, tiled=False)
    each(ValueError, "dim differs between ranks: 0 on rank 0, 1 on rank 1", dim=1)
    each(ValueError, "tiled differs", tiled=False)
    each(ValueError, "grad differs.*'sum' on rank 0, 'mean' on rank 1", grad="mean")
    each(ValueError, "grad is not one of", grad="average")
    each(ValueError, "requires a gradient differs", good.clone().requires_grad_())
    each(TypeError, "dim is not an integer", dim="first")
    each(TypeError, "dim is not an integer", dim=True)
    each(TypeError, "not a dense", [1.0, 2.0])
    each(TypeError, "not a dense", torch.eye(2).to_sparse())
    each(TypeError, "not a dense", torch.quantize_per_tensor(good, 0.1, 0, torch.qint8))
    each(ValueError, "x of shape|shape of x differs", torch.ones(0, 3))
    here = "meta" if wrong else "cpu"
    each(ValueError, f"beside x, here a device of type '{here}'", good.to("meta"))
    here = "a FakeTensor" if wrong else "a device of type 'cpu'"
    with FakeTensorMode():
        fake = torch.ones(2, 3)
    each(ValueError, f"beside x, here {here}", fake)
    each(ValueError, "beside x, here a", fake, async_op=True)
    # All ranks are wrong.
    with raises(ValueError, "0-dimensional"):
        bt.all_gather(torch.tensor(1.0))
    # More dimensions than a signature can hold.
    many = [2] + [1] * 10
    with raises(ValueError, "shape of x differs"):
        bt.all_gather(torch.ones(many if place.rank != last else [2] + [1] * 9 + [2]))
    assert bt.all_gather(torch.ones(many)).shape == (2 * place.world_size, *many[1:])
    # Without the exchange each rank reports only its own error.
    with raises(ValueError, "0-dimensional.*got x of dtype"):
        bt.all_gather(torch.tensor(1.0), check=False)
    bt.all_gather(good, check=False)  # a nested tensor has the same dtype, layout and ndim
    with raises(TypeError, "not a dense"):
        bt.all_gather(torch.nested.nested_tensor([good[0], good[1]]), check=False)


def nothing_to_send(place: Place) -> None:
    """One rank has logits without values, and would not take part in an exchange."""
    logits, labels = torch.randn(3, 4), torch.arange(3)
    with FakeTensorMode():
        fake = torch.ones(3, 4)
    for without_values in (logits.to("meta"), fake):
        own = without_values if place.rank == 1 else logits
        here = "(FakeTensor|type 'meta')" if place.rank == 1 else "type 'cpu'"
        with raises(ValueError, f"given something else than rank 0 beside logits, here .*{here}"):
            bt.cross_entropy(own, labels.to(own.device), group=dist.group.WORLD)


def another_group_of_the_name(place: Place) -> None:
    """A new group may have the name of a destroyed one, but other devices."""
    found = []
    for number, backend in enumerate(("cpu:gloo", "cuda:gloo", "cpu:gloo,cuda:gloo")):
        store = dist.FileStore(str(place.directory / f"named{number}"), place.world_size)
        dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.world_size)
        group = dist.group.WORLD
        if number != 1:
            assert bt.all_gather(torch.ones(2), group=group).shape == (2 * place.world_size,)
        else:  # the comparison uses the device of the group's exchanges
            with contextlib.suppress(RuntimeError, AssertionError):
                bt.all_gather(torch.ones(2), group=group)
        found.append((group.group_name, _device_of(group).type))
        dist.destroy_process_group()
    assert found == [("0", "cpu"), ("0", "cuda"), ("0", "cpu")], found


def check_costs_one_exchange(place: Place) -> None:
    """A call makes one collective, and one more to compare unless check is False."""
    from torch.profiler import ProfilerActivity, profile

    x = torch.ones(4, requires_grad=True)

    def collectives(backward: bool = False, **arguments: Any) -> list[str]:
        y = bt.all_gather(x, **arguments) if backward else None
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            if y is None:
                bt.all_gather(x, **arguments)
            else:
                y.sum().backward()
        names = [event.key for event in seen.key_averages() for _ in range(event.count)]
        return sorted(name for name in names if name.startswith("gloo:"))

    for dim in (0,):
        assert collectives(dim=dim, check=True) == ["gloo:all_gather"] * 2
        assert collectives(dim=dim, check=False) == ["gloo:all_gather"]
        assert len(collectives(True, dim=dim, check=False)) == 1
        assert collectives(True, dim=dim, check=False, grad="local") == []
    os.environ["BRIDGE_CHECK_COLLECTIVES"] = "0"
    try:
        assert collectives() == ["gloo:all_gather"]
    finally:
        del os.environ["BRIDGE_CHECK_COLLECTIVES"]


def without_group(place: Place) -> None:
    """A process without a group gathers alone, unless the launcher started several."""
    assert not dist.is_initialized()
    x = torch.ones(2, 3, requires_grad=True)
    for tiled in (True, False):
        y = bt.all_gather(x, dim=1, tiled=tiled)
        assert y.shape == ((2, 3) if tiled else (2, 1, 3))
        with torch.no_grad():
            y.zero_()
        assert x.eq(1).all()
    os.environ["WORLD_SIZE"] = "2"
    try:
        with raises(ValueError, "no process group, but WORLD_SIZE is 2.*init_process_group"):
            bt.all_gather(x)
    finally:
        del os.environ["WORLD_SIZE"]
