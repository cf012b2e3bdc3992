"""Flax NNX and Equinox modules as torch modules."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bridge._private.torch import current_graph_task_id
from bridge.exchange import from_array, from_tensor
from bridge.exchange.refusal import Refused
from bridge.torch._from_jax.functions import JaxFunction
from bridge.torch._from_jax.parts import Part, split
from bridge.torch._from_jax.pickling import Pickled
from bridge.torch._from_jax.static_arguments import listed


class JaxModule(torch.nn.Module):
    """A JAX module as a torch module, with its parameters in torch.

    Parameters appear as torch Parameters under the names that they have in JAX, `layers.0.kernel`:
    optimizers, `state_dict`, `to`, `torch.func.functional_call` and gradient hooks work as with any
    torch module. All other arrays are buffers: batch statistics, counters, and the keys of random
    streams, as int32. Variables that the JAX module changes while it runs (Flax NNX) are written
    into the buffers afterwards. `train()` and `eval()` set the mode of the JAX module too.

    The constructor copies the arrays and does not change the JAX module; `jax_module()` returns a
    JAX module with torch's current values.

    `copy.deepcopy`, `torch.save`, `torch.load(..., weights_only=False)` and processes started by
    spawn take a JaxModule as any module. Functions in the JAX module, and `method` if it is one,
    are pickled by name: a lambda, or a function defined inside of another, is a PicklingError.

    Args:
      module: a Flax NNX module or a pytree of them, whose `nnx.Param` become Parameters; or an
        Equinox module or any other pytree, whose arrays of floats and complex numbers become
        Parameters.
      method: the code that a call runs: the name of a method, or a function of the module and the
        arguments, `lambda module, x: jax.vmap(module)(x)`. With a pytree of parameters this is how
        Flax Linen and plain functions are used:
        `JaxModule(variables, lambda v, x: linen.apply(v, x))`.
      static_argnames: keyword arguments that are passed on and not traced, such as flags.

    Raises:
      TypeError: `module` has no arrays, is a torch module, or has plain arrays beside NNX modules;
        or `method` is neither a name nor a function. On a call: the JAX module writes to one of its
        parameters, or changes a number or string in its attributes; and as `from_jax`.
      ValueError: `module` has no method of that name; an array cannot cross to torch.
    """

    @torch.compiler.disable(reason="a JaxModule is made outside of torch's graphs")
    def __init__(
        self,
        module: Any,
        method: str | Callable[..., Any] = "__call__",
        *,
        static_argnames: str | Sequence[str] = (),
    ) -> None:
        super().__init__()
        if isinstance(module, torch.nn.Module):
            raise TypeError(
                f"JaxModule: module is a torch module, {type(module).__name__}, expected a module "
                "of JAX"
            )
        if isinstance(method, str):
            if not callable(getattr(module, method, None)):
                raise ValueError(
                    f"JaxModule: module has type {type(module).__name__}, which has no method "
                    f"{method!r}; give method as a name, or as a function of module and arguments"
                )
        elif not callable(method):
            raise TypeError(
                f"JaxModule: method has type {type(method).__name__}, expected a name or a function"
            )
        parts = split(module)
        if not parts.parts:
            raise TypeError(
                f"JaxModule: module has type {type(module).__name__} and no arrays, expected a "
                "Flax NNX module, an Equinox module or a pytree of arrays"
            )
        names = listed("JaxModule", "static_argnames", static_argnames, str)
        self._static_argnames = frozenset(names)
        self._parts = parts
        self._run = method if callable(method) else functools.partial(_run_method, method)
        self._jax_name = type(module).__name__
        self._start()
        self._places: list[tuple[torch.nn.Module, str]] = []
        self._names: list[str] = []  # their names in torch, each of them once
        for part in parts.parts:
            self._place(part)
        self._count = sum(part.is_parameter for part in parts.parts)

    def _start(self) -> None:
        # For each mode, the name of a random stream's count that the module has advanced.
        self._drawn: dict[bool, str] = {}
        self._function = JaxFunction(self._traced, static_argnums=(0, 1))
        self._function._name = self._jax_name
        # For an attribute with a __get__, as JaxFunction has, dynamo of torch 2.11 calls that.
        self._call = self._function.__call__

    def __getstate__(self) -> dict[str, Any]:
        """Drops the compiled programs; they are made again on demand."""
        state = dict(vars(self))
        del state["_function"], state["_call"]
        state["_jax"] = Pickled(self._jax_name, (state.pop("_parts"), state.pop("_run")))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = dict(state)
        parts, run = own.pop("_jax").value
        super().__setstate__({**own, "_parts": parts, "_run": run})
        self._start()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of the JAX module, with tensors for arrays."""
        # Check before the call: a checkpoint may leave the call by an exception.
        if self.training in self._drawn and not torch.compiler.is_compiling():
            self._refuse_again(self._drawn[self.training])
        tensors = [getattr(owner, name) for owner, name in self._places]
        buffers = tensors[self._count :]
        # Copies: the buffers are written below, but a backward pass reads the old values.
        copies = [buffer.clone() for buffer in buffers] if torch.is_grad_enabled() else buffers
        names = sorted(name for name in kwargs if name in self._static_argnames)
        static = tuple((name, kwargs.pop(name)) for name in names)
        # Pass dicts by name, so that errors of `from_jax` name a tensor as the user does.
        output, updates = self._call(
            self.training,
            static,
            parameters=dict(zip(self._names, tensors[: self._count], strict=False)),
            buffers=dict(zip(self._names[self._count :], copies, strict=True)),
            args=args,
            kwargs=kwargs,
        )
        self._check_updates(tensors, updates)
        # Detach both sides: torch.export turns a no_grad block into a graph that it cannot load.
        for i, update in updates.items():
            tensors[i].detach().copy_(update.detach())
            if (part := self._parts.parts[i]).dtype.kind == "u":  # a random stream's count
                self._drawn[self.training] = part.name
        return output

    def _refuse_again(self, count: str) -> None:
        if current_graph_task_id() >= 0:
            raise RuntimeError(
                f"JaxModule: the module draws random numbers ({count}) while a backward pass "
                "computes it again, as activation checkpoints do, and they would differ from the "
                "first ones; call it outside of the checkpoint, and let flax.nnx.remat or "
                "jax.checkpoint recompute its inner values"
            )

    def _check_updates(self, tensors: list[Any], updates: dict[int, Any]) -> None:
        """Raises ValueError if a buffer cannot hold the module's new value for it."""
        for i, update in updates.items():
            part, old = self._parts.parts[i], tensors[i]
            is_like = old.is_floating_point() and update.is_floating_point()
            if update.shape != old.shape or not (is_like or update.dtype == old.dtype):
                raise ValueError(
                    f"JaxModule: the module has replaced {part.name} by {update.dtype} of shape "
                    f"{list(update.shape)}, expected {old.dtype} of shape {list(old.shape)}: a "
                    "buffer does not change its dtype or shape"
                )

    def jax_module(self) -> Any:
        """Returns a JAX module with copies of the current parameters and buffers.

        Raises:
          TypeError, ValueError: one of them cannot cross, as for `bridge.to_jax`.
        """
        arrays = []
        for (owner, name), path in zip(self._places, self._names, strict=True):
            try:
                arrays.append(from_tensor.cross(getattr(owner, name), True, True))
            except Refused as refused:
                raise refused.at("JaxModule.jax_module", path) from refused.__cause__
        return self._parts.join(self.training, self._parts.leaves(arrays))

    def cache_info(self) -> Any:
        """Returns counts of calls, traces and stored programs; see `from_jax`."""
        return self._function.cache_info()

    def extra_repr(self) -> str:
        return self._jax_name

    def _traced(
        self, training: bool, static: Any, parameters: Any, buffers: Any, args: Any, kwargs: Any
    ) -> Any:
        arrays = {**parameters, **buffers}
        leaves = self._parts.leaves([arrays[name] for name in self._names])
        module = self._parts.join(training, leaves)
        output = self._run(module, *args, **dict(static), **kwargs)
        updates = self._parts.after(module, leaves)
        for i in updates:
            part = self._parts.parts[i]
            if part.is_parameter:
                raise TypeError(
                    f"JaxModule: the module writes to its parameter {part.name} as it runs; use "
                    "another kind of variable than nnx.Param for values that change"
                )
        return output, updates

    def _place(self, part: Part) -> None:
        """Registers an array under its name, in submodules made for the steps of its path."""
        *parents, name = part.name.split(".")
        owner: torch.nn.Module = self
        path = ""
        for parent in parents:
            parent = _free(owner, parent)
            path += f"{parent}."
            if parent not in dict(owner.named_children()):
                owner.add_module(parent, torch.nn.Module())
            owner = owner.get_submodule(parent)
        name = _free(owner, name)
        try:
            tensor = from_array.cross(part.value, True)
        except Refused as refused:
            raise refused.at("JaxModule", part.name) from refused.__cause__
        if part.is_parameter:
            owner.register_parameter(name, torch.nn.Parameter(tensor))
        else:
            owner.register_buffer(name, tensor)
        self._places.append((owner, name))
        self._names.append(path + name)


def _run_method(name: str, module: Any, /, *args: Any, **kwargs: Any) -> Any:
    return getattr(module, name)(*args, **kwargs)


def _free(owner: torch.nn.Module, name: str) -> str:
    """Returns the name, or a similar one if torch's modules have an attribute of that name."""
    if name in dict(owner.named_children()):
        return name
    return f"{name}_" if hasattr(owner, name) or not name else name
