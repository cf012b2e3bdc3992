"""Conversion on a CUDA device: the order of work on streams, and the lifetime of memory.

Both frameworks queue their kernels on streams of their own. Three rules follow. Events on the
device enforce all of them; the host never waits.

- Before use: the consumer's stream waits for all work queued on the producer's stream at the
  conversion.
- End of torch's memory: torch's allocator records JAX's stream. It reuses a block only after that
  stream has passed the point at which JAX released the block.
- End of JAX's memory: when the last torch tensor on it is dropped, JAX's stream, which orders its
  allocator, waits for torch's stream before the memory is returned.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

from bridge import _native
from bridge._private.torch import capsule_to_tensor
from bridge.exchange.refusal import Refused
from bridge.exchange.runtime import (
    array_to_capsule,
    array_to_capsule_on,
    capsule_to_array,
    collect_garbage,
    cuda_device,
    tensor_to_capsule,
)

LEGACY_STREAM = 1  # CUDA's name for the default stream where 0 would mean "none"


def tensor_to_array(tensor: torch.Tensor) -> jax.Array:
    """Returns an array on the tensor's device memory; JAX's work on it waits for torch's stream."""
    index = tensor.device.index
    device = cuda_device(index)
    with torch.cuda.device(index):
        if torch.cuda.is_current_stream_capturing():
            raise Refused(
                ValueError,
                tensor,
                "would be converted while torch's stream is captured into a CUDA graph, which "
                "JAX's streams cannot join",
                "convert it before the capture begins",
            )
        ready = _stream_for_ready_events(device)
        if ready is None:
            torch.cuda.current_stream().synchronize()
        else:
            torch.cuda.ExternalStream(ready, device=index).wait_stream(torch.cuda.current_stream())
        tensor.record_stream(_jax_stream(index))
        return capsule_to_array(tensor_to_capsule(tensor), device, ready, False)


def array_to_tensor(array: jax.Array) -> torch.Tensor:
    """Returns a tensor on the array's device memory; torch's current stream waits for the array."""
    index = next(iter(array.devices())).local_hardware_id
    if array.sharding.memory_kind not in (None, "device"):
        raise Refused(
            ValueError,
            array,
            f"is in {array.sharding.memory_kind} memory, not in the device's",
            "move it with jax.device_put",
        )
    with torch.cuda.device(index):
        stream = torch.cuda.current_stream()
        if torch.cuda.is_current_stream_capturing():
            # An outside event must not enter the graph. A finished array needs no event.
            if not array.is_ready():  # type: ignore[attr-defined]
                raise Refused(
                    ValueError,
                    array,
                    "is still being computed while torch's stream is being captured into a CUDA "
                    "graph, which cannot wait for it",
                    "call its block_until_ready() before the capture begins",
                )
            tensor = capsule_to_tensor(array_to_capsule(array))
        else:
            _jax_stream(index)  # look it up now: this may wait, and the drop of memory must not
            tensor = capsule_to_tensor(_capsule_for(array, stream))
    # The tensor's own reference to the array is gone when the action runs, so keep another.
    held = array.addressable_data(0)
    when_dropped(tensor, functools.partial(_give_back, held, index, stream))
    return tensor


def _stream_for_ready_events(device: jax.Device) -> int | None:
    """Returns the stream that must wait for a tensor's contents; None if the host has to wait.

    Not every GPU client of JAX has such a stream (see XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT).
    """
    try:
        return device.get_stream_for_external_ready_events()
    except jax.errors.JaxRuntimeError as error:
        if "UNIMPLEMENTED" not in str(error):
            raise
        return None


def _capsule_for(array: jax.Array, stream: torch.cuda.Stream) -> Any:
    """Returns a capsule of an array for which `stream` waits, or the host if JAX lacks that."""
    try:
        return array_to_capsule_on(array, stream.cuda_stream or LEGACY_STREAM)
    except jax.errors.JaxRuntimeError as error:
        if "UNIMPLEMENTED" not in str(error):
            raise
        return array_to_capsule(array.block_until_ready())


_watched: dict[int, weakref.ref[Any]] = {}
_given_back_later: list[tuple[jax.Array, int, torch.cuda.Stream]] = []


def when_dropped(tensor: torch.Tensor, action: Callable[[], None]) -> None:
    """Calls `action` once when the last tensor on this tensor's memory is gone."""

    def dropped(reference: Any) -> None:
        _watched.pop(id(reference), None)
        if not sys.is_finalizing():
            action()

    # torch keeps a storage's Python object for as long as anything in C++ uses the storage.
    reference = weakref.ref(tensor.untyped_storage(), dropped)
    _watched[id(reference)] = reference


def _give_back(array: jax.Array, index: int, stream: torch.cuda.Stream) -> None:
    """Makes JAX's stream wait for torch's readers, then drops the array.

    It also drops earlier arrays that could not be returned before. An array that cannot be returned
    now waits for the next call.
    """
    _given_back_later.append((array, index, stream))
    for _ in range(len(_given_back_later)):
        held = _given_back_later.pop(0)
        if not _wait_for_readers(*held[1:]):
            _given_back_later.append(held)
    collect_garbage()


def _wait_for_readers(index: int, stream: torch.cuda.Stream) -> bool:
    """Makes JAX's stream wait for `stream` and the current one; False while one is captured.

    A wait for an event of a capture would make JAX's stream a part of the capture.
    """
    with torch.cuda.device(index):
        readers = {stream, torch.cuda.current_stream()}
        if any(map(_is_capturing, readers)):
            return False
        jax_stream = _jax_stream(index)
        for reader in readers:
            jax_stream.wait_stream(reader)
    return True


def _is_capturing(stream: torch.cuda.Stream) -> bool:
    """True if work queued on the stream becomes a part of a CUDA graph."""
    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()


_lock = threading.Lock()


@functools.cache
def _jax_stream(index: int) -> torch.cuda.Stream:
    """Returns the stream on which JAX computes on this device; it never changes."""
    return torch.cuda.ExternalStream(noted_stream(cuda_device(index)), device=index)


@functools.cache
def _register() -> None:
    for platform, handler in _native.stream_handlers().items():
        jax.ffi.register_ffi_target("bridge_stream", handler, platform=platform)


def noted_stream(device: jax.Device) -> int:
    """Asks XLA for its stream by a custom call, and waits for the answer; 0 on the CPU."""
    with _lock, jax.ensure_compile_time_eval(), jax.default_device(device):
        _register()
        result = jax.ShapeDtypeStruct((1,), np.uint8)
        call = jax.jit(jax.ffi.ffi_call("bridge_stream", result, has_side_effect=True))
        call().block_until_ready()
        return _native.noted_stream()
