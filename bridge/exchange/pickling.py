"""Pickling of a function that was made from another function: by that function's name."""

from __future__ import annotations

import operator
import sys
import types
from typing import Any

# These pickle functions by value, so they do not need a name.
_BY_VALUE = ("cloudpickle", "dill")


def name_of(function: Any) -> str | None:
    """Returns the name under which its module has this very function; None if there is none.

    A decorator puts its result there in place of the original function, and pickle then does not
    find the original.
    """
    name = getattr(function, "__qualname__", "")
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    try:
        found = operator.attrgetter(name)(module)
    except AttributeError:  # it is local to another function, or has no name
        return None
    return name if found is function and not is_taken_by_value() else None


def is_taken_by_value() -> bool:
    """True if a pickler that takes functions by value is on the stack."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _BY_VALUE:
            return True
        frame = frame.f_back
    return False
