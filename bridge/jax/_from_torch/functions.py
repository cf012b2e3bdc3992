"""Torch functions and modules as JAX functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import torch

from bridge.exchange import trees
from bridge.exchange.callbacks import refuse_in_callback
from bridge.exchange.crossing import tensor_to_array
from bridge.exchange.pickling import name_of
from bridge.exchange.runtime import refuse_after_fork
from bridge.jax._adapter.avals import spec_of
from bridge.jax._from_torch.arguments import (
    ARRAYS,
    as_jax_array,
    checked_state,
    is_hashable,
    path_of,
)
from bridge.jax._from_torch.call import (
    Owner,
    Structure,
    TorchCall,
    last_layout,
    stated_spec,
)
from bridge.jax._from_torch.modules import FunctionalModule, buffer_in_jax
from bridge.jax._from_torch.names import public_name
from bridge.jax._from_torch.primitive import VMAP_METHODS, call
from bridge.jax._from_torch.results import Never
from bridge.jax._from_torch.seed import seed_words
from bridge.ops.scalars import told_apart


def from_torch(
    fn: Callable[..., Any] | torch.nn.Module,
    *,
    train: bool | None = None,
    seeded: bool = False,
    vmap_method: str | None = None,
    result_shape: Any = None,
) -> TorchFunction:
    """Makes a JAX function from a torch function or module.

    A function `g = from_torch(fn)` is called as `g(*args, **kwargs)`, with JAX arrays in place of
    tensors. A module is called as a function of its parameters:

        g = from_torch(module, train=False)
        y = g(g.params(), x)                             # any parameters of the same names
        y, buffers = g(params, x, buffers=buffers)       # with buffers: returns the new ones

    Called eagerly, `fn` runs on the memory of the arrays, by DLPack. Results are on the device that
    the arguments are committed to, or on JAX's default device. Inside `jit`, `scan` and `shard_map`
    each call is one callback, on XLA's own buffers. `fn` must be pure: JAX may omit a call, repeat
    it, or change the order of independent calls. If XLA divides a computation among devices, one
    device makes the call for all, on whole arrays. Inside `shard_map` each device makes its own
    call, at the same time as the others.

    `fn` runs as on a fresh thread: without gradients, and with the caller's autocast,
    `inference_mode` and `torch.device` switched off. Enter `torch.autocast` in `fn` itself.

    `jax.grad`, `vjp`, `jvp`, `linearize`, `checkpoint` and their compositions work as far as torch
    can differentiate `fn`: reverse mode through autograd, forward mode through `torch.func.jvp`.
    The backward pass runs `fn` again: no torch graph is kept between two calls. Complex gradients
    follow JAX's convention: they are the conjugates of torch's.

    Arguments are JAX pytrees. JAX and NumPy arrays among their leaves become tensors; other leaves
    must be hashable (numbers, strings, dtypes) and are passed on unchanged. Results are trees of
    tensors: dicts, lists, tuples, namedtuples, dataclasses, and nodes registered with JAX or torch.

    Args:
      fn: a function of torch tensors, or a module. The module is copied, without its parameters;
        later changes of it have no effect.
      train: the mode of a module; None keeps the current mode of each submodule.
      seeded: True if `fn` draws random numbers. Each call must then give `seed=`: an int, an
        integer array, or a key of `jax.random`. Torch's own generators do not change. If False, a
        function that draws random numbers is refused.
      vmap_method: the behaviour under `jax.vmap`. "vmap": `torch.func.vmap`, one call for all.
        "sequential": one callback, in which `fn` runs once per batch element. "broadcast_all" and
        "expand_dims": `fn` accepts leading dimensions; all arguments are broadcast to them, or get
        a leading dimension of size 1. None: vmap raises ValueError.
      result_shape: the shapes of the results, as a pytree of `jax.ShapeDtypeStruct`, or a function
        of such arguments that returns it. By default it is found by running `fn` on FakeTensors,
        without data.

    Returns:
      A callable with `params()` and `buffers()`.

    Raises:
      TypeError: `fn` is not callable or is a scripted module; a module cannot be copied; an option
        has another type. On a call: a leaf is a torch tensor, a `jax.random` key, or has a dtype
        that torch lacks; parameters are no dict; `fn` returns something other than tensors.
      ValueError: an option has another value. On a call: names or shapes of parameters are not the
        module's; `fn` writes to an argument, or to buffers that the call does not return; it draws
        random numbers and is not seeded; the shapes of its results depend on values and are not
        stated; its results are 64 bits wide and `jax_enable_x64` is off.
      RuntimeError: the call is made inside a callback from JAX, or in a process that was forked
        after JAX had started. Exceptions of `fn` pass through; inside jit they become a
        `JaxRuntimeError`, from which `torch_errors` restores the original.
    """
    return TorchFunction(fn, train, seeded, vmap_method, result_shape)


_MOST_CALLS = 1024  # cached programs: each value of a Python number needs its own


class TorchFunction:
    """A torch function that takes and returns JAX arrays; see `from_torch`."""

    def __init__(
        self,
        fn: Callable[..., Any] | torch.nn.Module,
        train: bool | None,
        seeded: bool,
        vmap_method: str | None,
        result_shape: Any,
    ) -> None:
        if not callable(fn):
            raise TypeError(
                f"from_torch: fn has type {type(fn).__name__}, expected a function or a module"
            )
        for name, flag in (("train", train), ("seeded", seeded)):
            if not (isinstance(flag, bool) or (name == "train" and flag is None)):
                raise TypeError(f"from_torch: {name} is {flag!r}, expected True or False")
        if vmap_method is not None and vmap_method not in VMAP_METHODS:
            raise ValueError(
                f"from_torch: vmap_method is {vmap_method!r}, expected None or one of "
                f"{', '.join(map(repr, VMAP_METHODS))}"
            )
        if result_shape is not None and not callable(result_shape):
            trees.tree_map(stated_spec, result_shape, Never)
        module = None
        if isinstance(fn, torch.nn.Module):
            module = FunctionalModule(fn, train)
        elif train is not None:
            raise TypeError(
                f"from_torch: train is {train!r}, but fn has type {type(fn).__name__}, expected a "
                "module"
            )
        self._name = public_name(fn)
        self._owner = Owner(
            fn,
            module,
            name=self._name,
            seeded=seeded,
            vmap_method=vmap_method,
            result_shape=result_shape,
        )
        self._calls: dict[Any, TorchCall] = {}
        if module is None:
            functools.update_wrapper(self, fn, updated=())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return name_of(self) or super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return f"<from_torch {self._name}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def params(self) -> dict[str, jax.Array]:
        """Returns copies of the module's parameters by name: the first argument of a call.

        Tied parameters appear once. The values are the module's current values.
        """
        return {
            name: tensor_to_array(tensor, True, path=name, function="params", detached=True)
            for name, tensor in self._module("params").parameters.items()
        }

    def buffers(self) -> dict[str, jax.Array]:
        """Returns copies of the module's buffers by name, with their values from construction.

        64-bit integers are 32 bits wide while `jax_enable_x64` is off; the module gets 64 bits.
        """
        return {
            name: tensor_to_array(
                buffer_in_jax(tensor), True, path=name, function="buffers", detached=True
            )
            for name, tensor in self._module("buffers").buffers.items()
        }

    def _module(self, asked: str) -> FunctionalModule:
        if self._owner.module is None:
            raise TypeError(f"from_torch: {self._name} is a function, and has no {asked}()")
        return self._owner.module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        refuse_after_fork()
        refuse_in_callback(f"bridge.jax.from_torch({self._name})")
        operands = [self._take_seed(kwargs)] if self._owner.seeded else []
        parameters = buffers = None
        if self._owner.module is not None:
            parameters, buffers, args = self._take_state(args, kwargs)
        marked = (parameters, buffers, args, kwargs)
        leaves, tree = jax.tree_util.tree_flatten(marked)
        static: list[tuple[int, Any, Any]] = []
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, ARRAYS):
                operands.append(as_jax_array(leaf, marked, place))
            else:
                static.append((place, told_apart(leaf), leaf))
        program = self._program(tree, tuple(static), marked)
        last_layout.of = None
        with jax.named_scope(f"bridge.from_torch({self._name})"):
            results = call(program, operands)
        if last_layout.of is program:  # the call ran eagerly and recorded its layout
            return last_layout.layout.rebuild(results)
        return program.layout(tuple(spec_of(jax.typeof(o)) for o in operands)).rebuild(results)

    def _program(self, tree: Any, static: Any, marked: Any) -> TorchCall:
        try:
            program = self._calls.get((tree, static))
        except TypeError as error:
            for place, _, value in static:
                if not is_hashable(value):
                    raise TypeError(
                        f"from_torch: {path_of(marked, place)} has type {type(value).__name__}, "
                        "expected an array, or a value that can be hashed"
                    ) from error
            raise
        if program is None:
            for place, _, value in static:
                if isinstance(value, torch.Tensor):
                    raise TypeError(
                        f"from_torch: {path_of(marked, place)} is a torch tensor "
                        f"({type(value).__name__}), expected JAX arrays: pass "
                        "bridge.to_jax(tensor), or call the torch function itself"
                    )
            first = len(jax.tree_util.tree_leaves(marked[0]))
            state = range(first, first + len(jax.tree_util.tree_leaves(marked[1])))
            if len(self._calls) >= _MOST_CALLS:
                self._calls.clear()
            new = TorchCall(self._owner, Structure(tree, static, tree.num_leaves, state))
            program = self._calls.setdefault((tree, static), new)
        return program

    def _take_seed(self, kwargs: dict[str, Any]) -> Any:
        seed = kwargs.pop("seed", None)
        if seed is None:
            raise TypeError(
                f"from_torch: {self._name} is seeded, and seed is missing: pass seed= with an int, "
                "an integer array or a jax.random key"
            )
        return seed_words(seed, "from_torch")

    def _take_state(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
        assert self._owner.module is not None
        if not args or not isinstance(args[0], Mapping):
            came = f"the first is a {type(args[0]).__name__}" if args else "there is none"
            raise TypeError(
                f"from_torch: {self._name} is a module, a function of its parameters and then its "
                f"arguments; {came}, expected a dict like g.params()"
            )
        buffers = kwargs.pop("buffers", None)
        if buffers is not None and not isinstance(buffers, Mapping):
            raise TypeError(
                f"from_torch: buffers has type {type(buffers).__name__}, expected a dict like "
                "g.buffers(), or None for the module's own"
            )
        module = self._owner.module
        parameters = checked_state("params", args[0], module.parameters)
        if buffers is not None:
            buffers = checked_state("buffers", buffers, module.buffers)
        return parameters, buffers, args[1:]
