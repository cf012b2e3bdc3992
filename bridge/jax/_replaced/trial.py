"""Trials of a layer of Flax NNX: its own `__call__` and an op run on the same random rows.

A trial works on a copy that shares nothing with the layer, on the CPU where JAX has one.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import operator
import re
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bridge.jax._replaced.settings import MODES
from bridge.lang.dtypes import FLOATING

TOLERANCES = {"float32": 2e-5, "bfloat16": 2.0**-6}
ELSE = "it computes something else"
_FAILED = "trying it failed: {}: {}"
_NONE = types.SimpleNamespace()
_RECOMPUTES = "it recomputes values inside, as by jax.checkpoint"
_INSIDE = {
    "name": "it names values inside, as for a checkpoint policy",
    "checkpoint": _RECOMPUTES,
    "remat2": _RECOMPUTES,  # the same in another version of JAX
    "sharding_constraint": "it constrains the sharding of values inside",
}
_SCALES = np.array([1e-6, 1e-3, 1.0, 1.0, 30.0, 30.0])
# The tolerance of derivatives is relative to the largest one, as sums cancel.
_TOLERANCES_OF_DERIVATIVES = {"float32": 1e-3, "bfloat16": 0.1}
_DERIVATIVES = "its derivatives are not those of its result, as with stop_gradient or a custom rule"


@dataclass(frozen=True)
class Form:
    """A formula: `function(layer, *arrays, **constants)` computes it by the op named `name`.

    For a function that is an attribute of a module, `layer` is None. `count` is the number of
    arrays, `parts` has the attributes of the layer that are modules which the formula calls.

    With `is_call` the formula takes all arguments of the call, reads the layer's settings each
    time, and returns NotImplemented if the original must compute. `methods` are more such formulas,
    for methods by name.
    """

    name: str
    function: Callable[..., Any]
    constants: tuple[tuple[str, Any], ...] = field(default=())
    count: int = 1
    parts: tuple[str, ...] = ()
    is_call: bool = False
    methods: tuple[tuple[str, Callable[..., Any]], ...] = ()

    def run(self, layer: Any, *given: Any, **named: Any) -> Any:
        return self.function(layer, *given, **named, **dict(self.constants))


class _ChangedVariables(Exception):
    pass


class _Trial(NamedTuple):
    copy: Any
    dtype: str
    given: list[tuple[Any, ...]]


def numbers(shape: Sequence[int], dtype: str = "float32", seed: int = 7) -> jax.Array:
    """Returns normal random numbers."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def rows(size: int, dtype: str) -> list[jax.Array]:
    """Returns rows in arrays of 2 and 3 dimensions, which reveal a norm over dimension 1.

    The scale of the numbers is constant for each index of dimension 0.
    """
    shapes = ((6, size), (3, 2, size))
    arrays = [np.random.default_rng(3).standard_normal(shape) for shape in shapes]
    scaled = [(x.T * _SCALES[1::2] if len(x) == 3 else x.T * _SCALES).T for x in arrays]
    return [jnp.asarray(x, dtype) for x in scaled]


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """A context for trials: exact products on the CPU, under no settings of the user."""
    with contextlib.ExitStack() as stack:
        for setting in (
            jax.default_matmul_precision("highest"),
            jax.transfer_guard("allow"),
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
            jax.debug_nans(False),
        ):
            stack.enter_context(setting)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        with contextlib.suppress(RuntimeError):  # JAX_PLATFORMS may leave the CPU out
            stack.enter_context(jax.default_device(jax.local_devices(backend="cpu")[0]))
        yield


def first_alike(
    copies: Iterable[Any],
    arguments: dict[str, list[tuple[Any, ...]]],
    original: Callable[..., Any],
    forms: Iterable[Form],
) -> Form | str:
    """Returns the first form that gives the original's results on all trials, or why none does.

    Its derivatives must be the original's, too.

    Args:
      copies: copies of the layer, or (None,) for a function.
      arguments: by dtype, the arrays of each call.
      original: called with a copy and the arrays.
    """
    copies = [*copies]
    trials = [*_trials(copies, arguments)]
    shaped = [*trials, *_mixed(copies, arguments)]
    try:
        if why := _besides_numbers(trials[0], original):
            return why
        kinds = [_kinds(trial, original) for trial in shaped]
        candidates = [form for form in forms if _fits(form, shaped, kinds)]
        expected, found = _results(trials, [original, *(form.run for form in candidates)])
        bounds = [_bound(*each) for each in zip(trials, expected, strict=True)]
        for form, results in zip(candidates, found, strict=True):
            if all(map(_alike, bounds, expected, results)):
                return form if _have_like_derivatives(trials, original, form) else _DERIVATIVES
    except _ChangedVariables:
        return "its call changes its variables"
    except Exception as error:
        return _FAILED.format(type(error).__name__, (str(error).strip() or "?").splitlines()[0])
    return ELSE


