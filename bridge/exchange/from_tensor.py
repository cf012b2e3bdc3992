"""Conversion of a torch tensor to a JAX array on the same memory."""

from __future__ import annotations

import sys
from typing import Any

import jax
import torch

from bridge._private.torch import (
    DisableFuncTorch,
    FakeTensor,
    async_collective_tensor,
    disable_current_modes,
    dispatch_modes,
    forward_ad,
    is_functorch_wrapped,
    is_zero_tensor,
    make_subclass,
)
from bridge.exchange import cuda
from bridge.exchange.dtypes import FLOAT8, NARROW, SUPPORTED, TO_JAX, crosses_to_jax
from bridge.exchange.refusal import NO_CODE, Refused
from bridge.exchange.runtime import (
    capsule_to_array,
    cpu_device,
    refuse_after_fork,
    tensor_to_capsule,
)

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
# Units are bytes. JAX rejects CPU memory with less alignment. On a GPU it accepts any memory, but
# then every program that gets the array fails, because XLA compiles for aligned parameters.
ALIGNMENT = {"cpu": 64, "cuda": 16}


def cross(
    tensor: Any, copy: bool | None = None, detached: bool = False, lasts: bool = False
) -> Any:
    """Returns an array on the tensor's memory, or on a copy. Raises Refused if neither is possible.

    Args:
        tensor: any torch tensor; anything else is returned unchanged.
        copy: as in bridge.to_jax.
        detached: True if the caller handles gradients: requires_grad and tangents are ignored.
        lasts: True if the array may outlive the call that it is made for.
    """
    # The fast path. Anything but an ordinary tensor fails one of these conditions; memory that XLA
    # cannot read in place raises, and takes the general path.
    if (
        copy is not True
        and type(tensor) in PLAIN
        and tensor.is_cpu
        and (tensor.dtype in NARROW or crosses_to_jax(tensor.dtype))
        and (detached or not tensor.requires_grad)
        and not tensor.is_neg()
        and not tensor.is_conj()
        and not is_functorch_wrapped(tensor)
        and (detached or forward_ad._current_level < 0)
        and not dispatch_modes()
    ):
        try:
            if tensor.data_ptr() != 0:  # a lazy zero, or a freed storage, as in FSDP
                # Export another tensor on the same storage: `tensor.data = other`, as in
                # `module.to(dtype)`, and `tensor.set_(other)` must not free JAX's memory.
                array = capsule_to_array(tensor_to_capsule(tensor.data), cpu_device(), None, False)
                if lasts:
                    _fix_size(tensor)
                return array
        except (RuntimeError, ValueError, BufferError):
            pass
    return _in_general(tensor, copy, detached, lasts)


def _in_general(tensor: Any, copy: bool | None, detached: bool, lasts: bool) -> Any:
    if not isinstance(tensor, torch.Tensor):
        is_array = copy is True and isinstance(tensor, jax.Array)
        return jax.numpy.array(tensor, copy=True) if is_array else tensor
    refuse_after_fork()
    tensor = _plain(tensor)
    if not detached:
        _refuse_gradients(tensor)
    _refuse_kinds(tensor)
    # Conditions that a copy fixes come last, so that no advice leads to the next error.
    why_copy = "" if copy is True else _why_copy(tensor)
    if copy is False and why_copy:
        raise Refused(BufferError, tensor, f"{why_copy} and copy=False", "pass copy=None")
    if copy is True or why_copy:
        original = tensor
        # Modes that watch torch's operations must not see this copy. It also resolves a lazy
        # conjugate or negative.
        with DisableFuncTorch(), torch.no_grad():
            tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
        if type(tensor) is not torch.Tensor:
            raise Refused(
                TypeError,
                original,
                f"cannot be copied: a mode of torch returned a {type(tensor).__name__}",
                "convert it outside that mode",
            )
    elif lasts and tensor.is_cpu:
        with DisableFuncTorch(), disable_current_modes():
            _fix_size(tensor)
    try:
        return _shared(tensor)
    except (RuntimeError, ValueError, BufferError) as error:
        dtype = TO_JAX[tensor.dtype]
        if dtype.name not in FLOAT8:
            raise
        if copy is False:
            raise Refused(BufferError, tensor, *NO_CODE) from error
        return jax.lax.bitcast_convert_type(_shared(tensor.view(torch.uint8)), dtype)


def _fix_size(tensor: torch.Tensor) -> None:
    """Makes `resize_` raise from now on for all tensors on this storage, as `numpy()` does.

    It would free the memory that JAX reads, and put other memory into the same storage.
    """
    storage = tensor.untyped_storage()
    if storage.resizable():
        # NumPy lacks some dtypes, so use an empty uint8 tensor on the storage.
        torch.empty(0, dtype=torch.uint8).set_(storage, 0, (0,), (1,)).numpy()


