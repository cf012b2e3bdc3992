"""Calls of Python functions on the host, on NumPy arrays, from compiled programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bridge._private.jax import add_host_callback, platforms_of


def platform_of(context: Any, what: str) -> str:
    """Returns the platform of a lowering rule, "cpu" or "cuda".

    Args:
      context: the context of the lowering rule.
      what: the subject of the error message.

    Raises:
      NotImplementedError: for another platform, or for several at once.
    """
    platforms = platforms_of(context)
    if len(platforms) > 1 or platforms[0] not in ("cpu", "cuda"):
        raise NotImplementedError(
            f"{what} cannot be compiled for {', '.join(platforms)}, expected cpu or cuda alone"
        )
    return platforms[0]


def host_call(
    context: Any, platform: str, function: Callable[..., tuple[Any, ...]], *operands: Any
) -> Any:
    """Lowers a call of a function of NumPy arrays that returns a tuple of them.

    It does not use mlir.emit_python_callback, which reads jax_enable_x64 on the thread of the
    callback, where the caller's context manager does not apply. It does not use jax.pure_callback,
    which makes JAX arrays of the operands on that thread and can deadlock there.
    """
    index = add_host_callback(context, function)
    device = "cpu" if platform == "cpu" else "gpu"
    emit = jax.ffi.ffi_lowering(f"xla_ffi_python_{device}_callback", has_side_effect=False)
    return emit(context, *operands, index=np.uint64(index))
