"""JAX's ranks join by jax.distributed on loopback, with Gloo and short timeouts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.distributed.processes import Place

JOIN = "tests.distributed.jax_processes:join"

# A rank without a sign of life for this time counts as dead, and all others are ended.
HEARTBEAT_SECONDS = 10


def join(place: Place) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{place.port}",
        place.world_size,
        place.rank,
        local_device_ids=[0],
        cluster_detection_method="deactivate",
        initialization_timeout=60,
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=5,
    )
    assert jax.process_count() == place.world_size


def mesh() -> Mesh:
    devices = np.array(jax.devices())
    assert len(devices) == jax.process_count()
    return Mesh(devices, ("ranks",), axis_types=(AxisType.Auto,))


def spread(array: Any, dim: int | None = 0) -> jax.Array:
    """Returns an array that every rank has, split along `dim`, or replicated."""
    spec = P() if dim is None else P(*[None] * dim, "ranks")
    array = np.asarray(array)
    return jax.make_array_from_callback(array.shape, NamedSharding(mesh(), spec), array.__getitem__)


def own(array: jax.Array) -> np.ndarray:
    """Returns this rank's part."""
    return np.asarray(array.addressable_shards[0].data)


def on_ranks(function: Callable[..., Any], *stacked: Any, check_vma: bool = True) -> Any:
    """Returns this rank's results of `function`, called on each rank's slice of stacked arrays."""

    def shard(*parts: Any) -> Any:
        return jax.tree.map(lambda y: y[None], function(*(part[0] for part in parts)))

    split = jax.shard_map(
        shard, mesh=mesh(), in_specs=P("ranks"), out_specs=P("ranks"), check_vma=check_vma
    )
    results = jax.jit(split)(*map(partial(spread, dim=0), stacked))
    return jax.tree.map(lambda y: own(y)[0], results)
