"""The kernels as XLA custom calls: registration with jaxlib, and the call of an op in MLIR."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np

from bridge import _native
from bridge._private.jax import ShapedArray, ir, lower_fun, platforms_of, scopes_of
from bridge.jax._adapter.avals import spec_of
from bridge.ops.definition import Op
from bridge.ops.splitting import wanted_roles

PLATFORMS = ("cpu", "cuda")


def on_its_platform(
    context: Any, name: str, any_platform: Any, emit: Any, operands: Any, **parameters: Any
) -> Any:
    """Lowers an op for the platform of a context.

    Args:
      any_platform: the same primitive, with a rule for each platform. It serves code for several
        platforms: JAX cannot choose among rules of a primitive that is lowered in place.
      emit: emit(platform, context, *operands, **parameters) lowers it for one.

    Raises:
      NotImplementedError: bridge has no kernels for the platform.
    """
    platforms = platforms_of(context)
    if len(platforms) > 1:
        bind = partial(any_platform.bind, **parameters)
        several = any_platform.multiple_results
        return lower_fun(bind, multiple_results=several)(context, *operands)
    if platforms[0] not in PLATFORMS:
        raise NotImplementedError(
            f"bridge has no {name} for {platforms[0]}, expected one of {', '.join(PLATFORMS)}"
        )
    return emit(platforms[0], context, *operands, **parameters)


def _runtime_ffi_api() -> tuple[int, int] | None:
    """Returns the FFI version of jaxlib, which is stated only in its headers."""
    try:
        header = Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text()
    except OSError:
        return None
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header))
    return (int(found["MAJOR"]), int(found["MINOR"])) if len(found) == 2 else None


def check_ffi_api() -> None:
    """Raises ImportError if jaxlib is too old for the handlers.

    Registration would succeed, and the first call would fail with "No FFI handler registered".
    """
    built = tuple(_native.build_info()["ffi_api"])
    runtime = _runtime_ffi_api()
    if runtime is not None and (runtime[0] != built[0] or runtime < built):
        raise ImportError(
            f"bridge was built for XLA FFI {built[0]}.{built[1]}, but jaxlib "
            f"{jaxlib.__version__} has {runtime[0]}.{runtime[1]}. Install a newer jaxlib, or build "
            "bridge against this one."
        )


def register_handlers() -> None:
    for target, handlers in _native.ffi_handlers().items():
        for platform, handler in handlers.items():
            jax.ffi.register_ffi_target(target, handler, platform=platform)


def lower(
    op: Op[Any],
    platform: str,
    context: Any,
    *operands: Any,
    slots: tuple[int, ...],
    count: int,
    params: Any,
) -> Any:
    """Emits the custom call. `context.avals_in` are the types of the present operands.

    On CUDA the last result is scratch memory: XLA allocates it like any buffer, so that the call
    can be captured into a CUDA graph.
    """
    wanted = [dtype is not None for dtype in op.result_dtypes(params)]
    avals_out = list(context.avals_out)
    specs: list[Any] = [None] * count
    for slot, aval in zip(slots, context.avals_in, strict=True):
        specs[slot] = spec_of(aval)
    if platform == "cuda":
        size = op.workspace_bytes(specs, params)
        if isinstance(size, int):
            size = max(size, 16)  # an empty buffer would have no address
        avals_out.append(ShapedArray((size,), np.dtype(np.uint8)))
    roles, first = op.operand_roles(count, params), wanted_roles(op, params)[0]
    alike = [first.fills_space and roles[slot] is first for slot in slots]
    donated = _donated_operand(context, operands, alike)
    dtypes = [None if spec is None else spec.dtype for spec in specs]
    functions = re.findall(r"bridge\.(\w+)", scopes_of(context))  # see `compiled_for`
    op.ask_for_machine_code(params, dtypes, platform, functions[-1] if functions else "")
    code = op.code(params, dtypes)
    emit = jax.ffi.ffi_lowering(
        f"bridge_{op.kernel_name}",
        operand_output_aliases=None if donated is None else {donated: 0},
    )
    results = emit(
        context.replace(avals_out=avals_out),
        *operands,
        attributes=np.array(list(params.attributes().values()), np.float64),
        count=np.int32(count),
        slots=np.array(slots, np.int32),
        outputs=np.int32(sum(1 << i for i, is_wanted in enumerate(wanted) if is_wanted)),
        **({} if code is None else {"code": np.frombuffer(code, np.int32)}),
    )
    return list(results)[: len(context.avals_out)]


_ALIASES = "output_operand_aliases"


def _donated_operand(context: Any, operands: tuple[Any, ...], alike: list[bool]) -> int | None:
    """Returns the position of the operand whose memory the first result takes, or None.

    A candidate is marked in `alike`. XLA always honours an alias: it works in place if the operand
    is dead after the call, and otherwise, or if the caller owns the operand, first copies it.
    Without an alias XLA never works in place, and copies a result that must end in donated memory.
    So an alias is right for a donated argument of the jitted function itself, in the last call that
    reads it.
    """
    result = context.avals_out[0]
    for position, (operand, aval) in enumerate(zip(operands, context.avals_in, strict=True)):
        if not alike[position] or (aval.shape, aval.dtype) != (result.shape, result.dtype):
            continue
        if not isinstance(operand, ir.BlockArgument) or not _is_donated(operand):
            continue
        for use in operand.uses:  # earlier calls must not overwrite it
            _withdraw_alias(use.owner.attributes, use.operand_number)
        return position
    return None


def _withdraw_alias(attributes: Any, operand: int) -> None:
    """Removes the alias of this operand from a call, if the call is an op and has the alias."""
    if _ALIASES not in attributes or "call_target_name" not in attributes:
        return
    target = ir.StringAttr(attributes["call_target_name"]).value
    if target.startswith("bridge_") and f"operand_index = {operand}," in str(attributes[_ALIASES]):
        del attributes[_ALIASES]


def _is_donated(argument: Any) -> bool:
    function = argument.owner.owner
    if function.operation.name != "func.func" or "arg_attrs" not in function.attributes:
        return False
    attributes = ir.DictAttr(ir.ArrayAttr(function.attributes["arg_attrs"])[argument.arg_number])
    return "tf.aliasing_output" in attributes or "jax.buffer_donor" in attributes