def _trials(copies: Iterable[Any], arguments: dict[str, list[tuple[Any, ...]]]) -> Iterator[_Trial]:
    """Yields copies in training and in evaluation with arguments of a dtype and its name."""
    for copy, (dtype, given) in itertools.product(copies, arguments.items()):
        has_modules = any(isinstance(value, nnx.Module) for value in vars(copy or _NONE).values())
        if has_modules and not {x.dtype.name for x in _floating(copy)} <= {dtype}:
            continue  # modules inside may be dropouts, and round to x's dtype in other places
        if not has_modules and not MODES & vars(copy or _NONE).keys():
            yield _Trial(copy, dtype, given)
        else:
            for mode in ("eval", "train"):
                each = nnx.clone(copy)
                getattr(each, mode)()
                yield _Trial(each, dtype, given)


def _mixed(copies: Iterable[Any], arguments: dict[str, list[tuple[Any, ...]]]) -> Iterator[_Trial]:
    """Yields trials of results' dtypes alone: weights and arguments of any two dtypes."""
    for copy, dtype in itertools.product(copies, (*arguments, "float16")):
        given = [(x.astype(dtype), *others) for x, *others in arguments["float32"]]
        yield _Trial(copy, dtype, given)


def _floating(layer: Any) -> list[jax.Array]:
    leaves = [] if layer is None else jax.tree.leaves(nnx.state(layer, nnx.Not(nnx.RngState)))
    return [x for x in leaves if jnp.issubdtype(jnp.result_type(x), jnp.floating)]


def _besides_numbers(trial: _Trial, function: Callable[..., Any]) -> str:
    """Returns a reason to leave a layer that does something besides computing its result."""
    run, *operands = _pure(trial, function)
    jaxpr = jax.make_jaxpr(run)(*operands)
    if jaxpr.effects:
        return "its call has effects, such as jax.debug.print"
    found = re.search(r"\b(name|checkpoint|remat2|sharding_constraint)\[", str(jaxpr))
    return _INSIDE[found[1]] if found else ""


def _kinds(trial: _Trial, function: Callable[..., Any]) -> list[Any]:
    run, *operands = _pure(trial, function)
    shaped = jax.eval_shape(run, *operands)
    return [(result.shape, result.dtype) for result in shaped]


def _fits(form: Form, trials: list[_Trial], kinds: list[Any]) -> bool:
    """True if a form has the original's shapes and dtypes, and its op takes the arguments."""
    try:
        return all(map(lambda trial, each: _kinds(trial, form.run) == each, trials, kinds))
    except (TypeError, ValueError):
        return False  # such as an eps of zero


def _results(trials: list[_Trial], functions: list[Callable[..., Any]]) -> tuple[Any, list[Any]]:
    """Returns the results of the first function on each trial, and those of the others."""
    runs = [[_pure(trial, function) for trial in trials] for function in functions]
    operands = [[each[1:] for each in row] for row in runs]

    def run(operands: Any) -> Any:
        rows = zip(runs, operands, strict=True)
        return [[each[0](*own) for each, own in zip(*row, strict=True)] for row in rows]

    # One program for all: compilation takes the time. LLVM's optimisations do not pay for one run.
    compiled = jax.jit(run, compiler_options={"xla_backend_optimization_level": 0})
    first, *others = compiled(operands)
    return first, others


