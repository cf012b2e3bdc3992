"""A JAX function of flat arrays, with everything that torch must know about it.

A `Program` has fixed shapes and dtypes, so all decisions about its calls are made once. Its
derivatives and its batched forms are programs again, each traced from its parent and stored there:
a mixture of torch's transforms, of any order, is a path in this tree.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from bridge._private.jax import jaxpr_as_fun
from bridge.ops.scalars import told_apart

Mask = tuple[bool, ...]


class Settings(NamedTuple):
    """Settings of JAX's context managers that belong to a thread and change programs."""

    x64: bool
    matmul_precision: str | None

    @classmethod
    def of_thread(cls) -> Settings:
        config: Any = jax.config
        return cls(config.jax_enable_x64, config.jax_default_matmul_precision)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Sets them for a backward pass: on CUDA, autograd runs it in another thread."""
        if self == Settings.of_thread():
            yield
            return
        with jax.enable_x64(self.x64), jax.default_matmul_precision(self.matmul_precision):
            yield


class Program:
    """`function(*arrays)`, which returns a sequence of arrays.

    Attributes:
      tensors: mask of the inputs that are tensors in torch; torch never sees the others.
      differentiable: mask of the outputs that have a derivative: floats and complex numbers.
      opaque: mask of the outputs that torch has no dtype for and passes on: random keys.
      settings: the settings for tracing it and all programs derived from it.
      names: the names by which graphs of torch call it; see `carried`.
      origin: the first ancestor: this program is its derivative or batched form, in several steps.
      is_carried: (of an origin) a graph carries it from process to process.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        avals: Sequence[jax.ShapeDtypeStruct],
        tensors: Mask,
        name: str,
        of: Program | None = None,
    ) -> None:
        again: Callable[..., Any] | None = None

        def flat(*arrays: Any) -> Any:
            # jax.clear_caches makes JAX trace it again. The derivatives belong to the first trace.
            if again is not None and any(isinstance(a, jax.core.Tracer) for a in arrays):
                return tuple(again(*arrays))
            return tuple(function(*arrays))

        flat.__name__ = flat.__qualname__ = name
        self.name = name
        self.avals = tuple(avals)
        self.tensors = tensors
        self.settings = Settings.of_thread()
        self.run = jax.jit(flat)
        traced = self.run.trace(*self.avals)
        self.jaxpr = traced.jaxpr
        again = self.again
        self.out_avals = tuple(self.jaxpr.out_avals)
        self.differentiable = tuple(_is_inexact(aval) for aval in self.out_avals)
        self.opaque = tuple(_is_opaque(aval) for aval in self.out_avals)
        # Every call reads these.
        self.only_tensors = all(tensors)
        self.plain_outputs = not any(self.opaque)
        self.is_plain = self.only_tensors and self.plain_outputs
        self.has_derivatives = any(self.differentiable)
        self.names: dict[Any, str] = {}
        self.origin: Program = self if of is None else of.origin
        self.is_carried = False
        self._derived: dict[Any, Any] = {}
        self._lock = threading.RLock()

    def vjp(self, wanted: Mask, given: Mask) -> Program:
        """Gradients of the `wanted` inputs from the inputs and the `given` cotangents.

        Complex gradients follow torch's convention, which conjugates: for z -> f(z) holomorphic,
        torch's gradient is g * conj(f'(z)), JAX's is g * f'(z).
        """
        return self.derive(("vjp", wanted, given), lambda: self._vjp(wanted, given))

    def jvp(self, given: Mask) -> Program:
        """Tangents of the differentiable outputs from the inputs and the tangents `given`."""
        return self.derive(("jvp", given), lambda: self._jvp(given))

    def vmap(self, dims: tuple[int | None, ...], size: int) -> Program:
        """The program over one more dimension, in front of the outputs."""
        return self.derive(("vmap", dims, size), lambda: self._vmap(dims, size))

    def bind(self, others: Sequence[Any]) -> Program:
        """The program of the tensors alone; `others` are the other inputs, at their places.

        It is stored only if all others are numbers, because arrays are not compared by content.
        """
        if all(other is None or isinstance(other, int | float | complex) for other in others):
            key = ("bind", *((told_apart(other), other) for other in others))
            return self.derive(key, lambda: self._bind(others))
        return self._bind(others)

    def derive(self, key: Any, make: Callable[[], Any]) -> Any:
        """Returns the entry of that key, a Program or another object with `count`; made once."""
        derived = self._derived.get(key)
        if derived is None:
            with self._lock:
                derived = self._derived.get(key)
                if derived is None:
                    derived = self._derived[key] = self.origin.made(make)
        return derived

    def made(self, make: Callable[[], Any]) -> Any:
        """Runs `make` for a program derived from this origin; subclasses translate its errors."""
        return make()

    def count(self) -> int:
        """Returns the number of programs: this one and all derived from it."""
        return 1 + sum(derived.count() for derived in tuple(self._derived.values()))

    @property
    def again(self) -> Callable[..., Any]:
        """The function as traced: its Python code does not run a second time."""
        return jaxpr_as_fun(self.jaxpr)

    def of(self, wanted: Mask, arrays: Sequence[Any]) -> Callable[..., Any]:
        """Returns a function of the `wanted` inputs: differentiable outputs, and the others."""
        function = self.again

        def of_wanted(*chosen: Any) -> Any:
            outputs = function(*merge(wanted, chosen, arrays))
            return (
                [o for o, d in zip(outputs, self.differentiable, strict=True) if d],
                [o for o, d in zip(outputs, self.differentiable, strict=True) if not d],
            )

        return of_wanted

    def cotangents(self, given: Mask, cotangents: Sequence[Any]) -> list[Any]:
        """Returns a cotangent in JAX's convention per differentiable output; zeros if not given."""
        remaining = iter(cotangents)
        result = []
        for aval, here, differentiable in zip(
            self.out_avals, given, self.differentiable, strict=True
        ):
            if not differentiable:
                continue
            result.append(conj(next(remaining)) if here else jnp.zeros(aval.shape, aval.dtype))
        return result

    def out_structs(self, which: Mask) -> tuple[jax.ShapeDtypeStruct, ...]:
        pairs = zip(self.out_avals, which, strict=True)
        return tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a, here in pairs if here)

    def _bind(self, others: Sequence[Any]) -> Program:
        def function(*tensors: Any) -> Any:
            return self.again(*merge(self.tensors, tensors, others))

        avals = choose(self.tensors, self.avals)
        return Program(function, avals, (True,) * len(avals), self.name, self)

    def _vjp(self, wanted: Mask, given: Mask) -> Program:
        count = len(self.avals)

        def function(*arrays: Any) -> Any:
            inputs, cotangents = arrays[:count], arrays[count:]
            function = self.of(wanted, inputs)
            _, pullback, _ = jax.vjp(function, *choose(wanted, inputs), has_aux=True)
            return map(conj, pullback(self.cotangents(given, cotangents)))

        structs = self.out_structs(given)
        avals, tensors = (*self.avals, *structs), (*self.tensors, *[True] * len(structs))
        return Program(function, avals, tensors, f"{self.name}_vjp", self)

    def _jvp(self, given: Mask) -> Program:
        count = len(self.avals)

        def function(*arrays: Any) -> Any:
            inputs, tangents = arrays[:count], arrays[count:]
            primals = tuple(choose(given, inputs))
            return jax.jvp(self.of(given, inputs), primals, tangents, has_aux=True)[1]

        structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in choose(given, self.avals)]
        avals, tensors = (*self.avals, *structs), (*self.tensors, *[True] * len(structs))
        return Program(function, avals, tensors, f"{self.name}_jvp", self)

    def _vmap(self, dims: tuple[int | None, ...], size: int) -> Program:
        function = jax.vmap(self.again, in_axes=dims, axis_size=size)
        avals = []
        for aval, dim in zip(self.avals, dims, strict=True):
            if dim is not None:
                shape = (*aval.shape[:dim], size, *aval.shape[dim:])
                aval = jax.ShapeDtypeStruct(shape, aval.dtype)
            avals.append(aval)
        return Program(function, avals, self.tensors, f"{self.name}_vmap", self)


def _is_opaque(aval: Any) -> bool:
    return jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)


def _is_inexact(aval: Any) -> bool:
    return not _is_opaque(aval) and jnp.issubdtype(aval.dtype, np.inexact)


def conj(array: Any) -> Any:
    """Returns the conjugate; a real array unchanged."""
    return jnp.conj(array) if jnp.iscomplexobj(array) else array


def choose(mask: Mask, values: Sequence[Any]) -> list[Any]:
    """Returns the values at which the mask is set."""
    return [value for value, here in zip(values, mask, strict=True) if here]


def merge(
    mask: Mask, chosen: Sequence[Any], others: Sequence[Any], packed: bool = False
) -> list[Any]:
    """Merges two sequences: `chosen` where the mask is set, else `others`.

    `others` has an entry for every place or, with `packed`, only for those not set in the mask.
    """
    here, there = iter(chosen), iter(others)
    result = []
    for i, take in enumerate(mask):
        if take:
            result.append(next(here))
        else:
            result.append(next(there) if packed else others[i])
    return result
