"""How pickle finds a function that was made of another: by the name of that one."""

from __future__ import annotations

import operator
import sys
import types
from typing import Any

# These take functions by value, and so need nothing of what is done here.
_BY_VALUE = ("cloudpickle", "dill")


def name_of(function: Any) -> str | None:
    """The name under which its module has this very function; None where it has not.

    A decorator leaves it there in the place of the function that it was given, which pickle then
    does not find.
    """
    name = getattr(function, "__qualname__", "")
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    try:
        found = operator.attrgetter(name)(module)
    except AttributeError:  # it is local to another function, or has no name
        return None
    return name if found is function and not is_taken_by_value() else None


def is_taken_by_value() -> bool:
    """Whether one of the picklers that take functions by value is at work."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _BY_VALUE:
            return True
        frame = frame.f_back
    return False
