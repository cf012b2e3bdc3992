"""The cost of a conversion, compared with the frameworks' own `from_dlpack`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import torch

import bridge
from tools.bench.cases import BORDER
from tools.bench.in_torch import wait_on
from tools.bench.timing import Contender, interleave

LEAVES = 200
SHAPE = (64, 64)
PEER = "from_dlpack"


def rows(device: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Yields the timings of to_torch and to_jax, for an array and for a tree of many.

    The peer of a tree is the framework's function, called on each leaf in a Python loop.
    """
    array = jax.device_put(jnp.ones(SHAPE), jax.devices(device)[0])
    tensor = torch.ones(SHAPE, device=device)
    arrays, tensors = _tree(array), _tree(tensor)
    from_jax, from_torch = torch.from_dlpack, jax.dlpack.from_dlpack
    of_tree = f"tree of {LEAVES}"
    for what, framework, run, peer in (
        ("to_torch", "torch", lambda: bridge.to_torch(array), lambda: from_jax(array)),
        ("to_jax", "jax", lambda: bridge.to_jax(tensor), lambda: from_torch(tensor)),
        (
            f"to_torch, {of_tree}",
            "torch",
            lambda: bridge.to_torch(arrays),
            lambda: {name: from_jax(leaf) for name, leaf in arrays.items()},
        ),
        (
            f"to_jax, {of_tree}",
            "jax",
            lambda: bridge.to_jax(tensors),
            lambda: {name: from_torch(leaf) for name, leaf in tensors.items()},
        ),
    ):
        # A conversion queues no work: the call is the whole cost, on a GPU too.
        wait = wait_on("cpu")
        contenders = [Contender("bridge", run, wait), Contender(PEER, peer, wait)]
        yield row_of(what, framework, device, list(SHAPE), contenders, seconds)


def _tree(leaf: Any) -> dict[str, Any]:
    return {f"layers.{i}.weight": leaf for i in range(LEAVES)}


def row_of(
    what: str,
    framework: str,
    device: str,
    shape: list[int],
    contenders: list[Contender],
    seconds: float,
) -> dict[str, Any]:
    """A row of the report; the first contender is bridge's, the others its peers."""
    timings = interleave(contenders, seconds)
    peers = [contender.name for contender in contenders[1:]]
    return {
        "op": BORDER,
        "framework": framework,
        "what": what,
        "dtype": "float32",
        "form": device,
        "shape": shape,
        "memory": "new",
        "part": "tiny",
        "label": what,
        "bytes": 0,
        "timings": {name: timing.to_json() for name, timing in timings.items()},
        "gigabytes_per_second": {},
        "speedup": {peer: timings[peer].median / timings["bridge"].median for peer in peers},
    }
