"""A JAX function as a list of steps in the order of execution, without calls or loops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from bridge.compared.recording.arithmetic import find
from bridge.compared.recording.fingerprints import Print, fingerprint
from bridge.compared.recording.sources import Line, first_line, is_library, numbers_of
from bridge.compared.recording.values import Value

# Equations that hold the numbers of their operand in another arrangement.
MOVES = {"reshape", "transpose", "squeeze", "expand_dims", "rev", "copy", "copy_p", "name",
         "optimization_barrier", "stop_gradient", "sharding_constraint"}  # fmt: skip
# On one device a collective gives its operand.
ALONE = {"psum", "psum_invariant", "psum2", "pmax", "pmin", "pmean", "pvary", "pbroadcast",
         "ppermute", "all_to_all", "pcast", "reduce_scatter", "reshard", "all_gather_invariant",
         "all_gather", "pcollectivepermute", "mesh_cast"}  # fmt: skip
# Foreign code takes the dtypes that it was traced for.
FIXED = {"ffi_call", "pure_callback", "io_callback", "pallas_call", "tpu_custom_call"}
RANDOM = {"random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform"}
_WIDE = {
    np.dtype(np.float32): np.dtype(np.float64),
    np.dtype(np.complex64): np.dtype(np.complex128),
}


@dataclass(slots=True)
class Step:
    """A step: outputs = run(*inputs).

    Attributes:
      run: takes and returns arrays.
      inputs, outputs: indices of values.
      key: the same for executions of one line with the same strides, paddings and axes on arrays
        of one shape.
    """

    run: Callable[..., Sequence[Any]]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    key: Any


@dataclass
class Tape:
    """The steps of a run and the values that they made."""

    steps: list[Step] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    leaves: dict[int, Any] = field(default_factory=dict)
    outputs: list[int] = field(default_factory=list)
    gradients: dict[str, int] = field(default_factory=dict)
    forced: dict[Line, int] = field(default_factory=lambda: defaultdict(int))
    random: list[Line] = field(default_factory=list)
    narrow: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    maker: dict[int, int] = field(default_factory=dict)  # the step of a value
    is_wide: bool = True

    def wide(self) -> Any:
        """Returns the context in which the tape is run: with or without float64."""
        return jax.enable_x64(self.is_wide)


def record(
    closed: core.ClosedJaxpr, arguments: Sequence[Any], names: Sequence[str], is_wide: bool = True
) -> tuple[Tape, list[Any]]:
    """Evaluates a jaxpr equation by equation.

    Args:
      closed: the jaxpr, traced with float64 numbers.
      arguments: its arguments.
      names: the path of each argument.
      is_wide: casts to float32 are left out: arithmetic stays in float64.

    Returns:
      The tape, and the results.
    """
    tape = Tape(is_wide=is_wide)
    recorder = _Recorder(tape)
    consts = [recorder.leaf(const, "") for const in closed.consts]
    inputs = [recorder.leaf(array, name) for array, name in zip(arguments, names, strict=True)]
    results = recorder.run(closed.jaxpr, consts, inputs)
    # A constant that the function returns is no value yet.
    held = [pair if pair[0] >= 0 else recorder.leaf(pair[1], "") for pair in results]
    tape.outputs = [index for index, _ in held]
    return tape, [array for _, array in results]


_Held = tuple[int, Any]  # a value's index and its array


class _Recorder:
    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._site: Line | None = None  # of the call of a library's function, which is kept traced

    def leaf(self, array: Any, name: str) -> _Held:
        index = len(self.tape.values)
        shape = tuple(np.shape(array))
        self.tape.values.append(Value(index, "leaf", (), None, shape, printed(array), "leaf", name))
        self.tape.leaves[index] = array
        return index, array

    def run(
        self, jaxpr: core.Jaxpr, consts: Sequence[_Held], arguments: Sequence[_Held]
    ) -> list[_Held]:
        """Evaluates a jaxpr; values are forgotten after their last use."""
        env: dict[Any, _Held] = {}
        env.update(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, arguments, strict=True))
        last: dict[Any, int] = {}
        for place, eqn in enumerate(jaxpr.eqns):
            last.update((var, place) for var in eqn.invars if not isinstance(var, core.Literal))
        kept = {var for var in jaxpr.outvars if not isinstance(var, core.Literal)}
        for place, eqn in enumerate(jaxpr.eqns):
            held = [self._read(env, var) for var in eqn.invars]
            results = self._equation(eqn, held)
            env.update(zip(eqn.outvars, results, strict=True))
            for var in {v for v in eqn.invars if not isinstance(v, core.Literal)}:
                if last[var] == place and var not in kept:
                    env.pop(var, None)
        return [self._read(env, var) for var in jaxpr.outvars]

    def _read(self, env: dict[Any, _Held], var: Any) -> _Held:
        if isinstance(var, core.Literal):
            dtype = getattr(var.aval, "dtype", None)
            if not isinstance(dtype, np.dtype):
                return -1, var.val
            array = np.array(var.val, dtype)
            return -1, _as_written(array) if self.tape.is_wide and dtype == np.float32 else array
        return env[var]

    def _equation(self, eqn: Any, held: list[_Held]) -> list[_Held]:
        name = eqn.primitive.name
        if name == "scan":
            return self._scan(eqn, held)
        if name == "while":
            return self._while(eqn, held)
        if name == "cond":
            branches = eqn.params["branches"]
            chosen = branches[int(np.clip(int(held[0][1]), 0, len(branches) - 1))]
            return self._closed(chosen, held[1:])
        if name == "shard_map":
            if eqn.params["mesh"].size > 1:
                raise ValueError(
                    f"jax_function runs shard_map over {eqn.params['mesh'].size} devices; "
                    "compare takes it on a mesh of one device"
                )
            return self._closed(eqn.params["jaxpr"], held)
        inner = _inner(eqn)
        if inner is not None:
            before = self._site
            if before is None and _is_of_library(inner):
                self._site = line_of(eqn)
            try:
                return self._closed(inner, held)
            finally:
                self._site = before
        return self._bind(eqn, held)

    def _closed(self, jaxpr: Any, held: Sequence[_Held]) -> list[_Held]:
        if isinstance(jaxpr, core.ClosedJaxpr):
            consts = [self.leaf(const, "") for const in jaxpr.consts]
            return self.run(jaxpr.jaxpr, consts, held)
        return self.run(jaxpr, [], held)

    def _scan(self, eqn: Any, held: list[_Held]) -> list[_Held]:
        p = eqn.params
        a, b = p["num_consts"], p["num_consts"] + p["num_carry"]
        consts, carry, stacked = held[:a], held[a:b], held[b:]
        order = range(p["length"])
        rows: list[list[_Held]] = []
        for i in reversed(order) if p["reverse"] else order:
            row = [
                self.step(f"scan[{i}]", eqn, lambda x, i=i: [x[i]], [x], "slice")[0]
                for x in stacked
            ]
            results = self._closed(p["jaxpr"], [*consts, *carry, *row])
            carry, row = results[: len(carry)], results[len(carry) :]
            rows.append(row)
        if p["reverse"]:
            rows.reverse()
        stacks = []
        for k, var in enumerate(eqn.outvars[len(carry) :]):
            if not rows:
                stacks.append(self.leaf(jnp.zeros(var.aval.shape, var.aval.dtype), ""))
                continue
            columns = [row[k] for row in rows]
            stacks.append(
                self.step(
                    "scan",
                    eqn,
                    lambda *xs: [np.stack([np.asarray(x) for x in xs])],
                    columns,
                    "stack",
                )[0]
            )
        return [*carry, *stacks]

    def _while(self, eqn: Any, held: list[_Held]) -> list[_Held]:
        p = eqn.params
        a = p["cond_nconsts"]
        b = a + p["body_nconsts"]
        carry = held[b:]
        while bool(self._closed(p["cond_jaxpr"], [*held[:a], *carry])[0][1]):
            carry = self._closed(p["body_jaxpr"], [*held[a:b], *carry])
        return carry

    def _bind(self, eqn: Any, held: list[_Held]) -> list[_Held]:
        name = eqn.primitive.name
        line = self._site or line_of(eqn)
        if name in RANDOM and line is not None and line not in self.tape.random:
            self.tape.random.append(line)
        if name == "axis_index":
            return self.step(name, eqn, lambda: [np.int32(0)], [], "op")
        if name in ALONE:
            wanted = [var.aval.shape for var in eqn.outvars]

            def same(*xs: Any) -> list[Any]:
                return [np.reshape(x, s) for x, s in zip(xs, wanted, strict=False)]

            return self.step(name, eqn, same, held, "move")
        kind = "op"
        if name in MOVES or (
            name == "broadcast_in_dim"
            and np.prod(eqn.outvars[0].aval.shape) == np.prod(np.shape(held[0][1]))
        ):
            kind = "move"
        if name == "convert_element_type":
            new = np.dtype(eqn.params["new_dtype"])
            old = getattr(held[0][1], "dtype", None)
            if new == np.float32 and old == np.float64 and line is not None and held[0][0] >= 0:
                self.tape.forced[line] += 1
        bind = _Bind(eqn, self.tape)
        return self.step(name, eqn, bind, held, kind)

    def step(
        self, op: str, eqn: Any, run: Callable[..., Sequence[Any]], held: Sequence[_Held], kind: str
    ) -> list[_Held]:
        """Runs a step and records its values."""
        tape = self.tape
        literals = {k: array for k, (index, array) in enumerate(held) if index < 0}
        call = _with_literals(run, literals, len(held)) if literals else run
        inputs = tuple(index for index, _ in held if index >= 0)
        arrays = call(*(array for index, array in held if index >= 0))
        if kind == "move" and not inputs:
            return [(-1, array) for array in arrays]  # a constant stays one
        line = self._site or line_of(eqn)
        recorded = eqn.params.get("name", "") if op == "name" else ""
        outputs = []
        for array in arrays:
            index = len(tape.values)
            shape = tuple(np.shape(array))
            if kind == "move" and len(arrays) == 1 and tape.values[inputs[0]].printed is None:
                found = None
            else:
                found = printed(array)
            tape.values.append(Value(index, op, inputs, line, shape, found, kind, str(recorded)))
            tape.maker[index] = len(tape.steps)
            outputs.append(index)
        shapes = tuple(tape.values[index].shape for index in outputs)
        key = (op, line, numbers_of(eqn), shapes)
        tape.steps.append(Step(call, inputs, tuple(outputs), key))
        return list(zip(outputs, arrays, strict=True))


def _as_written(literal: np.ndarray) -> np.ndarray:
    """Returns the shortest decimal number that rounds to a float32: 1e-6 for float32(1e-6)."""
    return np.array(float(str(literal[()])))


def _with_literals(
    run: Callable[..., Sequence[Any]], literals: dict[int, Any], count: int
) -> Callable[..., Sequence[Any]]:
    def call(*arrays: Any) -> Sequence[Any]:
        rest = iter(arrays)
        return run(*(literals[k] if k in literals else next(rest) for k in range(count)))

    call.literals = literals  # type: ignore[attr-defined]
    call.inner = run  # type: ignore[attr-defined]
    return call


def _inner(eqn: Any) -> Any:
    """Returns the jaxpr of an equation that only calls it."""
    if eqn.primitive.name in FIXED or eqn.primitive.name.startswith(("reduce", "scatter", "sort")):
        return None
    found = [
        value
        for key, value in eqn.params.items()
        if isinstance(value, core.Jaxpr | core.ClosedJaxpr)
        and key in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")
    ]
    if len(found) != 1:
        return None
    jaxpr = found[0].jaxpr if isinstance(found[0], core.ClosedJaxpr) else found[0]
    return found[0] if len(jaxpr.invars) == len(eqn.invars) else None


def _is_of_library(jaxpr: Any) -> bool:
    """True for functions such as jnp.var: their equations keep the lines of their first caller."""
    info = (jaxpr.jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else jaxpr).debug_info
    file = getattr(info, "func_filename", None)
    return file is None or is_library(file)


class _Bind:
    """An equation on arrays; where float32 was asked for, in float64."""

    def __init__(self, eqn: Any, tape: Tape) -> None:
        self.eqn, self.tape = eqn, tape

    def __call__(self, *arrays: Any) -> list[Any]:
        eqn = self.eqn
        name = eqn.primitive.name
        if not self.tape.is_wide or name in FIXED or name == "bitcast_convert_type":
            return self._as_traced(arrays)
        params = {key: _widened(value) for key, value in eqn.params.items()}
        dtypes = {getattr(a, "dtype", None) for a in arrays if _is_plain(a)}
        if np.dtype(np.float32) in dtypes and np.dtype(np.float64) in dtypes:
            arrays = tuple(
                a.astype(np.float64) if getattr(a, "dtype", None) == np.float32 else a
                for a in arrays
            )
        try:
            in_numpy = find(name)
            if in_numpy is not None and all(_is_plain(a) for a in arrays):
                try:
                    with np.errstate(all="ignore"):
                        arrays = tuple(np.asarray(a) for a in arrays)
                        return _listed(in_numpy(params, *arrays), eqn)
                except NotImplementedError:
                    pass
            return _listed(eqn.primitive.bind(*arrays, **params), eqn)
        except (TypeError, ValueError, NotImplementedError):
            return self._as_traced(arrays)

    def _as_traced(self, arrays: Sequence[Any]) -> list[Any]:
        eqn = self.eqn
        cast = [
            jnp.asarray(a, v.aval.dtype)
            if hasattr(v.aval, "dtype") and getattr(a, "dtype", None) != v.aval.dtype
            and not jnp.issubdtype(v.aval.dtype, jax.dtypes.extended)
            else a
            for a, v in zip(arrays, eqn.invars, strict=True)
        ]  # fmt: skip
        if any(getattr(v.aval, "dtype", None) == np.float32 for v in eqn.outvars):
            self.tape.narrow[eqn.primitive.name] += 1
        return _listed(eqn.primitive.bind(*cast, **eqn.params), eqn)


def _is_plain(array: Any) -> bool:
    """True for arrays that NumPy takes, unlike random keys."""
    return not hasattr(array, "dtype") or isinstance(array.dtype, np.dtype)


def _widened(value: Any) -> Any:
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return _WIDE.get(np.dtype(value), value)
    return value


def _listed(results: Any, eqn: Any) -> list[Any]:
    return list(results) if eqn.primitive.multiple_results else [results]


def printed(array: Any) -> Print | None:
    """Returns the fingerprint of an array of numbers, None for any other."""
    dtype = getattr(array, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.number):
        return None
    return fingerprint(
        np.asarray(array) if dtype != jnp.bfloat16 else np.asarray(array, np.float64)
    )


_LINES: dict[int, tuple[Any, Line | None]] = {}


def line_of(eqn: Any) -> Line | None:
    """Returns the line of the model that an equation was traced from."""
    traceback = eqn.source_info.traceback
    if traceback is None:
        return None
    if id(traceback) not in _LINES:
        if len(_LINES) > 100_000:
            _LINES.clear()
        frames = ((f.file_name, f.line_num, f.function_name) for f in traceback.frames)
        _LINES[id(traceback)] = traceback, first_line(frames)
    return _LINES[id(traceback)][1]
