"""Tensors across the border: `to_torch` and `to_jax`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import torch
from jax._src.array import ArrayImpl

from bridge import _tree
from bridge._exchange import from_array, from_tensor
from bridge._exchange.refusal import Refused

__all__ = ["array_to_tensor", "tensor_to_array", "to_jax", "to_torch"]

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_ARRAYS = frozenset({ArrayImpl})

for _kind in from_tensor.PLAIN | _ARRAYS:
    _tree.leaf_type(_kind)


def to_jax(tree: Any, *, copy: bool | None = None) -> Any:
    """Returns the tree with every torch tensor in it as a JAX array.

    The array lies in the tensor's memory wherever JAX can use it as it is: it has the elements side
    by side in any order of the dimensions, no lazy conjugate or negative, and on the CPU a start at
    a multiple of 64 bytes. Writing to the tensor afterwards changes the array.

    Args:
        tree: a tensor, or a tree of dicts, lists, tuples, namedtuples, dataclasses and nodes that
            JAX or torch have registered. Other leaves, JAX and NumPy arrays among them, come back
            untouched.
        copy: None copies where the memory cannot be shared, False raises there, True always copies.

    Raises:
        TypeError: a leaf has no memory of its own (FakeTensor, value inside torch.func, DTensor,
            sparse tensor) or a dtype that does not cross.
        ValueError: a tensor requires a gradient; it is 64 bits wide and `jax_enable_x64` is off; it
            lies on a device other than CPU and CUDA.
        BufferError: `copy=False` and the memory cannot be shared.
        RuntimeError: this process was forked after JAX had started.
    """
    if _is_dynamo_compiling():
        from bridge._exchange import uncompiled

        return uncompiled.to_jax(tree, copy=copy)
    check_copy("to_jax", copy)
    return _cross("to_jax", from_tensor.cross, from_tensor.PLAIN, tree, copy)


def to_torch(tree: Any, *, copy: bool | None = None) -> Any:
    """Returns the tree with every JAX array in it as a torch tensor.

    The tensor lies in the array's memory. JAX arrays do not change: writing to the tensor breaks
    that promise, and every computation that uses the array. Pass `copy=True` to write.

    Args:
        tree: a JAX array, an array of another library that speaks DLPack, or a tree of them (see
            `to_jax`). Other leaves, torch tensors among them, come back untouched.
        copy: None copies where the memory cannot be shared, False raises there, True always copies.

    Raises:
        TypeError: a leaf is a tracer, a typed `jax.random` key, or has a dtype that does not cross.
        ValueError: an array has been deleted or donated, or is sharded over several devices.
        BufferError: `copy=False` and the memory cannot be shared.
        RuntimeError: this process was forked after JAX had started.
    """
    if _is_dynamo_compiling():
        from bridge._exchange import uncompiled

        return uncompiled.to_torch(tree, copy=copy)
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
    """`to_jax` of one tensor, for callers that walk a tree themselves.

    Args:
        tensor: any torch tensor.
        copy: as in `to_jax`.
        path: where the tensor stands, for errors.
        function: what the user called, for errors.
        detached: the caller takes care of gradients: requires_grad and tangents are passed over.
    """
    try:
        return from_tensor.cross(tensor, copy, detached)
    except Refused as refused:
        raise refused.at(function, path) from refused.__cause__


def array_to_tensor(
    array: Any, copy: bool | None = None, *, path: str = "", function: str = "to_torch"
) -> torch.Tensor:
    """`to_torch` of one array, for callers that walk a tree themselves."""
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
        # A tree of many leaves is spared a call for each.
        each = cross if copy is None else functools.partial(cross, copy=copy)
        return _tree.tree_map(each, tree, Refused)
    except Refused as refused:
        raise refused.at(function, "") from refused.__cause__
    except _tree.At as at:
        why = at.error
        assert isinstance(why, Refused)
        raise why.at(function, f"tree{at.path}" if at.path else "") from why.__cause__