def _have_like_derivatives(trials: list[_Trial], original: Any, form: Form) -> bool:
    """Compares the derivatives of each call by its arguments and its parameters."""
    calls = [
        _Trial(trial.copy, trial.dtype, [given])
        for trial in trials
        for given in trial.given
        if {"float32"} == {trial.dtype, *(x.dtype.name for x in _floating(trial.copy))}
    ]
    runs = [[_pure(call, function) for call in calls] for function in (original, form.run)]

    def run(operands: Any) -> Any:
        rows = zip(runs, operands, strict=True)
        return [[_derived(each[0], own) for each, own in zip(*row, strict=True)] for row in rows]

    compiled = jax.jit(run, compiler_options={"xla_backend_optimization_level": 0})
    for one, other in zip(*compiled([[each[1:] for each in row] for row in runs]), strict=True):
        result, expected = one
        if np.isnan(np.asarray(result, np.float64)).any():
            continue  # such as a loss for a label out of range
        bound = _TOLERANCES_OF_DERIVATIVES.get(result.dtype.name, 0.1)
        for y, z in zip(expected, other[1], strict=True):
            y, z = (np.asarray(each, np.float64)[None] for each in (y, z))
            # Rows of x have scales of their own; parameters of one dimension do not.
            y, z = (each[0] if each.ndim > 2 else each for each in (y, z))
            if not _alike(bound, [y], [z]):
                return False
    return True


def _derived(run: Callable[..., Any], operands: Any) -> Any:
    """Returns the result of one call, and its derivatives along a random cotangent."""
    leaves, tree = jax.tree.flatten(operands)
    indices = [i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.floating)]

    def of(given: list[Any]) -> Any:
        replaced = dict(zip(indices, given, strict=True))
        return run(*jax.tree.unflatten(tree, [replaced.get(i, x) for i, x in enumerate(leaves)]))[0]

    result, pull = jax.vjp(of, [leaves[i] for i in indices])
    return result, *pull(numbers(result.shape, result.dtype.name))


def _pure(trial: _Trial, function: Callable[..., Any]) -> tuple[Any, ...]:
    """Returns a pure function and its arguments: calls with a copy that keeps its variables."""
    copy, _, given = trial
    if copy is None:
        return lambda given: [function(None, *each) for each in given], given
    definition, state = nnx.split(copy)

    def run(state: Any, given: Any) -> Any:
        layer = nnx.merge(definition, state)
        before = _kept(layer)
        results = [function(layer, *each) for each in given]
        after = _kept(layer)
        if len(before) != len(after) or any(map(operator.is_not, before, after)):
            raise _ChangedVariables
        return results

    return run, state, given


def _kept(layer: Any) -> list[Any]:
    return jax.tree.leaves(nnx.state(layer, nnx.Not(nnx.RngState)))


def _bound(trial: _Trial, expected: list[jax.Array]) -> float:
    dtypes = {trial.dtype, *(x.dtype.name for x in [*expected, *_floating(trial.copy)])}
    return max(TOLERANCES[name] for name in dtypes & TOLERANCES.keys())


def _alike(bound: float, expected: list[Any], found: list[Any]) -> bool:
    """True for equal numbers, up to roundings relative to the largest number of an index."""
    for one, other in zip(expected, found, strict=True):
        y, z = (np.atleast_1d(np.asarray(each, np.float64)) for each in (one, other))
        rest = tuple(range(1, y.ndim))
        largest = np.abs(y).max(rest, keepdims=True) if rest else np.abs(y)
        near = np.abs(y - z) <= bound * largest
        if not (near | (np.isnan(y) & np.isnan(z))).all():
            return False
    return True


@functools.cache
def _parameters(function: Any) -> list[inspect.Parameter]:
    return [*inspect.signature(function).parameters.values()]


def arrays_of_call(
    original: Any, skipped: int, count: int, given: tuple[Any, ...], named: dict[str, Any]
) -> list[Any] | None:
    """Returns the arrays of a call that a form computes, or None if the original must do it.

    A form knows the first `count` arguments after the `skipped` ones. Others must have their
    defaults, and the first must be a floating-point array of rows.
    """
    parameters = _parameters(original)[skipped:]
    bound = dict(zip([p.name for p in parameters], given, strict=False))
    if len(bound) != len(given) or bound.keys() & named.keys():
        return None
    bound.update(named)
    arrays = [bound.pop(p.name, None) for p in parameters[:count]]
    defaults = {p.name: p.default for p in parameters[count:]}
    if any(name not in defaults or value is not defaults[name] for name, value in bound.items()):
        return None
    if not all(isinstance(x, (jax.Array, np.ndarray)) for x in arrays):
        return None
    rows = arrays[0]
    return arrays if rows.ndim and rows.dtype.name in FLOATING else None
