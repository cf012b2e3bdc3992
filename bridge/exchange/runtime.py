"""JAX's own DLPack functions, the devices they need, and their state after a fork.

`jax.dlpack.from_dlpack` spends nine tenths of its time in Python on questions that are answered
once here. If jaxlib lacks the internal functions, known in versions 0.9.1 to 0.12, the public
`from_dlpack` of each framework replaces them.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import jax
import torch

from bridge import _fork
from bridge._private.jax import jaxlib_module

CPU, CUDA = 1, 2  # DLPack's device types


def _function_of_jaxlib(name: str) -> Callable[..., Any] | None:
    return getattr(jaxlib_module, name, None)


_export = _function_of_jaxlib("buffer_to_dlpack_managed_tensor")
_import = _function_of_jaxlib("dlpack_managed_tensor_to_buffer")

# jaxlib holds objects that other libraries have released until it, or Python's collector, calls
# this.
collect_garbage: Callable[[], Any] = _function_of_jaxlib("collect_garbage") or gc.collect


def array_to_capsule(array: jax.Array) -> Any:
    """Returns a DLPack capsule of a CPU array; waits until the array is computed.

    The capsule exports and owns a second array on the same buffer. If the user deleted an exported
    array itself, jaxlib would end the process.
    """
    if _export is None:
        return array.__dlpack__()
    return _export(array.addressable_data(0))


def array_to_capsule_on(array: jax.Array, stream: int) -> Any:
    """Returns a DLPack capsule of a CUDA array; `stream` waits for the array, the host does not."""
    if _export is None:
        return array.__dlpack__(stream=stream)  # type: ignore[call-arg]
    return _export(array.addressable_data(0), stream)


class _Producer:
    """Wraps an existing capsule for `jax.dlpack.from_dlpack`, which calls its method."""

    def __init__(self, capsule: Any, device: jax.Device) -> None:
        self._capsule, self._device = capsule, device

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU if self._device.platform == "cpu" else CUDA), self._device.local_hardware_id


def _import_publicly(
    capsule: Any, device: jax.Device, stream: int | None, copy: bool | None
) -> jax.Array:
    return jax.dlpack.from_dlpack(_Producer(capsule, device), copy=copy)


# capsule_to_array(capsule, device, stream, copy) returns an array on the memory of the capsule. It
# consumes the capsule unless it raises. `stream`, of the device, already waits for the memory's
# contents. With copy=False it raises JaxRuntimeError, a RuntimeError, if XLA cannot use the memory
# in place.
capsule_to_array: Callable[[Any, jax.Device, int | None, bool | None], jax.Array] = (
    _import or _import_publicly
)
tensor_to_capsule: Callable[[torch.Tensor], Any] = torch.utils.dlpack.to_dlpack


@functools.cache
def cpu_device() -> jax.Device:
    """Returns the CPU device that host memory belongs to."""
    refuse_after_fork()
    return jax.local_devices(backend="cpu")[0]


@functools.cache
def cuda_device(index: int) -> jax.Device:
    """Returns JAX's device for torch's `cuda:index`."""
    refuse_after_fork()
    for device in jax.local_devices(backend="cuda"):
        if device.local_hardware_id == index:
            return device
    raise RuntimeError(f"JAX has no device for cuda:{index}")


# Shardings that consist of one CPU device of this process, filled as arrays arrive.
ON_CPU: set[jax.sharding.Sharding] = set()


def refuse_after_fork() -> None:
    """Raises RuntimeError in a process that was forked while JAX's threads were running."""
    if _fork.after_jax:
        raise RuntimeError(
            "this process was forked after JAX had started, and has none of its threads: "
            "start processes with the 'spawn' or 'forkserver' method"
        )


def _forget() -> None:
    """Clears the caches of the fast paths, so that in a forked child the lookup raises again."""
    cpu_device.cache_clear()
    cuda_device.cache_clear()
    ON_CPU.clear()


_fork.tell(_forget)
