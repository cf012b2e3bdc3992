"""Errors of declarations; each names the offending line of the user's function."""

from __future__ import annotations

import linecache
import os
import sys
from types import FrameType

_HERE = os.path.dirname(os.path.abspath(__file__))
# Frames in these packages are not lines of the user, even if a value passes through them.
_LIBRARIES = frozenset({"bridge", "torch", "jax", "numpy"})
# Prefix of the file names of code generated at run time.
GENERATED = "<bridge.op "


class DeclarationError(TypeError):
    """A declaration that cannot be traced; the message names the line and what to write instead."""


class TooLarge(DeclarationError):
    """A limit of the kernels is exceeded; code that only probes for support catches it."""


class ProgramTooLarge(TooLarge):
    """A program, of a declaration or a derivative, that exceeds a limit of the interpreter."""


class MissingAttribute(DeclarationError, AttributeError):
    """An attribute that values lack; also an AttributeError, for `hasattr` and `getattr`."""


def refuse(message: str, kind: type[DeclarationError] = DeclarationError) -> DeclarationError:
    """Makes the error for the line of the user's code that is running now."""
    frame = _user_frame()
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line).strip()
    where = f"{frame.f_code.co_name}, line {line} of {file}"
    return kind(f"{where}{f': `{text}`' if text else ''}: {message}")


def _user_frame() -> FrameType:
    """Returns the innermost frame outside libraries, within the declaration if one is traced."""
    frame = sys._getframe(2)
    while frame.f_back is not None and _is_here(frame):
        frame = frame.f_back
    innermost: FrameType = frame
    while frame.f_back is not None and frame.f_code.co_name != "while_active":
        if not _is_of_library(frame):
            return frame
        frame = frame.f_back
    return innermost


def _is_here(frame: FrameType) -> bool:
    return os.path.dirname(frame.f_code.co_filename) == _HERE


def _is_of_library(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in _LIBRARIES or frame.f_code.co_filename.startswith(GENERATED)
