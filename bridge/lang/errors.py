"""Errors of declarations, which name the line of the user's function that cannot be."""

from __future__ import annotations

import linecache
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


class DeclarationError(TypeError):
    """A declaration that cannot be traced; the message names the line and what to write instead."""


def refuse(message: str) -> DeclarationError:
    """The error for the line of the user's code that is running now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == _HERE:
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line).strip()
    where = f"{frame.f_code.co_name}, line {line} of {file}"
    return DeclarationError(f"{where}{f': `{text}`' if text else ''}: {message}")