def _shared(tensor: torch.Tensor) -> jax.Array:
    """Returns an array on the memory of a tensor that has passed all checks.

    As on the fast path, another tensor on the storage is exported. Modes that watch torch's
    operations do not see it.
    """
    with DisableFuncTorch():
        tensor = make_subclass(torch.Tensor, tensor)
    if tensor.is_cuda:
        return cuda.tensor_to_array(tensor)
    return capsule_to_array(tensor_to_capsule(tensor), cpu_device(), None, False)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the ordinary tensor in a subclass or wrapper, or raises Refused."""
    if is_functorch_wrapped(tensor):
        raise Refused(
            TypeError,
            tensor,
            "is a value inside a torch.func transform (grad, vmap, jvp)",
            "wrap the JAX function with bridge.torch.from_jax, which those transforms pass through",
        )
    if type(tensor) in PLAIN:
        return tensor
    refuse_lazy(tensor)
    if isinstance(tensor, async_collective_tensor()):
        return _plain(tensor.wait())  # type: ignore[attr-defined]
    if isinstance(tensor, FakeTensor):
        raise Refused(
            TypeError,
            tensor,
            "has no memory: it is being traced by torch.compile or torch.export",
            "wrap the JAX function with bridge.torch.from_jax, which is traced as one operation",
        )
    refuse_spread(tensor)
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise Refused(
            TypeError,
            tensor,
            "is a tensor subclass with its own memory or meaning",
            "convert the plain tensors inside it",
        )
    return tensor.as_subclass(torch.Tensor)


def refuse_lazy(tensor: torch.Tensor) -> None:
    """Raises Refused for a parameter or buffer of a lazy module that has not been run."""
    if torch.nn.parameter.is_lazy(tensor):
        why, fix = "is lazy and has no shape yet", "run its module once in torch first"
        raise Refused(ValueError, tensor, why, fix)


def refuse_spread(tensor: torch.Tensor) -> None:
    """Raises Refused for a DTensor."""
    if isinstance(tensor, _dtensor()):
        raise Refused(
            TypeError,
            tensor,
            "is spread over a device mesh",
            "convert its to_local() part on each rank, or its full_tensor()",
        )


def _dtensor() -> Any:
    """Returns the type DTensor, or () if it is not imported and so has no instances."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())


def _refuse_gradients(tensor: torch.Tensor) -> None:
    if tensor.requires_grad:
        raise Refused(
            ValueError,
            tensor,
            "requires a gradient, which would be lost here",
            "pass tensor.detach(), or call the JAX function through bridge.torch.from_jax",
        )
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
        raise Refused(
            ValueError,
            tensor,
            "has a tangent of forward-mode differentiation, which would be lost here",
            "pass forward_ad.unpack_dual(tensor).primal, or use bridge.torch.from_jax",
        )


def _refuse_kinds(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout)
        kind = "nested" if tensor.is_nested else kind
        raise Refused(TypeError, tensor, f"is {kind}, not dense", "make it dense first")
    if tensor.device.type not in ("cpu", "cuda"):
        fix = "make it with values" if tensor.device.type == "meta" else "move it with .cpu()"
        raise Refused(ValueError, tensor, f"is on {tensor.device}, not on cpu or cuda", fix)
    if tensor.numel() and tensor.data_ptr() == 0 and not is_zero_tensor(tensor):
        why, fix = "has elements, but its storage was freed", "gather or materialise it first"
        raise Refused(ValueError, tensor, why, fix)
    if tensor.dtype not in TO_JAX:
        raise Refused(TypeError, tensor, f"has a dtype that is none of {SUPPORTED}", "convert it")
    if not crosses_to_jax(tensor.dtype):
        raise Refused(
            ValueError,
            tensor,
            f"is {TO_JAX[tensor.dtype]}, which JAX narrows to 32 bits while jax_enable_x64 is off",
            "call jax.config.update('jax_enable_x64', True) at the start, or convert it yourself",
        )


def _why_copy(tensor: torch.Tensor) -> str:
    """Returns the reason why JAX cannot use the memory in place; "" if it can."""
    if tensor.is_conj():
        return "is a lazy conjugate (its bit is set), whose values are not in memory"
    if tensor.is_neg():
        return "is a lazy negative (its bit is set), whose values are not in memory"
    if is_zero_tensor(tensor):
        return "is a lazy zero without memory"
    if not is_compact(tensor):
        return "has strides that are no permutation of a compact array"
    if not is_aligned(tensor):
        alignment = ALIGNMENT[tensor.device.type]
        return f"starts at an address that is no multiple of {alignment} bytes, which XLA requires"
    return ""


def is_aligned(tensor: torch.Tensor) -> bool:
    """True if the memory starts at an address that XLA accepts on that device."""
    return tensor.numel() == 0 or tensor.data_ptr() % ALIGNMENT[tensor.device.type] == 0


def is_compact(tensor: torch.Tensor) -> bool:
    """True if the elements fill a block of memory, each once, in any order of the dimensions."""
    if tensor.numel() == 0:
        return True
    dimensions = sorted(
        (stride, size)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if size != 1
    )
    expected = 1
    for stride, size in dimensions:
        if stride != expected:
            return False
        expected *= size
    return True
