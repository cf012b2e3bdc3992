"""A torch module as a function of its parameters and buffers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bridge._private.torch import (
    TENSOR_NAME,
    DisableFuncTorch,
    disable_current_modes,
    dispatch_modes,
    exchanged_in,
    is_fake,
    pre_hooks,
)
from bridge.exchange.dtypes import crosses_to_jax
from bridge.jax._from_torch.thread import in_gradient, lasting


class FunctionalModule:
    """Runs `module` with given parameters and buffers, from any number of threads.

    To run a module this way, its tensors are exchanged during the call. Two calls at once would see
    each other's tensors, so each takes its own copy of the module. A copy has no values of
    parameters, only their shapes and dtypes. The module itself is not touched after construction,
    and the copies keep its mode.

    Args:
        module: the module.
        train: the mode, True or False; None keeps the mode that each submodule has now.

    Raises:
        TypeError: the module is scripted, or cannot be copied; it has a tensor that was computed
            from parameters, other than a weight that torch computes before each call.
        ValueError: the module is lazy and has not been run yet.
    """

    def __init__(self, module: torch.nn.Module, train: bool | None) -> None:
        if isinstance(module, torch.jit.ScriptModule | torch.nn.DataParallel):
            raise TypeError(
                f"from_torch: the module is a {type(module).__name__}, expected a plain torch.nn "
                "module: torch cannot exchange the parameters of this one"
            )
        # A tied tensor is stored under its first name; `_names_of` has all its names.
        self.parameters = dict(module.named_parameters())
        self.buffers = dict(module.named_buffers())
        self._names_of = _aliases(module, self.parameters) | _aliases(module, self.buffers)
        for kind, named in (("parameter", self.parameters), ("buffer", self.buffers)):
            for name, tensor in named.items():
                if torch.nn.parameter.is_lazy(tensor):
                    raise ValueError(
                        f"from_torch: {kind} {name!r} is lazy and has no shape yet: run the module "
                        "once in torch first"
                    )
        bare: dict[int, Any] = {}
        for parameter in self.parameters.values():
            bare[id(parameter)] = torch.nn.Parameter(
                torch.empty_like(parameter, device="meta"), requires_grad=False
            )
        for buffer in self.buffers.values():
            bare[id(buffer)] = torch.empty_like(buffer, device="meta")
        for path, layer in module.named_modules():
            for name, tensor in _computed(layer).items():
                if name not in _set_by_hooks(layer):
                    raise TypeError(
                        f"from_torch: {f'{path}.{name}' if path else name} of the module, "
                        f"{type(module).__name__}, is computed from parameters and cannot be "
                        "copied, which calls from several threads need: compute it in forward"
                    )
                bare[id(tensor)] = torch.empty_like(tensor, device="meta")
        self.buffers = {name: buffer.detach().clone() for name, buffer in self.buffers.items()}
        for device in {buffer.device for buffer in self.buffers.values() if buffer.is_cuda}:
            torch.cuda.synchronize(device)  # now, because calls read them on XLA's streams
        try:
            self._prototype = copy.deepcopy(module, bare)
        except Exception as error:
            raise TypeError(
                f"from_torch: the module, {type(module).__name__}, cannot be copied ({error}), "
                "which calls from several threads need"
            ) from error
        if train is not None:
            self._prototype.train(train)
        self._idle: list[torch.nn.Module] = []
        tensors = [*self.parameters.values(), *self.buffers.values()]
        self.device = tensors[0].device if tensors else torch.device("cpu")

    def __call__(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        args: Any,
        kwargs: Any,
    ) -> tuple[Any, dict[str, Tensor]]:
        """Returns the module's result and its new buffers; the given ones do not change."""
        tensors = dict(parameters)
        # The module's own buffers may be on another GPU than this call.
        device = next((tensor.device for tensor in tensors.values()), None)
        for name, buffer in buffers.items():
            tensors[name] = buffer.detach().to(device or buffer.device, copy=True)
        exchanged = {
            alias: tensor for name, tensor in tensors.items() for alias in self._names_of[name]
        }
        try:
            module = self._idle.pop()
        except IndexError:
            # Tracing of the current call must not record the copy.
            with disable_current_modes(), DisableFuncTorch():
                module = copy.deepcopy(self._prototype)
        with lasting() as stack:
            # A tensor that a module creates and keeps, such as a table, has no values in a trace.
            if not (dispatch_modes() and is_fake()):
                stack.callback(self._idle.append, module)
            result = torch.func.functional_call(module, exchanged, args, kwargs, tie_weights=False)
            # Buffers written in place or replaced by the module are now in `exchanged`.
            after = {name: exchanged[name].detach() for name in buffers}
            if in_gradient():
                stack.enter_context(exchanged_in(module, exchanged))
        return result, after


def _computed(layer: torch.nn.Module) -> dict[str, Tensor]:
    """Returns the attributes of the layer that are tensors with an autograd history, by name."""
    return {n: t for n, t in vars(layer).items() if isinstance(t, Tensor) and not t.is_leaf}


def _set_by_hooks(layer: torch.nn.Module) -> set[str]:
    """Returns names of weights set at each call by `weight_norm`, `spectral_norm` and `prune`."""
    names = [getattr(hook, at, None) for hook in pre_hooks(layer) for at in ("name", TENSOR_NAME)]
    return {name for name in names if isinstance(name, str)}


def _aliases(module: torch.nn.Module, canonical: Mapping[str, Tensor]) -> dict[str, list[str]]:
    name_of = {id(tensor): name for name, tensor in canonical.items()}
    aliases: dict[str, list[str]] = {name: [] for name in canonical}
    for named in (module.named_parameters, module.named_buffers):
        for alias, tensor in named(remove_duplicate=False):
            if id(tensor) in name_of:
                aliases[name_of[id(tensor)]].append(alias)
    return aliases


# 64-bit integer buffers, such as BatchNorm's num_batches_tracked, are narrowed in JAX without x64.
_NARROW = {torch.int64: torch.int32, torch.uint64: torch.uint32}


def buffer_in_jax(buffer: Tensor) -> Tensor:
    """Returns the buffer, with its integers narrowed if JAX has no 64-bit integers."""
    if crosses_to_jax(buffer.dtype) or buffer.dtype not in _NARROW:
        return buffer
    narrow = buffer.to(_NARROW[buffer.dtype])
    if not torch.equal(narrow.to(buffer.dtype), buffer):
        raise ValueError(
            f"from_torch: a buffer of {buffer.dtype} holds values that do not fit into 32 bits: "
            "call jax.config.update('jax_enable_x64', True) at the start"
        )
    return narrow


def widened(buffer: Tensor, own: Tensor) -> Tensor:
    """Returns a buffer from JAX, as wide as the module's own."""
    return buffer.to(own.dtype) if buffer.dtype is _NARROW.get(own.dtype) else buffer


def narrowed(after: Tensor, given: Tensor) -> Tensor:
    """Returns a buffer from the module, as wide as the given one."""
    return after.to(given.dtype) if given.dtype is _NARROW.get(after.dtype) else after
