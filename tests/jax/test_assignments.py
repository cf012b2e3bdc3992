"""The mesh and the axes, recovered from XLA's parts for any number of devices."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from bridge._private import jax as private
from bridge._private.jax import assignment_of
from bridge.catalogue.bias_gelu import bias_gelu as declared
from bridge.jax._sharded import partitioning
from bridge.ops import PROGRAM, ProgramParams, Role
from bridge.ops.traced import traced


class Array:
    """XLA's description of an array: its shape and its split, without data."""

    def __init__(self, shape: tuple[int, ...], mesh: AbstractMesh, spec: P) -> None:
        self.shape, self.ndim, self.spec = shape, len(shape), spec
        self.hlo = NamedSharding(mesh, spec)._to_xla_hlo_sharding(self.ndim)
        self.sharding = SimpleNamespace(
            device_set=set(jax.devices("cpu")), _to_xla_hlo_sharding=lambda ndim: self.hlo
        )


def parts_of(hlo: Any, ndim: int) -> Any:
    """Returns the device numbers `[*parts of each dimension, copies]`."""
    if not hlo.is_tiled():
        return None
    sizes = hlo.tile_assignment_dimensions()[:ndim]
    return np.array(hlo.tile_assignment_devices()).reshape(*sizes, -1)


def draw(rng: np.random.Generator, ndim: int) -> Array:
    """Draws an array split over some axes of a mesh, in any order, several per dimension."""
    sizes = [int(rng.choice([2, 2, 3, 4, 5, 6])) for _ in range(rng.integers(1, 6))]
    names = [f"m{i}" for i in range(len(sizes))]
    mine: list[list[str]] = [[] for _ in range(ndim)]
    for name in rng.permutation(names):
        dim = int(rng.integers(-1, ndim))  # -1: splits no dimension
        if dim >= 0:
            mine[dim].append(str(name))
    parts = [math.prod(sizes[int(name[1:])] for name in own) for own in mine]
    shape = tuple(int(part * rng.integers(1, 4)) for part in parts)
    mesh = AbstractMesh(tuple(sizes), tuple(names))
    return Array(shape, mesh, P(*(tuple(own) or None for own in mine)))


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_the_mesh_that_is_found_gives_the_same_parts(ndim: int, rng: np.random.Generator) -> None:
    tiled = 0
    for _ in range(100):
        array = draw(rng, ndim)
        split = partitioning._split_of(array.shape, assignment_of(array))
        mesh = partitioning.mesh_of(jax.devices("cpu"), split)
        found = NamedSharding(mesh.abstract_mesh, split.spec(range(ndim)))
        expected = parts_of(array.hlo, ndim)
        np.testing.assert_array_equal(
            parts_of(found._to_xla_hlo_sharding(ndim), ndim), expected, err_msg=str(array.spec)
        )
        tiled += expected is not None
    assert tiled > 50


@pytest.mark.parametrize("axes", [("a",), ("b",), ("a", "b"), ("b", "a"), ()], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_the_public_answer_says_the_same(axes: tuple[str, ...], dim: int) -> None:
    """It is the fallback for a release of JAX without the private method."""
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    spec = P(*[None] * dim, axes or None)
    array = jax.device_put(np.zeros((8, 12)), NamedSharding(mesh, spec))
    split, other = (
        partitioning._split_of(array.shape, assignment)
        for assignment in (assignment_of(array), private._assignment_by_indices(array))
    )
    assert split == other
    assert split.shards == 2 ** len(axes)


@pytest.mark.parametrize("devices", [[1, 0, 2, 3], [0, 1, 3, 2], [0, 2, 3, 1], [0, 1, 2, 3, 5, 4]])
def test_parts_that_no_mesh_gives_are_gathered(devices: list[int]) -> None:
    split = partitioning._split_of((12, 5), np.array(devices).reshape(len(devices), 1, 1))
    assert split.shards == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize("sizes", [(65536,), (16, 16, 16, 16), (2,) * 16, (2, 3) * 6], ids=str)
def test_as_many_candidates_as_arrays(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any number of devices, only each array's own split is considered."""
    names = tuple(f"m{i}" for i in range(len(sizes)))
    mesh = AbstractMesh(sizes, names)
    shape = (math.prod(sizes[::2]), math.prod(sizes[1::2]))
    arrays = [
        Array(shape, mesh, P(names[::2], names[1::2])),  # half of the axes each, interleaved
        Array(shape, mesh, P(names[:1])),
        Array(shape, mesh, P()),
    ]
    code = traced(declared.declaration, (True, False), "tanh").code
    params = ProgramParams(code, "float32", "float32")
    site = partitioning.Site(lambda *_: (), PROGRAM, params, (0,), 2, [shape])
    looked_at: list[Any] = []
    supported = partitioning.supported
    monkeypatch.setattr(
        partitioning, "supported", lambda *a, **k: looked_at.append(a) or supported(*a, **k)
    )
    agreed, split = partitioning._agreed(site, False, arrays, [Role.FULL] * len(arrays))
    assert len(looked_at) == len(arrays)
    assert agreed.size == split.shards == math.prod(sizes)
