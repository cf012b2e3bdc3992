"""Every private name of jax and jaxlib that bridge uses; flax is not needed.

All of them exist in jax 0.9.1, 0.10.2, 0.11.2 and 0.12, except where a comment names the releases.
Names without a substitute are looked up when a module first asks for them: if primitives can no
longer be defined, arrays still cross to torch and back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from bridge._private.names import Names

names = Names("jax", known="0.9.1 to 0.12.0")

# Names with a substitute.

ArrayImpl: Any = names.find(
    "jax._src.array.ArrayImpl",
    "distinguishes an array from a tracer by its type; without it arrays cross on the general path",
    jax.Array,
)

jaxlib_module: Any = names.find(
    "jax._src.lib._jax",
    "has the DLPack functions below jax.dlpack; without it the public ones are used",
    None,
)


_swap_local = names.find(
    "jax.debug_nans.swap_local",
    "turns a search for NaN off in this thread; the flag's context manager does so too, but at its "
    "end removes the search from compiled functions for good",
    None,
)


@contextlib.contextmanager
def without_search(flag: Any) -> Iterator[None]:
    """Turns off the search for NaN or infinities; `flag` is jax.debug_nans or jax.debug_infs.

    A flag that is off is not touched: leaving such a context, JAX's own or this one, makes later
    `jax.config.update` calls for the flag ineffective on this thread.
    """
    if not flag.value:
        yield
        return
    if _swap_local is None:
        with flag(False):
            yield
        return
    before = flag.swap_local(False)
    try:
        yield
    finally:
        flag.set_local(before)


_source_context: Any = names.find(
    "jax._src.source_info_util._source_info_context",
    "says which line equations come from; without it those of a derivative's rule come from the "
    "line of the call",
    None,
)


@contextlib.contextmanager
def own_lines() -> Iterator[None]:
    """Equations that are traced meanwhile come from the lines of their own code.

    JAX traces the rule of a custom derivative while equations come from the line of the call.
    """
    if _source_context is None:
        yield
        return
    before = _source_context.context
    _source_context.context = type(before)(None, before.name_stack)
    try:
        yield
    finally:
        _source_context.context = before


def _some_settings() -> Any:
    config: Any = jax.config
    return config.jax_enable_x64, config.jax_default_matmul_precision


_trace_context: Callable[[], Any] = names.find(
    "jax._src.config.trace_context",
    "has all settings that a trace depends on; without it two of them count, and traced functions "
    "do not notice a change of the others",
    _some_settings,
)


def trace_context() -> tuple[Any, Any]:
    """Returns all settings that a trace depends on; JAX's own key lacks the kind of random keys."""
    return _trace_context(), jax.config.jax_default_prng_impl  # type: ignore[attr-defined]


def _function_of(closed: Any) -> Callable[..., Any]:
    return lambda *operands: jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *operands)


jaxpr_as_fun: Callable[[Any], Callable[..., Any]] = names.find(
    "jax.extend.core.jaxpr_as_fun",
    "makes a function of a jaxpr; without it jax.core.eval_jaxpr is used",
    _function_of,
)


def _typed(shape: Any, dtype: Any) -> Any:
    return jax.typeof(jax.ShapeDtypeStruct(shape, dtype))


ShapedArray: Callable[..., Any] = names.find(
    "jax.core.ShapedArray",
    "is the type of a result without a mesh; without it jax.typeof gives this type",
    _typed,
)

INLINE: Any = names.find(
    "jax.Inline.JAX_EARLY",
    "inlines a jitted function into the traced one, so that checkpoint policies and the lowering "
    "see the call itself; before 0.11 True means the same",
    True,
)

dce_rules: dict[Any, Any] = names.find(
    "jax.interpreters.partial_eval.dce_rules",
    "holds the rule that drops unused results; without it they are computed",
    {},
)

jet_rules: dict[Any, Any] = names.find(
    "jax.experimental.jet.jet_rules",
    "holds the rules of Taylor mode; without it jax.experimental.jet has none for bridge's ops",
    {},
)

_to_xla_hlo_sharding = names.find(
    "jax.sharding.Sharding._to_xla_hlo_sharding",
    "maps the parts of an array to devices; without it devices_indices_map does, which has an "
    "entry for each device and fails for sizes that are not divided evenly",
    None,
)


def assignment_of(array: Any) -> Any:
    """Returns the device of each part: an array of device numbers with the array's dimensions.

    One more dimension at the end counts the copies. None if every device has the whole array.
    """
    if not array.ndim:
        return None
    if _to_xla_hlo_sharding is None:
        return _assignment_by_indices(array)
    hlo = array.sharding._to_xla_hlo_sharding(array.ndim)
    if not hlo.is_tiled():
        return None
    sizes = hlo.tile_assignment_dimensions()
    return np.array(hlo.tile_assignment_devices()).reshape(*sizes[: array.ndim], -1)


def _assignment_by_indices(array: Any) -> Any:
    try:
        indices = array.sharding.devices_indices_map(tuple(array.shape))
    except ValueError:  # a dimension is not divided evenly
        return None
    if len(indices) < array.sharding.num_devices:  # one device is listed for several
        return None
    starts = np.array([[part.start or 0 for part in parts] for parts in indices.values()])
    if not starts.any():
        return None
    sizes = [len(np.unique(column)) for column in starts.T]
    order = np.lexsort([np.arange(len(starts)), *starts.T[::-1]])  # by part, then by device
    return order.reshape(*sizes, -1)


# Names without a substitute: `_needed` maps each name here to its look-up.


