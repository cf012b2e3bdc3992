"""Names for values in the report of `bridge.compare`."""

from __future__ import annotations

from typing import Any

from jax.ad_checkpoint import checkpoint_name


def record(name: str, x: Any) -> Any:
    """Returns x, and names it: a part of a comparison that begins at this value has this name.

    An identity under every transformation: jit, grad, vmap, scan, shard_map and remat.

    Args:
      name: the name of the value, such as "encoder.0.attention".
      x: an array, or a tree of arrays.

    Raises:
      TypeError: the name is no string.
    """
    if not isinstance(name, str):
        raise TypeError(f"name is a {type(name).__name__}; record takes a name and then the value")
    return checkpoint_name(x, name)
