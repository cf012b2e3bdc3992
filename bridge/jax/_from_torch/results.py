"""What a torch function returns: a tree of tensors, taken apart and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bridge.exchange import trees
from bridge.exchange.dtypes import SUPPORTED, TO_JAX
from bridge.ops import Spec


@dataclass(frozen=True)
class Layout:
    """What a call returns: the specs of its flat results, and the tree that they are leaves of.

    The last of `specs` are the new buffers, if `buffer_names` are given.
    """

    specs: tuple[Spec, ...]
    template: Any
    buffer_names: tuple[str, ...] | None

    def rebuild(self, flat: Sequence[Any]) -> Any:
        count = len(flat) - len(self.buffer_names or ())
        result = trees.tree_map(lambda slot: flat[slot.index], self.template, Never)
        if self.buffer_names is None:
            return result
        return result, dict(zip(self.buffer_names, flat[count:], strict=True))


@dataclass(frozen=True)
class Slot:
    """Stands for a tensor in the tree of results."""

    index: int


trees.leaf_type(Slot)


class Never(Exception):
    """Is not raised."""


def flatten(tree: Any, flat: list[Tensor], function: str) -> Any:
    """Adds the tensors to `flat`; returns the tree with a Slot in the place of each."""
    if type(tree) is Tensor:  # as is usual
        flat.append(tree)
        return Slot(len(flat) - 1)

    def take(leaf: Any) -> Slot:
        if not isinstance(leaf, Tensor):
            raise TypeError(
                f"from_torch: {function} returned a leaf of type {type(leaf).__name__}, expected "
                "torch tensors in tuples, lists, dicts or dataclasses: make it a tensor"
            )
        flat.append(leaf)
        return Slot(len(flat) - 1)

    return trees.tree_map(take, tree, Never)


def does_not_cross(function: str, what: str, tensor: Tensor) -> Exception:
    """Says why a result, of a dtype that JAX does not take now, cannot cross."""
    if tensor.dtype not in TO_JAX:
        return TypeError(
            f"from_torch: {what} of {function} is {tensor.dtype}, expected one of {SUPPORTED}"
        )
    return ValueError(
        f"from_torch: {what} of {function} is {TO_JAX[tensor.dtype]}, shape {tuple(tensor.shape)}, "
        "which JAX narrows to 32 bits while jax_enable_x64 is off: convert it in the torch "
        "function, or call jax.config.update('jax_enable_x64', True) at the start"
    )
