"""The settings of a layer: what its `__call__` may read besides parameters and its arguments.

A trial holds for the settings it ran with. Once they change, a layer runs its original computation.
"""

from __future__ import annotations

import functools
from typing import Any

from flax import nnx

# The attributes that `Module.train` and `Module.eval` set: trials run with both of their values.
MODES = frozenset(("deterministic", "use_running_average"))


def settings_of(layer: Any, parts: tuple[str, ...]) -> tuple[Any, ...]:
    """Returns a layer's settings, which can be hashed and compared.

    Variables count by being there, and so do `parts`, the modules that the form calls itself. Other
    modules count by their class and settings.
    """
    return tuple(
        (name, None if name in parts else _setting(value))
        for name, value in sorted(vars(layer).items())
        if _is_setting(name)
    )


def _is_setting(name: str) -> bool:
    return name not in MODES and not name.startswith("_pytree__")  # NNX's own attributes


def _setting(value: Any) -> Any:
    if isinstance(value, nnx.Variable):
        return nnx.Variable
    if isinstance(value, nnx.Module):
        kind = type(value)
        inner = (
            (name, None if isinstance(each, nnx.Pytree) else _plain(each))
            for name, each in sorted(vars(value).items())
            if _is_setting(name)
        )
        return getattr(kind, "replaces", kind), *inner
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, functools.partial):  # two partials never compare equal
        return _plain((value.func, value.args, tuple(value.keywords.items())))
    try:
        hash(value)
    except TypeError:
        return None  # such as an array or a list
    return value
