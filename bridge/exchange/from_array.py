"""Conversion of a JAX array, or another library's, to a torch tensor on the same memory."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch

from bridge._private.jax import ArrayImpl
from bridge._private.torch import DisableFuncTorch, capsule_to_tensor
from bridge.exchange import cuda
from bridge.exchange.dtypes import FLOAT8, SUPPORTED, TO_TORCH
from bridge.exchange.from_producer import from_producer
from bridge.exchange.refusal import NO_CODE, Refused
from bridge.exchange.runtime import (
    ON_CPU,
    array_to_capsule,
    refuse_after_fork,
)


def cross(array: Any, copy: bool | None = None) -> Any:
    """Returns a tensor on the array's memory, or on a copy. Raises Refused if neither is possible.

    Args:
        array: a jax.Array, or any object with `__dlpack__`; anything else is returned unchanged.
        copy: as in bridge.to_torch.
    """
    if (
        copy is not True
        and type(array) is ArrayImpl
        and array.sharding in ON_CPU
        and array.dtype in TO_TORCH
        and not array.is_deleted()
    ):
        try:
            return capsule_to_tensor(array_to_capsule(array))
        except (RuntimeError, ValueError, BufferError):
            pass
    return _in_general(array, copy)


def _in_general(array: Any, copy: bool | None) -> Any:
    if isinstance(array, torch.Tensor):
        return array.clone() if copy is True else array
    if isinstance(array, jax.core.Tracer):
        raise Refused(
            TypeError,
            array,
            "is a value inside a JAX transform (jit, grad, vmap), without memory of its own",
            "wrap the torch function with bridge.jax.from_torch, which those transforms go through",
        )
    if not isinstance(array, jax.Array):
        return from_producer(array, copy) if hasattr(array, "__dlpack__") else array
    refuse_after_fork()
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        raise Refused(
            TypeError,
            array,
            "is a typed key of jax.random, which torch has no dtype for",
            "pass jax.random.key_data(key)",
        )
    if array.is_deleted():
        raise Refused(
            ValueError,
            array,
            "has been deleted or donated, and its memory is gone",
            "convert it before, or leave it out of donate_argnums",
        )
    if array.dtype not in TO_TORCH:
        raise Refused(TypeError, array, f"has a dtype that is none of {SUPPORTED}", "convert it")
    if array.sharding.num_devices != 1:
        raise Refused(
            ValueError,
            array,
            f"is sharded over {array.sharding.num_devices} devices",
            "convert each array.addressable_shards[i].data, or gather it with jax.device_put",
        )
    try:
        tensor = _shared(array)
    except (RuntimeError, ValueError, BufferError) as error:
        if array.dtype.name not in FLOAT8:
            raise
        if copy is False:
            raise Refused(BufferError, array, *NO_CODE) from error
        raw = jax.lax.bitcast_convert_type(array, np.uint8)
        return _shared(raw).view(TO_TORCH[array.dtype])
    return _copied(tensor, array) if copy is True else tensor


def _shared(array: jax.Array) -> torch.Tensor:
    """Returns a tensor on the memory of an array that has passed all checks."""
    platform = next(iter(array.devices())).platform
    if platform == "cpu":
        if type(array.sharding) is jax.sharding.SingleDeviceSharding and len(ON_CPU) < 256:
            ON_CPU.add(array.sharding)
        return capsule_to_tensor(array_to_capsule(array))
    if platform == "gpu":
        return cuda.array_to_tensor(array)
    raise Refused(ValueError, array, f"is on {platform}, not on cpu or cuda", "move it to the CPU")


def _copied(tensor: torch.Tensor, array: jax.Array) -> torch.Tensor:
    with DisableFuncTorch(), torch.no_grad():
        copied = tensor.clone(memory_format=torch.contiguous_format)
    if type(copied) is not torch.Tensor:
        raise Refused(
            TypeError,
            array,
            f"cannot be copied: a mode of torch returned a {type(copied).__name__}",
            "convert it outside that mode",
        )
    return copied
