"""The arrays that a JAX function holds, found so that they become arguments of it."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from bridge.compared.recording.sources import is_library, names_in


@dataclass
class Lifted:
    """A JAX function and its arrays.

    Attributes:
      arrays: the arrays by path.
      call: call(arrays) returns the function that holds these arrays instead. It makes new objects;
        the original is not touched.
      changed: changed(function) returns, after a call, the state of modules by path.
    """

    arrays: dict[str, Any] = field(default_factory=dict)
    call: Callable[[Mapping[str, Any]], tuple[Callable[..., Any], Callable[[], dict[str, Any]]]] = (
        None  # type: ignore[assignment]
    )


def lift(function: Any) -> Lifted:
    """Finds modules and arrays in a callable: itself, its closure, its globals, its defaults."""
    lifted = Lifted()
    rebuild = _find(function, "", lifted.arrays, {}, 0)

    def call(arrays: Mapping[str, Any]) -> tuple[Any, Callable[[], dict[str, Any]]]:
        states: list[Callable[[], dict[str, Any]]] = []
        memo: dict[int, Any] = {}
        new = function if rebuild is None else rebuild(arrays, states, memo)

        def state() -> dict[str, Any]:
            return {path: array for read in states for path, array in read().items()}

        return new, state

    lifted.call = call
    return lifted


_Rebuild = Callable[[Mapping[str, Any], list[Any], dict[int, Any]], Any]


def _find(
    thing: Any, path: str, arrays: dict[str, Any], seen: dict[int, _Rebuild | None], depth: int
) -> _Rebuild | None:
    """Collects the arrays of a thing; returns how to build it of others, None if it has none."""
    if id(thing) in seen:
        return seen[id(thing)]
    if depth > 6 or thing is None or isinstance(thing, str | bytes | int | float | type):
        return None
    seen[id(thing)] = None  # a thing that holds itself
    found = _find_new(thing, path, arrays, seen, depth)
    if found is not None:
        inner = found

        def once(new: Mapping[str, Any], states: list[Any], memo: dict[int, Any]) -> Any:
            if id(thing) not in memo:
                memo[id(thing)] = inner(new, states, memo)
            return memo[id(thing)]

        found = once
    seen[id(thing)] = found
    return found


def _is_array(thing: Any) -> bool:
    return isinstance(thing, jax.Array | np.ndarray) and (
        (isinstance(thing, np.ndarray) and thing.dtype.kind in "fcV")
        or (isinstance(thing, jax.Array) and not isinstance(thing, jax.core.Tracer))
    )


def _find_new(
    thing: Any, path: str, arrays: dict[str, Any], seen: dict[int, Any], depth: int
) -> _Rebuild | None:
    if _is_array(thing):
        arrays[path or "array"] = thing
        return lambda new, states, memo: new[path or "array"]
    if _is_nnx(thing):
        return _nnx(thing, path, arrays)
    if _is_bound_linen(thing):
        module, variables = thing.unbind()
        inner = _find(variables, path, arrays, seen, depth + 1)
        if inner is None:
            return None
        return lambda new, states, memo: module.bind(inner(new, states, memo))
    if isinstance(thing, functools.partial):
        parts = [thing.func, list(thing.args), dict(thing.keywords)]
        rebuilt = _each(parts, path, arrays, seen, depth)
        if rebuilt is None:
            return None

        def partial(new: Any, states: Any, memo: Any) -> Any:
            func, args, keywords = rebuilt(new, states, memo)
            return functools.partial(func, *args, **keywords)

        return partial
    if isinstance(thing, types.MethodType):
        owner = _find(thing.__self__, path, arrays, seen, depth + 1)
        if owner is None:
            return None
        return lambda new, states, memo: types.MethodType(thing.__func__, owner(new, states, memo))
    if isinstance(thing, types.FunctionType):
        return _function(thing, path, arrays, seen, depth)
    wrapped = getattr(thing, "__wrapped__", None)
    is_wrapper = callable(wrapped) and not isinstance(thing, type)
    # jit would keep what it closed over; other wrappers, such as Equinox's vmap, stay.
    found = None if is_wrapper and hasattr(thing, "lower") else _pytree(
        thing, path, arrays, seen, depth
    )  # fmt: skip
    if found is None and is_wrapper:
        found = _find(wrapped, path, arrays, seen, depth)
    return found


def _each(
    parts: list[Any], path: str, arrays: dict[str, Any], seen: dict[int, Any], depth: int
) -> _Rebuild | None:
    found = [_find(part, f"{path}[{k}]", arrays, seen, depth + 1) for k, part in enumerate(parts)]
    if not any(found):
        return None
    return lambda new, states, memo: [
        part if rebuild is None else rebuild(new, states, memo)
        for part, rebuild in zip(parts, found, strict=True)
    ]


def _pytree(
    thing: Any, path: str, arrays: dict[str, Any], seen: dict[int, Any], depth: int
) -> _Rebuild | None:
    """Containers, Equinox modules and other registered classes."""
    try:
        leaves, treedef = jax.tree_util.tree_flatten_with_path(
            thing, is_leaf=lambda x: x is not thing and (_is_nnx(x) or _is_bound_linen(x))
        )
    except (TypeError, ValueError):
        return None
    if len(leaves) == 1 and leaves[0][1] is thing:
        return None
    found = []
    for keys, leaf in leaves:
        name = jax.tree_util.keystr(keys, simple=True, separator=".")
        found.append(_find(leaf, f"{path}.{name}" if path else name, arrays, seen, depth + 1))
    if not any(found):
        return None
    return lambda new, states, memo: jax.tree_util.tree_unflatten(
        treedef,
        [
            leaf if rebuild is None else rebuild(new, states, memo)
            for (_, leaf), rebuild in zip(leaves, found, strict=True)
        ],
    )


def _function(
    function: types.FunctionType,
    path: str,
    arrays: dict[str, Any],
    seen: dict[int, Any],
    depth: int,
) -> _Rebuild | None:
    is_wrapper = is_library(function.__code__.co_filename)
    code = function.__code__
    join = f"{path}." if path and not is_wrapper else path
    cells: dict[int, _Rebuild] = {}
    for k, (name, cell) in enumerate(
        zip(code.co_freevars, function.__closure__ or (), strict=True)
    ):
        try:
            content = cell.cell_contents
        except ValueError:
            continue
        # A wrapper, such as that of vmap and shard_map, holds the function and adds no level.
        inner = join if is_wrapper else f"{join}{name}"
        rebuild = _find(content, inner, arrays, seen, depth + (not is_wrapper))
        if rebuild is not None:
            cells[k] = rebuild
    globals_: dict[str, _Rebuild] = {}
    for name in () if is_wrapper else names_in(code):
        content = function.__globals__.get(name)
        if isinstance(content, types.ModuleType):
            continue
        rebuild = _find(content, f"{join}{name}", arrays, seen, depth + 1)
        if rebuild is not None:
            globals_[name] = rebuild
    defaults = _each(list(function.__defaults__ or ()), f"{join}default", arrays, seen, depth)
    keywords = _find(function.__kwdefaults__, f"{join}default", arrays, seen, depth + 1)
    if not (cells or globals_ or defaults or keywords):
        return None

    def rebuild_function(new: Any, states: Any, memo: Any) -> Any:
        outer = {**function.__globals__} if globals_ else function.__globals__
        closure = function.__closure__ and tuple(
            types.CellType(cells[k](new, states, memo)) if k in cells else cell
            for k, cell in enumerate(function.__closure__)
        )
        copy = types.FunctionType(code, outer, function.__name__, function.__defaults__, closure)
        copy.__kwdefaults__ = function.__kwdefaults__
        memo[id(function)] = copy
        outer.update({name: make(new, states, memo) for name, make in globals_.items()})
        if defaults is not None:
            copy.__defaults__ = tuple(defaults(new, states, memo))
        if keywords is not None:
            copy.__kwdefaults__ = keywords(new, states, memo)
        return copy

    return rebuild_function


def _is_nnx(thing: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(thing, nnx.Module)


def _is_bound_linen(thing: Any) -> bool:
    linen = sys.modules.get("flax.linen")
    return linen is not None and isinstance(thing, linen.Module) and thing.scope is not None


def _nnx(module: Any, path: str, arrays: dict[str, Any]) -> _Rebuild:
    from flax import nnx

    graph, state = nnx.split(module)
    flat = nnx.to_flat_state(state)
    own: dict[tuple[Any, ...], str] = {}
    join = f"{path}." if path else ""
    for keys, variable in flat:
        value = variable.get_value() if hasattr(variable, "get_value") else variable
        if isinstance(value, jax.Array | np.ndarray):
            name = join + ".".join(map(str, keys))
            arrays[name] = value
            own[tuple(keys)] = name

    def rebuild(new: Mapping[str, Any], states: list[Any], memo: dict[int, Any]) -> Any:
        del memo
        pairs = [
            (keys, _with_value(variable, new[own[tuple(keys)]]) if tuple(keys) in own else variable)
            for keys, variable in flat
        ]
        copy = nnx.merge(graph, nnx.from_flat_state(pairs))
        _widen_dtypes(copy, [arrays[name] for name in own.values()])

        def state_after() -> dict[str, Any]:
            after = {}
            for keys, variable in nnx.to_flat_state(nnx.state(copy)):
                value = variable.get_value() if hasattr(variable, "get_value") else variable
                name = own.get(tuple(keys))
                if name is not None and value is not new[name]:
                    after[name] = value
            return after

        states.append(state_after)
        return copy

    return rebuild


def _with_value(variable: Any, value: Any) -> Any:
    return variable.replace(value) if hasattr(variable, "replace") else value


def _widen_dtypes(module: Any, arrays: list[Any]) -> None:
    """A layer's `dtype` that is its model's own becomes float64 with the parameters."""
    from flax import nnx

    own = {
        np.dtype(array.dtype) for array in arrays if jax.numpy.issubdtype(array.dtype, np.floating)
    }
    if len(own) != 1 or jax.config.read("jax_enable_x64") is False:
        return
    (dtype,) = own
    for _, inner in nnx.iter_modules(module):
        for name in ("dtype", "param_dtype", "compute_dtype"):
            held = getattr(inner, name, None)
            try:
                if held is not None and np.dtype(held) == dtype:
                    setattr(inner, name, np.dtype(np.float64).type)
            except (TypeError, AttributeError):
                continue
