"""Conversion of trees and single tensors in eager code, for `to_torch` and `to_jax`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import torch

from bridge._private.jax import ArrayImpl
from bridge.exchange import from_array, from_tensor, trees
from bridge.exchange.refusal import Refused

_ARRAYS = frozenset({ArrayImpl})
_to_last = functools.partial(from_tensor.cross, lasts=True)

for _kind in from_tensor.PLAIN | _ARRAYS:
    trees.leaf_type(_kind)


def tree_to_jax(tree: Any, copy: bool | None) -> Any:
    """Implements `to_jax` outside of graphs that are being traced."""
    if copy is not None:
        check_copy("to_jax", copy)
    return _cross("to_jax", _to_last, from_tensor.PLAIN, tree, copy)


def tree_to_torch(tree: Any, copy: bool | None) -> Any:
    """Implements `to_torch` outside of graphs that are being traced."""
    if copy is not None:
        check_copy("to_torch", copy)
    return _cross("to_torch", from_array.cross, _ARRAYS, tree, copy)


def tensor_to_array(
    tensor: torch.Tensor,
    copy: bool | None = None,
    *,
    path: str = "",
    function: str = "to_jax",
    detached: bool = False,
) -> jax.Array:
    """Converts one tensor like `to_jax`, for callers that traverse a tree themselves.

    Args:
        tensor: any torch tensor.
        copy: as in `to_jax`.
        path: the place of the tensor in the tree, for errors.
        function: the function that the user called, for errors.
        detached: True if the caller handles gradients: requires_grad and tangents are ignored.
    """
    try:
        return from_tensor.cross(tensor, copy, detached, lasts=True)
    except Refused as refused:
        raise refused.at(function, path) from refused.__cause__


def array_to_tensor(
    array: Any, copy: bool | None = None, *, path: str = "", function: str = "to_torch"
) -> torch.Tensor:
    """Converts one array like `to_torch`, for callers that traverse a tree themselves."""
    try:
        return from_array.cross(array, copy)
    except Refused as refused:
        raise refused.at(function, path) from refused.__cause__


def check_copy(function: str, copy: Any) -> None:
    """Raises TypeError unless `copy` is None, False or True."""
    if copy is not None and copy is not False and copy is not True:
        raise TypeError(f"{function}: copy is {copy!r}, expected None, False or True")


def _cross(
    function: str,
    cross: Callable[..., Any],
    leaves: frozenset[type],
    tree: Any,
    copy: bool | None,
) -> Any:
    try:
        if type(tree) in leaves:
            return cross(tree, copy)
        # A partial for each leaf would slow down trees of many leaves.
        each = cross if copy is None else functools.partial(cross, copy=copy)
        return trees.tree_map(each, tree, Refused)
    except Refused as refused:
        raise refused.at(function, "") from refused.__cause__
    except trees.At as at:
        why = at.error
        assert isinstance(why, Refused)
        raise why.at(function, f"tree{at.path}" if at.path else "") from why.__cause__
    except RecursionError:
        raise ValueError(
            f"{function}: the tree contains itself, or is too deep: expected fewer levels of "
            f"containers than Python's recursion limit, {sys.getrecursionlimit()}"
        ) from None
