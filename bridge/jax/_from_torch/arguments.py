"""The arguments of a call as arrays, and error messages for other arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from bridge.exchange.dtypes import SUPPORTED, TO_TORCH, WIDE

# Leaves of these types become tensors.
ARRAYS = (jax.Array, np.ndarray, np.generic)


def checked_state(
    what: str, given: Mapping[str, Any], own: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Returns the parameters or buffers for a module, after a check of their names and shapes."""
    if given.keys() != own.keys():
        missing = sorted(own.keys() - given.keys())
        unknown = sorted(map(str, given.keys() - own.keys()))
        raise ValueError(
            f"from_torch: {what} lacks {missing} and has {unknown} that the module has not, "
            f"expected the names of g.{what}()"
        )
    for name, tensor in own.items():
        shape = getattr(given[name], "shape", None)
        if shape is None:
            raise TypeError(
                f"from_torch: {what}[{name!r}] has type {type(given[name]).__name__}, expected an "
                "array"
            )
        if tuple(shape) != tuple(tensor.shape):
            raise ValueError(
                f"from_torch: {what}[{name!r}] has shape {list(shape)}, expected "
                f"{list(tensor.shape)}"
            )
    return dict(given)


def as_jax_array(leaf: Any, marked: Any, place: int) -> Any:
    """Returns the JAX array for a leaf of a type in ARRAYS."""
    dtype = leaf.dtype
    if dtype not in TO_TORCH:
        key = isinstance(leaf, jax.Array) and jnp.issubdtype(dtype, jax.dtypes.prng_key)
        expected = (
            "expected arrays: pass a key as seed=, with from_torch(..., seeded=True)"
            if key
            else f"expected one of {SUPPORTED}"
        )
        raise TypeError(f"from_torch: {path_of(marked, place)} has dtype {dtype}, {expected}")
    if isinstance(leaf, jax.Array):
        return leaf
    if dtype.name in WIDE and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise ValueError(
            f"from_torch: {path_of(marked, place)} is a NumPy array of {dtype}, which JAX narrows "
            "to 32 bits while jax_enable_x64 is off: convert it, or call "
            "jax.config.update('jax_enable_x64', True) at the start"
        )
    return jnp.asarray(leaf)


def path_of(marked: Any, place: int) -> str:
    """Returns the name of the leaf at a place, in the notation of the user's call."""
    return argument_paths(*marked)[place]


def is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def argument_paths(parameters: Any, buffers: Any, args: Any, kwargs: Any) -> list[str]:
    """Returns the name of each leaf, such as `args[0]['w']`; the parameters come first."""
    paths = []
    for name, tree in (("params", parameters), ("buffers", buffers), ("args", args)):
        flat, _ = jax.tree_util.tree_flatten_with_path(tree)
        paths += [f"{name}{jax.tree_util.keystr(path)}" for path, _ in flat]
    flat, _ = jax.tree_util.tree_flatten_with_path(kwargs)
    return paths + [f"{p[0].key}{jax.tree_util.keystr(p[1:])}" for p, _ in flat]
