"""Runs torch programs on JAX arrays: on a caller's arrays, and on XLA's buffers in a callback."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from bridge._private.jax import ArrayImpl
from bridge._private.torch import FakeTensor
from bridge.exchange.callbacks import inside_callback
from bridge.exchange.crossing import array_to_tensor, tensor_to_array
from bridge.exchange.dtypes import TO_TORCH
from bridge.jax._from_torch.call import Owner, TorchCall
from bridge.jax._from_torch.errors import reported
from bridge.jax._from_torch.program import Program, dtype_name
from bridge.jax._from_torch.thread import plain_thread
from bridge.ops import Spec

# Eager calls, on arrays of a caller, without a callback.


def run_eagerly(program: Program, operands: Sequence[Any]) -> list[jax.Array]:
    """Runs the program on the memory of the arrays; results are on the device JAX would choose."""
    with plain_thread():
        tensors = [array_to_tensor(operand, function="from_torch") for operand in operands]
        committed = {operand.device for operand in operands if operand.committed}
        host = _host_of_results(program, committed)
        versions = [tensor._version for tensor in tensors]
        if isinstance(program, TorchCall):
            specs = tuple(Spec(tuple(o.shape), o.dtype.name) for o in operands)
            results = program.run_eagerly(tensors, specs)
        else:
            results = program.run(tensors, False)
        _refuse_traced(program, results)
        if [tensor._version for tensor in tensors] != versions:
            raise ValueError(
                f"from_torch: {program.name} has written to an argument in place, and a JAX array "
                "with it: clone the argument first"
            )
        taken = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        arrays = [_array_of_its_own(result, taken) for result in results]
    return [_placed(array, host, bool(committed)) for array in arrays]


def _placed(array: jax.Array, host: Any, committed: bool) -> jax.Array:
    """Moves a result from torch to its host device; uncommits it unless operands are committed."""
    device: Any = array.device  # a Sharding for arrays of several devices; this one has one
    if host is not None and device != host and device.platform == "cpu":
        array = jax.device_put(array, host)
    if committed or ArrayImpl is jax.Array:  # jax.Array has no constructor
        return array
    return ArrayImpl(array.aval, array.sharding, [array], committed=False)


def _host_of_results(program: Program, committed: set[Any]) -> Any:
    """Returns the host device for the results, if JAX has several; None for the first.

    Torch has one host device, and its results arrive on JAX's first. JAX computes on the device of
    committed operands, and on its default device if there are none.
    """
    hosts = {device for device in committed if device.platform == "cpu"}
    if len(hosts) > 1:
        raise ValueError(
            f"from_torch: arguments of {program.name} are on different devices: "
            f"{', '.join(sorted(map(str, hosts)))}; expected one: move them with jax.device_put"
        )
    default: Any = None if committed else jax.config.jax_default_device  # type: ignore[attr-defined]
    if isinstance(default, jax.Device) and default.platform == "cpu":
        return default
    return next(iter(hosts), None)


def _array_of_its_own(result: Tensor, taken: set[int]) -> jax.Array:
    """Returns a result as an array with memory of its own, so that it can be donated."""
    memory = result.untyped_storage().data_ptr()
    copy = memory in taken and memory != 0
    taken.add(memory)
    return tensor_to_array(result, copy or None, function="from_torch", detached=True)


# Calls in callbacks, on XLA's memory, which is invalid once the callback returns.


def buffer_callback(
    program: Program, specs: Sequence[Spec], platform: str, alone: bool
) -> Callable[..., None]:
    """Returns the function for jax.experimental.buffer_callback.

    Args:
        program: the program to run.
        specs: shapes and dtypes of the results.
        platform: "cpu" or "cuda".
        alone: True if no other device takes part in the computation.
    """

    def callback(context: Any, results: Sequence[Any], *operands: Any) -> None:
        on_stream = _on_stream(context, results[0]) if platform == "cuda" else _NO_STREAM
        with reported(program.name, aloud=not alone), on_stream, plain_thread():
            _run(
                program,
                specs,
                [_lent(operand) for operand in operands],
                lambda i, result: _deliver(result, results[i]),
            )

    return callback


def numpy_callback(program: Program, specs: Sequence[Spec]) -> Callable[..., tuple[Any, ...]]:
    """Returns the function for a host callback on NumPy arrays, used with several devices."""

    def callback(*operands: Any) -> tuple[Any, ...]:
        arrays: list[Any] = [None] * len(specs)

        def deliver(i: int, result: Tensor) -> None:
            arrays[i] = np.empty(specs[i].shape, jax.numpy.dtype(specs[i].dtype))
            _deliver(result, arrays[i])

        with reported(program.name, aloud=True), plain_thread():
            device = _device(program)
            tensors = [_of_numpy(np.asarray(operand)).to(device) for operand in operands]
            _run(program, specs, tensors, deliver)
        return tuple(arrays)

    return callback


def _run(
    program: Program,
    specs: Sequence[Spec],
    tensors: list[Tensor],
    deliver: Callable[[int, Tensor], Any],
) -> None:
    """Runs the program on borrowed memory, if the program is known not to keep its arguments.

    A function that keeps an argument, for example in a cache, would read freed memory later. So the
    first call runs on copies. If all copies are freed afterwards, later calls run on XLA's memory.
    """
    lends = _owner(program).lends
    lent = lends.get(program, False)
    if not lent:
        tensors = [tensor.clone() for tensor in tensors]
    memories = [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors]
    versions = [tensor._version for tensor in tensors]
    with inside_callback(program.name):
        results = program.run(tensors, False)
        _check(program, specs, results)
        for i, result in enumerate(results):
            deliver(i, result)
    if [tensor._version for tensor in tensors] != versions:
        lends[program] = False
        raise ValueError(
            f"from_torch: {program.name} has written to an argument in place, which JAX assumes to "
            "be constant: clone the argument first"
        )
    del results
    tensors.clear()  # the caller holds the same list
    kept = not all(memory.expired() for memory in memories)
    if kept and lent:
        gc.collect()
        if not all(memory.expired() for memory in memories):
            lends[program] = False
            raise RuntimeError(
                f"from_torch: {program.name} has kept an argument, or a view of one, beyond the "
                "call, after which JAX uses its memory for something else: clone what it keeps"
            )
    lends.setdefault(program, not kept)


def _refuse_traced(program: Program, results: Sequence[Tensor]) -> None:
    if any(isinstance(result, FakeTensor) for result in results):
        raise ValueError(
            f"from_torch: {program.name} has kept a tensor from its trace, in a cache for example, "
            "and that tensor has no values: pass result_shape= to from_torch, so that it is not "
            "traced, or call the function once outside of jit, grad and vmap first"
        )


def _check(program: Program, specs: Sequence[Spec], results: Sequence[Tensor]) -> None:
    _refuse_traced(program, results)
    found = [Spec(tuple(result.shape), dtype_name(result)) for result in results]
    if found != list(specs):
        raise ValueError(
            f"from_torch: {program.name} returned {_in_words(found)}, but {_in_words(specs)} was "
            "found when it was traced, or stated as result_shape: shapes and dtypes must depend "
            "neither on values nor on settings that change later, such as torch.set_default_dtype"
        )


def _in_words(specs: Sequence[Spec]) -> str:
    return "(" + ", ".join(f"{spec.dtype}{list(spec.shape)}" for spec in specs) + ")"


def _deliver(result: Tensor, buffer: Any) -> None:
    """Copies a result into a buffer of XLA or a NumPy array of the same shape and dtype."""
    if result.is_cpu and result.is_contiguous() and not (result.is_conj() or result.is_neg()):
        # Not with torch's copy: its threads wait for one another if other threads have the cores.
        target = np.asarray(buffer)
        ctypes.memmove(target.ctypes.data, result.data_ptr(), target.nbytes)
    elif isinstance(buffer, np.ndarray):
        _of_numpy(buffer).copy_(result)
    else:
        _lent(buffer).copy_(result)


def _lent(buffer: Any) -> Tensor:
    return torch.from_dlpack(buffer)


def _of_numpy(array: np.ndarray) -> Tensor:
    """Returns the array's memory as a tensor, also for dtypes that NumPy lacks."""
    if not array.flags.c_contiguous or not array.flags.writeable:
        array = np.array(array, order="C")
    if array.size == 0:
        return torch.empty(array.shape, dtype=TO_TORCH[array.dtype])
    flat = torch.from_numpy(array.reshape(-1).view(np.uint8))
    return flat.view(TO_TORCH[array.dtype]).view(array.shape)


def _owner(program: Any) -> Owner:
    while not isinstance(program, TorchCall):
        program = program.of
    return program.owner


def _device(program: Any) -> Any:
    module = _owner(program).module
    return "cpu" if module is None else module.device


@contextlib.contextmanager
def _on_stream(context: Any, buffer: Any) -> Iterator[None]:
    """Queues torch's work on XLA's stream, so that neither host nor device waits."""
    device = torch.device("cuda", buffer.__dlpack_device__()[1])
    stream = torch.cuda.ExternalStream(context.stream, device)
    with torch.cuda.device(device), torch.cuda.stream(stream):
        yield


_NO_STREAM = contextlib.nullcontext()
