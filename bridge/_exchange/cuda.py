"""Crossings on a CUDA device: who waits for whom, and until when memory is kept.

Both frameworks run their kernels asynchronously on streams of their own. Each crossing lets the
consumer's stream wait for the producer's with an event, on the device; the host never waits.
"""

from __future__ import annotations

import jax
import torch

from bridge._exchange.refusal import Refused
from bridge._exchange.runtime import (
    array_to_capsule_on,
    capsule_to_array,
    capsule_to_tensor,
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
        stream = device.get_stream_for_external_ready_events()
        waiting = torch.cuda.ExternalStream(stream, device=index)
        waiting.wait_stream(torch.cuda.current_stream(index))
        # torch's allocator hands the memory out again when what is queued here has been done.
        tensor.record_stream(waiting)
        return capsule_to_array(tensor_to_capsule(tensor), device, stream, False)


def array_to_tensor(array: jax.Array) -> torch.Tensor:
    """A tensor on the array's device memory; torch's current stream waits for the array."""
    index = next(iter(array.devices())).local_hardware_id
    with torch.cuda.device(index):
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
            return capsule_to_tensor(array.__dlpack__())
        stream = torch.cuda.current_stream(index).cuda_stream or LEGACY_STREAM
        return capsule_to_tensor(array_to_capsule_on(array, stream))
