"""Stands in for NumPy in an isolated build, which would fetch 17 MB for a few names.

The package names NumPy's functions in its table of operations and in its reference in float64. A
build writes source code and computes no reference, so these functions are not called, and a result
of one is an object that nothing can be done with. `take_its_place` also leaves out the comparison
of custom VJPs with derived rules, which needs NumPy; the tests make it.
"""

from __future__ import annotations

import importlib.util
import struct
import sys
import types
from typing import Any


class _Name(type):
    """The type of a stand-in, which has stand-ins as attributes and takes any call."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)


def _stand_in(name: str) -> Any:
    return _Name(name, (), {"__init__": lambda self, *arguments, **keywords: None})


class float32(float):
    """A number rounded to float32, as softmax's constants are."""

    def __new__(cls, x: float) -> float32:
        return super().__new__(cls, *struct.unpack("f", struct.pack("f", x)))


def _numpy() -> types.ModuleType:
    module = types.ModuleType("numpy")
    largest = {float32: (2 - 2.0**-23) * 2.0**127, float: sys.float_info.max}
    module.__dict__.update(
        float32=float32,
        float64=float,
        dtype=lambda name: types.SimpleNamespace(type=getattr(module, name)),
        finfo=lambda kind: types.SimpleNamespace(max=largest[kind]),
        __getattr__=_stand_in,
    )
    return module


def take_its_place() -> None:
    """Makes `import numpy` give the stand-in, if NumPy is missing."""
    if importlib.util.find_spec("numpy") is not None:
        return
    sys.modules["numpy"] = _numpy()
    from bridge.lang.derivatives import custom

    custom.check_rule = lambda rule, program: None
