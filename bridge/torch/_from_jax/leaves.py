"""The leaves of a call to a JAX function: traced, static, or refused with an error message."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from bridge.exchange import from_tensor
from bridge.exchange.dtypes import SUPPORTED, TO_JAX, crosses_to_jax
from bridge.exchange.refusal import Refused
from bridge.ops.scalars import told_apart

_NUMBERS = frozenset({bool, int, float, complex})


def describe(leaf: Any, key: list[Any]) -> None:
    """Adds to `key` the properties of a leaf that a trace depends on; for a static leaf, its value.

    Raises Refused for a DTensor: the call would run another program, for its local shape.
    """
    kind = type(leaf)
    if kind in _NUMBERS:
        key.append(kind)
    elif isinstance(leaf, Tensor):
        from_tensor.refuse_spread(leaf)
        shape = None if is_lazy(leaf) else tuple(map(int, leaf.shape))  # `aval_of` refuses it
        key += (shape, leaf.dtype)
    elif isinstance(leaf, jax.core.Tracer):
        raise TypeError(
            f"from_jax: a leaf is a JAX tracer, {leaf}, expected tensors and arrays; inside a JAX "
            "transformation call the JAX function itself"
        )
    elif isinstance(leaf, jax.Array):
        key += (leaf.shape, leaf.dtype, getattr(leaf, "weak_type", None))
    elif isinstance(leaf, np.ndarray | np.generic):
        key += (leaf.shape, leaf.dtype, np)
    else:
        _refuse_containers(leaf)
        key += (told_apart(leaf), leaf)


def _refuse_containers(leaf: Any) -> None:
    """Raises TypeError if a static leaf holds tensors: they would be lost to autograd."""
    kind = type(leaf).__name__
    if isinstance(leaf, torch.nn.Module):
        raise TypeError(
            f"from_jax: an argument is a torch module, {kind}, expected tensors; pass "
            "dict(module.named_parameters())"
        )
    if isinstance(leaf, tuple | frozenset) and any(isinstance(x, Tensor | jax.Array) for x in leaf):
        raise TypeError(
            f"from_jax: an argument is a {kind} that holds tensors, which JAX does not know as a "
            "pytree; pass a tuple of them"
        )
    if dataclasses.is_dataclass(leaf):
        for field in dataclasses.fields(leaf):
            if isinstance(getattr(leaf, field.name, None), Tensor | jax.Array):
                raise TypeError(
                    f"from_jax: an argument is a {kind}, which JAX does not know as a pytree; "
                    "register it with jax.tree_util.register_dataclass"
                )


def is_input(leaf: Any) -> bool:
    """True if the leaf is an input of the traced function, False if it is static."""
    return type(leaf) in _NUMBERS or isinstance(leaf, Tensor | jax.Array | np.ndarray | np.generic)


def refuse_outputs(name: str, outputs: list[Any]) -> None:
    """Raises TypeError for a leaf of the result that is not an array of JAX."""
    for leaf in outputs:
        if isinstance(leaf, Tensor) or not (is_input(leaf) or hasattr(leaf, "__jax_array__")):
            raise TypeError(
                f"from_jax: {name} returned a leaf of type {type(leaf).__name__}, expected arrays "
                "of JAX in dicts, lists, tuples and other pytrees"
            )


def aval_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype in JAX. Raises Refused for a tensor that cannot cross."""
    if isinstance(leaf, Tensor):
        from_tensor.refuse_lazy(leaf)
        if leaf.dtype not in TO_JAX:
            raise Refused(TypeError, leaf, f"has a dtype that is none of {SUPPORTED}", "convert it")
        if not crosses_to_jax(leaf.dtype):
            name = TO_JAX[leaf.dtype]
            why = f"is {name}, which JAX narrows to 32 bits while jax_enable_x64 is off"
            fix = "call jax.config.update('jax_enable_x64', True) at the start, or convert it"
            raise Refused(ValueError, leaf, why, fix)
        return jax.ShapeDtypeStruct(tuple(map(int, leaf.shape)), TO_JAX[leaf.dtype])
    return jax.typeof(leaf)


def unhashable(static: Any, args: Any, kwargs: Any) -> TypeError:
    """Returns an error that names the static argument, or the leaf, that cannot be hashed."""
    for name, _, value in static:
        if not _is_hashable(value):
            where = f"argument {name}" if isinstance(name, int) else f"argument {name!r}"
            return TypeError(
                f"from_jax: static {where} has type {type(value).__name__}, expected a value that "
                "can be hashed"
            )
    for path, leaf in _paths(args, kwargs):
        if not is_input(leaf) and not _is_hashable(leaf):
            return TypeError(
                f"from_jax: {path} has type {type(leaf).__name__}, expected a tensor, an array, a "
                "number, or a value that can be hashed"
            )
    return TypeError("from_jax: the structure of the arguments cannot be hashed")


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _paths(args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    """Lists every leaf with its place in the call: `args[0]['w']`, or a keyword argument's name."""
    keystr = jax.tree_util.keystr
    of_args, _ = jax.tree_util.tree_flatten_with_path(args)
    of_kwargs, _ = jax.tree_util.tree_flatten_with_path(kwargs)
    return [
        *((f"args{keystr(path)}", leaf) for path, leaf in of_args),
        *((f"{path[0].key}{keystr(path[1:])}", leaf) for path, leaf in of_kwargs),
    ]


def with_place(refused: Refused, args: Any, kwargs: Any) -> Exception:
    """Adds to the error the place of the tensor that cannot cross; if none, it is a result."""
    for path, leaf in _paths(args, kwargs):
        if isinstance(leaf, Tensor):
            try:
                aval_of(leaf)
                from_tensor.cross(leaf, None, True)
            except Refused as same:
                return same.at("from_jax", path)
    return refused.at("from_jax", "a result")


def refuse_many_devices(args: Any, kwargs: Any, error: Exception) -> None:
    """Raises ValueError in place of JAX's error if the tensors are on several devices."""
    places = [(path, leaf) for path, leaf in _paths(args, kwargs) if isinstance(leaf, Tensor)]
    devices = {str(leaf.device): path for path, leaf in reversed(places)}
    if len(devices) > 1:
        where = ", ".join(f"{path} on {device}" for device, path in devices.items())
        raise ValueError(f"from_jax: tensors on several devices: {where}; expected one") from error
