"""JAX functions as torch functions."""

from __future__ import annotations

import functools
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import torch
from torch import Tensor

from bridge._private.jax import trace_context
from bridge._private.torch import dispatch_modes, function_modes, nonstrict_trace, tracing_state
from bridge.exchange.callbacks import refuse_in_callback
from bridge.exchange.pickling import name_of
from bridge.exchange.refusal import Refused
from bridge.exchange.runtime import refuse_after_fork
from bridge.torch._from_jax import dispatcher as _dispatcher  # noqa: F401  (traced calls)
from bridge.torch._from_jax.call import call, call_on
from bridge.torch._from_jax.leaves import (
    aval_of,
    describe,
    is_input,
    refuse_many_devices,
    refuse_outputs,
    unhashable,
    with_place,
)
from bridge.torch._from_jax.program import Program
from bridge.torch._from_jax.static_arguments import StaticArguments, function_name

_flatten = jax.tree_util.default_registry.flatten
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling


class CacheInfo(NamedTuple):
    """Counts of a `from_jax` function's calls, traces and programs.

    Attributes:
      calls: number of calls.
      traces: number of traces of the JAX function itself: one for each new structure, shape, dtype
        or static value. A number that grows with every step of a loop means a retrace per step.
      programs: number of jitted functions: one per trace, and their derivatives and batched forms.
    """

    calls: int
    traces: int
    programs: int


def from_jax(
    fn: Callable[..., Any],
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
) -> JaxFunction:
    """Makes a torch function of a JAX function.

    The result takes torch tensors where `fn` takes JAX arrays, and returns tensors where `fn`
    returns arrays. It runs `fn` under `jax.jit`, on the tensors' own memory where that is possible
    (see `bridge.to_jax`), and is differentiable in torch: `loss.backward()`, double backward,
    forward mode, `torch.func`, `torch.compile` (as one opaque op).

    Arguments are pytrees of JAX. Tensors, arrays of JAX and NumPy, keys of `jax.random` and Python
    numbers among their leaves are traced, as by `jax.jit`. Other leaves must be hashable (strings,
    functions, dtypes) and are static: each value is traced once. Gradients go to the tensors.
    Outputs that torch has no dtype for, random keys, are returned as JAX arrays.

    The gradient follows torch's convention: for f(z) complex it is the conjugate of `jax.grad`'s.
    Integer and bool tensors have none.

    Args:
      fn: a pure JAX function. It is traced once for each structure of its arguments, shapes, dtypes
        and static values; `cache_info()` of the result counts.
      static_argnums: positions of hashable arguments that are passed to `fn` unchanged. As in
        `jax.jit`, they are static also if given by name.
      static_argnames: names of such arguments; they are static also if given by position.

    Returns:
      A callable of the same signature, with `cache_info()` and `cache_clear()`.

    Raises:
      TypeError: `fn` is not callable. On a call: a leaf is neither traced nor hashable, or a tensor
        has a dtype that JAX lacks, or a dtype of 64 bits while `jax_enable_x64` is off.
      ValueError: `static_argnums` or `static_argnames` names an argument that `fn` lacks. On a
        call: tensors are on several devices, or a tensor cannot cross.
      RuntimeError: a call inside a torch function that JAX runs by a callback (`from_torch` inside
        jit), or in a process that was forked after JAX had started. In the backward pass, as
        anywhere in torch: an input or output of `fn` has been written in place, or the graph has
        been freed.
    """
    made: JaxFunction = _make(fn, static_argnums, static_argnames)
    return made


