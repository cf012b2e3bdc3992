"""The results of a torch function: a tree of tensors, flattened and rebuilt."""

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
    """The structure of a call's results: the specs of the flat results, and the tree over them.

    If `buffer_names` are given, the last of `specs` are the new buffers.
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
    """An exception type that is never raised, for tree functions that need one."""


def flatten(tree: Any, flat: list[Tensor], function: str) -> Any:
    """Appends the tensors to `flat`; returns the tree with a Slot in place of each tensor."""
    if type(tree) is Tensor:  # the usual case
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
    """Returns the error for a result whose dtype JAX does not accept now."""
    if tensor.dtype not in TO_JAX:
        return TypeError(
            f"from_torch: {what} of {function} is {tensor.dtype}, expected one of {SUPPORTED}"
        )
    return ValueError(
        f"from_torch: {what} of {function} is {TO_JAX[tensor.dtype]}, shape {tuple(tensor.shape)}, "
        "which JAX narrows to 32 bits while jax_enable_x64 is off: convert it in the torch "
        "function, or call jax.config.update('jax_enable_x64', True) at the start"
    )
