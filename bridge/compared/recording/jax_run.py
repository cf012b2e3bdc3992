"""Runs of the JAX function: in float64 step by step, and as it is."""

from __future__ import annotations

import contextlib
import itertools
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge.compared.recording.custom_rules import lines_of_rules
from bridge.compared.recording.jax_gradients import with_gradients
from bridge.compared.recording.lifting import lift
from bridge.compared.recording.sources import first_line
from bridge.compared.recording.tape import Tape, record

_NOT_TRACED = (jax.errors.JAXTypeError, jax.errors.JAXIndexError)
COTANGENT = "cotangent"  # the name of the arrays that the backward pass begins with


class JaxSide:
    """A JAX function with its arguments.

    Args:
      function: any callable.
      args, kwargs: its arguments, with arrays in the model's own dtype.
      is_wide: run in float64.
    """

    def __init__(
        self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], is_wide: bool
    ) -> None:
        self.function, self.args, self.kwargs, self.is_wide = function, args, kwargs, is_wide
        self.lifted = lift(function)
        self.notes: list[str] = []  # on how the function was traced
        self.cotangents: Any = None  # gradients of the outputs' sum with these are recorded too

    def record(self) -> tuple[Tape, Any, list[int]]:
        """Runs the function in float64.

        Returns:
          The tape, the result, and the indices of states that the call changed.

        Raises:
          ValueError: the function cannot be traced.
        """
        with jax.enable_x64(self.is_wide):
            # It may read numbers of its parameters, if NumPy holds them, or numbers that depend on
            # no argument, such as the largest position.
            why = ""
            for is_folded, traced in itertools.product(
                (False, True), (_is_inexact, _is_device_array)
            ):
                try:
                    with jax.ensure_compile_time_eval() if is_folded else contextlib.nullcontext():
                        found = self._record(traced)
                    if is_folded:
                        self.notes.append(f"JAX's constants are computed before the run: {why}")
                    return found
                except _NOT_TRACED as error:
                    name = type(error).__name__
                    why = why or f"{_line_of(error)} it reads the numbers of an array ({name})"
            raise ValueError(
                f"jax_function cannot be traced: {why}; compare takes functions that "
                "jax.make_jaxpr takes"
            )

    def _record(self, traced: Any) -> tuple[Tape, Any, list[int]]:
        arrays, fixed = {}, {}
        for key, array in self.lifted.arrays.items():  # one at a time: no second copy of them all
            if traced(array):
                arrays[key] = jnp.asarray(self._wide(array))
            else:
                fixed[key] = self._wide(array)
        leaves, treedef = jax.tree_util.tree_flatten((list(self.args), dict(self.kwargs)))
        is_traced = [isinstance(x, np.ndarray | jax.Array) and traced(x) for x in leaves]
        inputs = [jnp.asarray(self._wide(x)) for x, t in zip(leaves, is_traced, strict=True) if t]
        names = _paths((list(self.args), dict(self.kwargs)))
        names = [name for name, t in zip(names, is_traced, strict=True) if t]

        def call(arrays: Any, inputs: Any) -> Any:
            function, state = self.lifted.call({**fixed, **arrays})
            rest = iter(inputs)
            filled = [next(rest) if t else x for x, t in zip(leaves, is_traced, strict=True)]
            args, kwargs = jax.tree_util.tree_unflatten(treedef, filled)
            result = function(*args, **kwargs)
            return arrays_of(result), state()

        traced_call: Any = call
        operands: list[Any] = [arrays, inputs]
        if self.cotangents is not None:
            traced_call = with_gradients(call)
            operands.append([jnp.asarray(c) for c in self.cotangents])
            names += [COTANGENT] * len(self.cotangents)
        closed, shape, operands = self._traced(traced_call, operands)
        flat = jax.tree_util.tree_leaves(operands)
        tape, results = record(closed, flat, [*sorted(arrays), *names], self.is_wide)
        count = len(jax.tree_util.tree_leaves(shape[0]))
        changed = count + len(jax.tree_util.tree_leaves(shape[1]))
        states = tape.outputs[count:changed]
        if self.cotangents is not None:
            tape.gradients = dict(zip(sorted(shape[2]), tape.outputs[changed:], strict=True))
        tape.outputs = tape.outputs[:count]
        return tape, results[:count], states

    def _traced(self, call: Any, operands: list[Any]) -> tuple[Any, Any, list[Any]]:
        """Returns the jaxpr of a call, the shapes of its results, and operands that it takes."""
        try:
            with lines_of_rules():
                return *jax.make_jaxpr(call, return_shape=True)(*operands), operands
        except _NOT_TRACED:
            raise
        except Exception as error:
            # It ran in its own dtype. A fixed float32, such as that of a loop's carry, may be in
            # the way: traced in float32, its equations still run in float64.
            text = str(error).strip().splitlines()
            why = (
                f"{_line_of(error)} it raises {type(error).__name__}: "
                f"{text[0] if text else 'without a text'}"
            )
            narrow = jax.tree_util.tree_map(_narrowed, operands)
            try:
                with jax.enable_x64(False), lines_of_rules():
                    closed, shape = jax.make_jaxpr(call, return_shape=True)(*narrow)
            except Exception:
                raise ValueError(f"jax_function cannot be traced in float64: {why}") from error
            self.notes.append(f"JAX is traced in float32 with its constants: in float64, {why}")
            mixed = jax.tree_util.tree_map(
                lambda wide, own: wide if jnp.issubdtype(wide.dtype, jnp.inexact) else own,
                operands, narrow,
            )  # fmt: skip
            return closed, shape, mixed

    def _wide(self, array: Any) -> Any:
        if not self.is_wide or not jnp.issubdtype(array.dtype, jnp.inexact):
            return array
        is_complex = jnp.issubdtype(array.dtype, jnp.complexfloating)
        return np.asarray(array).astype(np.complex128 if is_complex else np.float64)

    def run(self) -> list[Any]:
        """Calls the function on a copy of its arrays, in its own dtype."""
        function, _ = self.lifted.call({k: jnp.asarray(v) for k, v in self.lifted.arrays.items()})
        args, kwargs = jax.tree_util.tree_map(_on_device, (list(self.args), dict(self.kwargs)))
        return arrays_of(function(*args, **kwargs))


def _line_of(error: Exception) -> str:
    """Returns "at file:line" of the model, from where an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    line = first_line((f.filename, f.lineno or 0, f.name) for f in reversed(frames))
    return f"at {line.source}" if line is not None else "inside of a layer"


def _narrowed(array: Any) -> Any:
    """Returns an array in the dtype that it has where JAX has no numbers of 64 bits."""
    with jax.enable_x64(False):
        return jnp.asarray(np.asarray(array).astype(jax.dtypes.canonicalize_dtype(array.dtype)))


def _on_device(leaf: Any) -> Any:
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def _is_inexact(array: Any) -> bool:
    return True


def _is_device_array(array: Any) -> bool:
    return isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jnp.inexact)


def _paths(tree: Any) -> list[str]:
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [jax.tree_util.keystr(keys, simple=True, separator=".") for keys, _ in flat]


def arrays_of(result: Any) -> list[Any]:
    """Returns the arrays of a result in order; a dict in the order of its keys."""
    leaves = jax.tree_util.tree_leaves(result)
    return [x for x in leaves if isinstance(x, jax.Array | np.ndarray | np.generic)]