class JaxFunction:
    """A JAX function that takes and returns tensors; see `from_jax`."""

    def __init__(
        self,
        fn: Callable[..., Any],
        static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (),
    ) -> None:
        if not callable(fn):
            raise TypeError(
                f"from_jax: fn has type {type(fn).__name__}, expected a function of JAX arrays"
            )
        if isinstance(fn, torch.nn.Module):
            raise TypeError(
                f"from_jax: fn is a torch module, {type(fn).__name__}, expected a function of JAX "
                "arrays; torch code goes into JAX by bridge.jax.from_torch"
            )
        functools.update_wrapper(self, fn, updated=())
        self._fn = fn
        self._name = function_name(fn)
        self._static_arguments = static_argnums, static_argnames
        self._static = StaticArguments(fn, static_argnums, static_argnames)
        self._entries: dict[Any, _Entry] = {}
        self._last: tuple[Any, Any] = (), None
        self._lock = threading.RLock()
        self._calls = 0
        self._traces = 0
        self._opaque = _opaque_to_dynamo(self)
        self._identity = uuid.uuid4().hex

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Dynamo does not check that `_opaque` belongs to the function that it compiled a graph for.
        # Reading a string makes it a condition of the graph.
        if _is_dynamo_compiling() and self._identity:
            return self._opaque(*args, **kwargs)
        refuse_in_callback("from_jax")
        self._calls += 1
        static: Any = ()
        if self._static.any:
            static, args, kwargs = self._static.take(args, kwargs)
        leaves, tree = _flatten((args, kwargs))
        parts: list[Any] = [tree, static, trace_context()]
        all_tensors = True
        for leaf in leaves:
            if type(leaf) in _PLAIN:
                parts += (leaf.shape, leaf.dtype)
                continue
            all_tensors = False
            try:
                describe(leaf, parts)
            except Refused as refused:
                raise with_place(refused, args, kwargs) from refused.__cause__
        # Most calls are like the last one; then no hash is needed.
        last = self._last
        entry = last[1] if parts == last[0] else self._find(parts, leaves, args, kwargs)
        try:
            if all_tensors and leaves:
                traced = dispatch_modes() or function_modes() or tracing_state()
                outputs = call_on(entry.program, leaves, leaves, bool(traced))
            else:
                refuse_after_fork()  # crossing checks it too, but perhaps nothing crosses here
                outputs = call(entry.program, [leaves[i] for i in entry.traced])
        except Refused as refused:
            raise with_place(refused, args, kwargs) from refused.__cause__
        except ValueError as error:
            refuse_many_devices(args, kwargs, error)
            raise
        return entry.out_tree.unflatten(outputs)

    def _find(self, parts: list[Any], leaves: list[Any], args: Any, kwargs: Any) -> _Entry:
        """Returns the entry of a call that differs from the last one; makes it if there is none."""
        refuse_after_fork()
        tree, static, *_ = key = tuple(parts)
        try:
            entry = self._entries.get(key)
        except TypeError as error:
            raise unhashable(static, args, kwargs) from error
        if entry is None:
            with self._lock:
                entry = self._entries.get(key)
                if entry is None:
                    try:
                        entry = self._entries[key] = _Entry(self, leaves, tree, static)
                    except Refused as refused:
                        raise with_place(refused, args, kwargs) from refused.__cause__
        self._last = parts, entry
        return entry

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __reduce__(self) -> Any:
        return name_of(self) or (JaxFunction, (self._fn, *self._static_arguments))

    def __repr__(self) -> str:
        return f"<from_jax {self._name}: {self.cache_info()}>"

    def cache_info(self) -> CacheInfo:
        """Returns counts of calls, traces and stored programs."""
        programs = sum(entry.program.count() for entry in tuple(self._entries.values()))
        return CacheInfo(self._calls, self._traces, programs)

    def cache_clear(self) -> None:
        """Drops all programs; graphs that wait for their backward pass hold their own."""
        self._entries.clear()
        self._last = (), None


class _Entry:
    """A program, and the conversion between its flat arrays and the function's pytrees."""

    def __init__(self, owner: JaxFunction, leaves: list[Any], tree: Any, static: Any) -> None:
        self.out_tree: Any = None
        self.traced = [i for i, leaf in enumerate(leaves) if is_input(leaf)]
        constants = [None if is_input(leaf) else leaf for leaf in leaves]

        def flat(*arrays: Any) -> Any:
            owner._traces += 1
            values = list(constants)
            for i, array in zip(self.traced, arrays, strict=True):
                values[i] = array
            args, kwargs = owner._static.restore(static, *tree.unflatten(values))
            outputs, self.out_tree = _flatten(owner._fn(*args, **kwargs))
            refuse_outputs(owner._name, outputs)
            return outputs

        chosen = [leaves[i] for i in self.traced]
        tensors = tuple(isinstance(leaf, Tensor) for leaf in chosen)
        self.program = Program(flat, [aval_of(leaf) for leaf in chosen], tensors, owner._name)


@torch.compiler.disable(reason="from_jax makes a function outside of torch's graphs")
def _make(*arguments: Any) -> JaxFunction:
    """Makes the function; under torch.compile this runs between two graphs."""
    return JaxFunction(*arguments)


def _opaque_to_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function` as a call that torch.compile does not trace into.

    It does not trace the call inside a graph, nor between two graphs, after an argument that dynamo
    cannot put into a graph (a JAX array) has broken it.
    """
    return nonstrict_trace()(torch.compiler.disable(function))  # type: ignore[no-any-return]
