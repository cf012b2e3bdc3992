"""What a crossing costs beside what the frameworks' own `from_dlpack` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import torch

import bridge
from tools.bench.timing import Contender, interleave

NAME = "border"
LEAVES = 200
SHAPE = (64, 64)
PEER = "from_dlpack"


def rows(device: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Yields the timings of to_torch and to_jax, of an array and of a tree of many.

    A tree's peer is the framework's function called on each leaf in a Python loop.
    """
    array = jax.device_put(jnp.ones(SHAPE), jax.devices(device)[0])
    tensor = torch.ones(SHAPE, device=device)
    arrays, tensors = _tree(array), _tree(tensor)
    from_jax, from_torch = torch.from_dlpack, jax.dlpack.from_dlpack
    yield _row(
        "to_torch",
        "torch",
        device,
        seconds,
        lambda: bridge.to_torch(array),
        lambda: from_jax(array),
    )
    yield _row(
        "to_jax", "jax", device, seconds, lambda: bridge.to_jax(tensor), lambda: from_torch(tensor)
    )
    yield _row(
        f"to_torch, tree of {LEAVES}",
        "torch",
        device,
        seconds,
        lambda: bridge.to_torch(arrays),
        lambda: {name: from_jax(leaf) for name, leaf in arrays.items()},
    )
    yield _row(
        f"to_jax, tree of {LEAVES}",
        "jax",
        device,
        seconds,
        lambda: bridge.to_jax(tensors),
        lambda: {name: from_torch(leaf) for name, leaf in tensors.items()},
    )


def _tree(leaf: Any) -> dict[str, Any]:
    return {f"layers.{i}.weight": leaf for i in range(LEAVES)}


def _row(
    what: str,
    framework: str,
    device: str,
    seconds: float,
    run: Callable[[], Any],
    peer: Callable[[], Any],
) -> dict[str, Any]:
    # A crossing queues no work: the call is the cost, on a GPU too.
    contenders = [Contender("bridge", run, _at_once), Contender(PEER, peer, _at_once)]
    return row_of(what, framework, device, list(SHAPE), contenders, seconds)


def _at_once(_: Any) -> None:
    """Waits for what is there when a call returns."""


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
        "op": NAME,
        "framework": framework,
        "what": what,
        "dtype": "float32",
        "form": device,
        "shape": shape,
        "memory": "new",
        "part": "tiny",
        "label": what,
        "bytes": 0,
        "timings": {
            name: {
                "median": timing.median,
                "low": timing.low,
                "high": timing.high,
                "rounds": timing.rounds,
            }
            for name, timing in timings.items()
        },
        "gigabytes_per_second": {},
        "speedup": {peer: timings[peer].median / timings["bridge"].median for peer in peers},
    }