def _find_varying_axes_of() -> Callable[[Any], frozenset[Any]]:
    """Finds a function that returns the mesh axes over which values of a type vary.

    Without it, gradients inside `shard_map(check_vma=True)` would lack a sum.
    """
    if _vma() is not None:
        return lambda aval: aval.vma
    _manual_axis_type()
    return lambda aval: aval.manual_axis_type.varying


def _find_without_varying() -> Callable[[Any, Any], Any]:
    """Finds a function that removes a mesh axis from those over which a type varies."""
    varying_axes_of = _find_varying_axes_of()
    if _vma() is not None:
        return lambda aval, axis: aval.update(vma=varying_axes_of(aval) - {axis})

    def without(aval: Any, axis: Any) -> Any:
        axes = aval.manual_axis_type
        return aval.update(manual_axis_type=axes.update(varying=axes.varying - {axis}))

    return without


_vma = names.later(
    "jax.core.ShapedArray.vma",
    "has the mesh axes over which values of a type vary, in jax 0.9; later releases have the next",
    None,
)
_manual_axis_type = names.later(
    "jax.core.ShapedArray.manual_axis_type", "has these axes from 0.10 on"
)

_needed: dict[str, Callable[[], Any]] = {
    "Primitive": names.later(
        "jax.extend.core.Primitive", "is the class of an op, a torch program and a gather in JAX"
    ),
    "Zero": names.later("jax.interpreters.ad.Zero", "is a tangent or cotangent known to be zero"),
    "instantiate_zeros": names.later(
        "jax.interpreters.ad.instantiate_zeros", "makes an array of such a zero"
    ),
    "is_undefined_primal": names.later(
        "jax.interpreters.ad.is_undefined_primal",
        "marks the operands of a linear call to transpose towards",
    ),
    "primitive_jvps": names.later(
        "jax.interpreters.ad.primitive_jvps", "holds the rules of forward mode"
    ),
    "primitive_transposes": names.later(
        "jax.interpreters.ad.primitive_transposes", "holds the rules of reverse mode"
    ),
    "primitive_batchers": names.later(
        "jax.interpreters.batching.primitive_batchers", "holds the rules of vmap"
    ),
    "fancy_primitive_batchers": names.later(
        "jax.interpreters.batching.fancy_primitive_batchers",
        "holds the rules of vmap that get the name of the axis, which all_gather needs",
    ),
    "register_lowering": names.later(
        "jax.interpreters.mlir.register_lowering", "sets the lowering of a primitive"
    ),
    "lower_fun": names.later(
        "jax.interpreters.mlir.lower_fun", "lowers a primitive as a function of JAX"
    ),
    "ir": names.later(
        "jax.interpreters.mlir.ir", "reads and writes attributes of lowered operations"
    ),
    "varying_axes_of": _find_varying_axes_of,
    "without_varying": _find_without_varying,
}


def __getattr__(name: str) -> Any:
    if name not in _needed:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = _needed[name]()
    return value


# Attributes of a lowering rule's context, which JAX does not document. None of them changed from
# jax 0.9.1 to 0.12.0; if one were missing, programs with such a call would not compile.


def platforms_of(context: Any) -> tuple[str, ...]:
    """Returns the platforms that a rule lowers for."""
    return tuple(context.platforms or context.module_context.platforms)


def scopes_of(context: Any) -> str:
    """Returns the named scopes around the lowered call; "" if the context does not have them."""
    return str(getattr(context, "name_stack", ""))


def is_for_export(context: Any) -> bool:
    """True if the program is lowered for jax.export."""
    return context.module_context.lowering_parameters.for_export


def axes_in_shard_map(context: Any) -> tuple[frozenset[Any], frozenset[Any]] | None:
    """Returns the manual and the automatic mesh axes inside a shard_map; None outside.

    An automatic axis of one device does not count: a `custom_partitioning` with no other is an
    error in JAX.
    """
    axes = context.module_context.axis_context
    if not hasattr(axes, "manual_axes"):
        return None
    several = {name for name, size in axes.mesh.shape.items() if size > 1}
    return frozenset(axes.manual_axes), frozenset(several - axes.manual_axes)


def aval_of_result(function: Callable[[Any], Any], x: Any) -> Any:
    """Returns the type of function(x) for an x of this type, like `jax.eval_shape`.

    Inside a `shard_map` over some axes, JAX loses the mesh of the type that `eval_shape` returns.
    """
    (aval,) = jax.make_jaxpr(function)(x).out_avals
    return aval


def partitions_of(spec: Any) -> tuple[Any, ...]:
    """Returns the mesh axes of the first dimensions: a spec with unreduced axes is no sequence."""
    return tuple(spec.partitions if hasattr(spec, "partitions") else spec)


def device_count(context: Any) -> int:
    """Returns the number of devices that a program outside shard_map is lowered for."""
    return getattr(context.module_context.axis_context, "num_devices", 1)


def with_devices(context: Any) -> Any:
    """Returns the lowering context with the device list that `custom_partitioning` asks for.

    A program is lowered for any devices of the right number, and XLA refers to them by position:
    the choice of devices makes no difference.
    """
    axes = context.module_context.axis_context
    if getattr(axes, "device_assignment", ()) is not None:
        return context
    found = itertools.cycle(jax.devices())
    axes = dataclasses.replace(
        axes, device_assignment=tuple(itertools.islice(found, axes.num_devices))
    )
    return context.replace(module_context=context.module_context.replace(axis_context=axes))


def add_host_callback(context: Any, function: Callable[..., Any]) -> int:
    """Keeps a function alive as long as the program; returns its number for calls."""
    module = context.module_context
    module.add_host_callback(function)
    return len(module.host_callbacks) - 1
