"""Fused GPU ops that PyTorch and JAX share.

`bridge.torch` and `bridge.jax` have the ops for each of them; importing `bridge` itself loads
neither framework.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from bridge import _fork as _fork
from bridge._version import __version__

try:
    from bridge import _native as _native
except ImportError as error:
    from bridge._installed import why_no_native_module

    raise ImportError(why_no_native_module(error)) from error

from bridge import _cuda_files as _cuda_files

logging.getLogger("bridge").addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from bridge import lang as lang
    from bridge.catalogue.quantization import Quantization
    from bridge.checked import check
    from bridge.compared.comparison import compare
    from bridge.declared import op
    from bridge.exchange import to_jax, to_torch
    from bridge.generated import wait
    from bridge.lang.roles import (
        Full,
        Halves,
        Mask,
        Pairs,
        PerBlock,
        PerPosition,
        PerRow,
        Positions,
        Quantized,
        Row,
        Scale,
        Segments,
        Table,
    )

# The module of each name that is loaded when it is asked for.
_MODULES = {
    "Quantization": "bridge.catalogue.quantization",
    "check": "bridge.checked",
    "compare": "bridge.compared.comparison",
    "op": "bridge.declared",
    "wait": "bridge.generated",
    **dict.fromkeys(
        (
            "Full",
            "Halves",
            "Mask",
            "Pairs",
            "PerBlock",
            "PerPosition",
            "PerRow",
            "Positions",
            "Quantized",
            "Row",
            "Scale",
            "Segments",
            "Table",
        ),
        "bridge.lang.roles",
    ),
    **dict.fromkeys(("to_jax", "to_torch"), "bridge.exchange"),
}
_NEED_BOTH = ("compare", "to_jax", "to_torch")

__all__ = [
    "Full",
    "Halves",
    "Mask",
    "Pairs",
    "PerBlock",
    "PerPosition",
    "PerRow",
    "Positions",
    "Quantization",
    "Quantized",
    "Row",
    "Scale",
    "Segments",
    "Table",
    "__version__",
    "build_info",
    "check",
    "compare",
    "has_cuda",
    "lang",
    "op",
    "to_jax",
    "to_torch",
    "wait",
]


def __getattr__(name: str) -> Any:
    """Loads what is asked for first: both frameworks for the functions that need both."""
    if name == "lang":
        return importlib.import_module("bridge.lang")
    if name not in _MODULES:
        raise AttributeError(f"module 'bridge' has no attribute {name!r}")
    if name in _NEED_BOTH:
        from bridge._installed import need

        for framework in ("torch", "jax"):
            need(f"bridge.{name}", framework)
    globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return globals()[name]


def _find_cuda_library() -> None:
    """Tells the native module where the CUDA library lies, or why there is none."""
    folder, why = _cuda_files.find()
    path = "" if folder is None else str(folder / _cuda_files.LIBRARY)
    _native.set_cuda_library_path(path, why)


_find_cuda_library()


def build_info() -> dict[str, Any]:
    """Returns what this build holds and what it found on this machine.

    Keys: `version`; `cuda` (the CUDA library is present); `cuda_archs` (architectures compiled in,
    `[]` without CUDA); `cpu_isas` (instruction sets compiled in, strongest first); `cpu_isa` (the
    one in use); `compiler`; `ffi_api` (version of the XLA FFI headers).
    """
    info: dict[str, Any] = {"version": __version__, "cuda": _cuda_files.find()[0] is not None}
    why = _native.cuda_unavailable()
    info["cuda_archs"] = [] if why else _native.cuda_archs().split(",")
    if why:
        info["cuda_unavailable"] = why
    info.update(_native.build_info())
    return info


def has_cuda() -> bool:
    """Returns whether the CUDA library is present and a device answers."""
    return _native.cuda_device_count() > 0
