"""Errors of declarations, which name the line of the user's function that cannot be."""

from __future__ import annotations

import linecache
import os
import sys
from types import FrameType

_HERE = os.path.dirname(os.path.abspath(__file__))
# What they pass a value on to is no line that the user wrote.
_LIBRARIES = frozenset({"bridge", "torch", "jax", "numpy"})
# How the names of files begin which stand for code that was generated.
GENERATED = "<bridge.op "


class DeclarationError(TypeError):
    """A declaration that cannot be traced; the message names the line and what to write instead."""


class TooLarge(DeclarationError):
    """What is beyond what a kernel takes: code for any op leaves out what only might be asked."""


class ProgramTooLarge(TooLarge):
    """A program, of a declaration or a derivative, that is beyond what an interpreter takes."""


class MissingAttribute(DeclarationError, AttributeError):
    """What a value does not have, as for `hasattr` and `getattr`."""


def refuse(message: str, kind: type[DeclarationError] = DeclarationError) -> DeclarationError:
    """The error for the line of the user's code that is running now."""
    frame = _user_frame()
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line).strip()
    where = f"{frame.f_code.co_name}, line {line} of {file}"
    return kind(f"{where}{f': `{text}`' if text else ''}: {message}")


def _user_frame() -> FrameType:
    """The innermost one of no library, inside of the declaration where one is traced."""
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
