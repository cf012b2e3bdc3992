"""Crossings on a CUDA device: who waits for whom, and until when memory is kept.

Both frameworks queue their kernels on streams of their own. Three rules follow, all kept by events
on the device, never by a wait of the host:

- before: the consumer's stream waits for what the producer's has queued at the crossing;
- after, torch's memory: torch's allocator is told of JAX's stream, and hands a block out again once
  that stream has passed the point at which JAX let go of it;
- after, JAX's memory: when the last torch tensor on it is dropped, JAX's stream, on which its
  allocator orders everything, waits for torch's before the memory is given back.
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
from bridge._exchange.refusal import Refused
from bridge._exchange.runtime import (
    array_to_capsule,
    array_to_capsule_on,
    capsule_to_array,
    capsule_to_tensor,
    collect_garbage,
    cuda_device,
    tensor_to_capsule,
)

LEGACY_STREAM = 1  # how CUDA names the default stream where 0 would mean "none"


def tensor_to_array(tensor: torch.Tensor) -> jax.Array:
    """An array on the tensor's device memory; JAX's work on it waits for torch's stream."""
    index = tensor.device.index
    device = cuda_device(index)
    with torch.cuda.device(index):
        if torch.cuda.is_current_stream_capturing():
            raise Refused(
                ValueError,
                tensor,
                "would cross while torch's stream is being captured into a CUDA graph, which "
                "JAX's streams cannot join",
                "cross before the capture begins",
            )
        ready = device.get_stream_for_external_ready_events()
        torch.cuda.ExternalStream(ready, device=index).wait_stream(torch.cuda.current_stream())
        tensor.record_stream(_jax_stream(index))
        return capsule_to_array(tensor_to_capsule(tensor), device, ready, False)


def array_to_tensor(array: jax.Array) -> torch.Tensor:
    """A tensor on the array's device memory; torch's current stream waits for the array."""
    index = next(iter(array.devices())).local_hardware_id
    if array.sharding.memory_kind not in (None, "device"):
        raise Refused(
            ValueError,
            array,
            f"lies in {array.sharding.memory_kind} memory, not in the device's",
            "move it with jax.device_put",
        )
    with torch.cuda.device(index):
        stream = torch.cuda.current_stream()
        if torch.cuda.is_current_stream_capturing():
            # An event from outside must not enter the graph. None is needed for what is there.
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
            _jax_stream(index)  # found now, where it may be waited for, and not when memory drops
            handle = stream.cuda_stream or LEGACY_STREAM
            tensor = capsule_to_tensor(array_to_capsule_on(array, handle))
    # The array is held beside what the tensor holds, which is gone by the time of the call.
    held = array.addressable_data(0)
    when_dropped(tensor, functools.partial(_give_back, held, index, stream))
    return tensor


_watched: dict[int, weakref.ref[Any]] = {}
_given_back_later: list[tuple[jax.Array, int, torch.cuda.Stream]] = []


def when_dropped(tensor: torch.Tensor, action: Callable[[], None]) -> None:
    """Calls `action` once when the last tensor on this one's memory is gone."""

    def dropped(reference: Any) -> None:
        _watched.pop(id(reference), None)
        if not sys.is_finalizing():
            action()

    # torch keeps a storage's Python object for as long as anything in C++ uses the storage.
    reference = weakref.ref(tensor.untyped_storage(), dropped)
    _watched[id(reference)] = reference


def _give_back(array: jax.Array, index: int, stream: torch.cuda.Stream) -> None:
    """Lets JAX's stream wait for torch's readers, then drops the array."""
    with torch.cuda.device(index):
        if torch.cuda.is_current_stream_capturing():
            _given_back_later.append((array, index, stream))  # events stay out of the graph
            return
        jax_stream = _jax_stream(index)
        for reader in {stream, torch.cuda.current_stream()}:
            jax_stream.wait_stream(reader)
    collect_garbage()
    while _given_back_later:
        _give_back(*_given_back_later.pop())


_lock = threading.Lock()


@functools.cache
def _jax_stream(index: int) -> torch.cuda.Stream:
    """The stream on which JAX computes on this device, which is one for its lifetime."""
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
