"""Conversion between frameworks: `to_torch` and `to_jax`."""

from __future__ import annotations

from typing import Any

import torch

from bridge.exchange.crossing import tree_to_jax, tree_to_torch

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling


def to_jax(tree: Any, *, copy: bool | None = None) -> Any:
    """Returns the tree with every torch tensor in it as a JAX array.

    The array uses the tensor's memory if JAX can read it in place: the elements are side by side,
    in any order of the dimensions, there is no lazy conjugate or negative, and on the CPU the
    memory starts at a multiple of 64 bytes. Writing to the tensor afterwards changes the array.

    Args:
        tree: a tensor, or a tree of dicts, lists, tuples, namedtuples, dataclasses and nodes that
            JAX or torch have registered. Other leaves, JAX and NumPy arrays among them, are
            returned unchanged.
        copy: None copies if the memory cannot be shared, False raises then, True always copies.

    Raises:
        TypeError: a leaf has no memory of its own (FakeTensor, value inside torch.func, DTensor,
            sparse tensor) or a dtype that the other framework lacks.
        ValueError: a tensor requires a gradient; it is 64 bits wide and `jax_enable_x64` is off; it
            is on a device other than CPU and CUDA; the tree contains itself.
        BufferError: `copy=False` and the memory cannot be shared.
        RuntimeError: this process was forked after JAX had started.
    """
    if _is_dynamo_compiling():
        from bridge.exchange import uncompiled

        return uncompiled.tree_to_jax(tree, copy)
    return tree_to_jax(tree, copy)


def to_torch(tree: Any, *, copy: bool | None = None) -> Any:
    """Returns the tree with every JAX array in it as a torch tensor.

    The tensor uses the array's memory. JAX assumes that arrays do not change: writing to the tensor
    breaks every computation that uses the array. Pass `copy=True` to write.

    Args:
        tree: a JAX array, an array of another library with DLPack, or a tree of them (see
            `to_jax`). Other leaves, torch tensors among them, are returned unchanged.
        copy: None copies if the memory cannot be shared, False raises then, True always copies.

    Raises:
        TypeError: a leaf is a tracer, a typed `jax.random` key, or has a dtype that the other
            framework lacks.
        ValueError: an array has been deleted or donated, or is sharded over several devices; the
            tree contains itself.
        BufferError: `copy=False` and the memory cannot be shared.
        RuntimeError: this process was forked after JAX had started.
    """
    if _is_dynamo_compiling():
        from bridge.exchange import uncompiled

        return uncompiled.tree_to_torch(tree, copy)
    return tree_to_torch(tree, copy)
