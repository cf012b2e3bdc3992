"""The line of a model that a value comes from."""

from __future__ import annotations

import functools
import linecache
import os
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OWN = str(Path(__file__).resolve().parent) + os.sep
PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep
# Layers of these are called by a model's line; the line inside of them tells its reader less.
LIBRARIES = ("torch", "jax", "jaxlib", "flax", "equinox", "haiku", "optax", "numpy", "einops")
# A model that was typed into Python or IPython.
TYPED = ("<stdin>", "<python-input", "<ipython-input")


@functools.cache
def is_library(file: str) -> bool:
    """True for files of the frameworks, of Python, and of this package."""
    if file.startswith(("<", PACKAGE)):
        return not file.startswith(TYPED)
    parts = Path(file).parts
    for folder in ("site-packages", "dist-packages"):
        if folder in parts:
            return parts[parts.index(folder) + 1] in LIBRARIES
    return file.startswith(os.path.dirname(os.__file__) + os.sep)


@dataclass(frozen=True)
class Line:
    """A line of a source file; `function` is the name of the function or method it lies in."""

    file: str
    number: int
    function: str

    @property
    def source(self) -> str:
        """The place as "file:line", relative to the working directory where it lies below it."""
        try:
            return f"{Path(self.file).relative_to(Path.cwd())}:{self.number}"
        except ValueError:
            return f"{self.file}:{self.number}"

    @property
    def code(self) -> str:
        """The text of the line."""
        return linecache.getline(self.file, self.number).strip()


def first_line(frames: Iterable[tuple[str, int, str]]) -> Line | None:
    """Returns the innermost frame outside of the frameworks, of (file, line, function).

    A model that is a layer of a framework has none: the layer's own line stands for it.
    """
    layer = None
    for file, number, function in frames:
        if file.startswith(OWN):
            break  # what called bridge.compare is no line of the model
        if not is_library(file):
            return Line(file, number, function)
        if layer is None and not _is_jax(file) and not file.startswith("<"):
            layer = Line(file, number, function)
    return layer


@functools.cache
def _is_jax(file: str) -> bool:
    return any(part in ("jax", "jaxlib") for part in Path(file).parts)


def line_of_caller() -> Line | None:
    """Returns the line of the model that runs now."""
    frame = sys._getframe(1)
    fallback = None
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        if code.co_name == "run_torch_model" and file.startswith(OWN):
            break  # what called bridge.compare is no line of the model
        if not is_library(file):
            return Line(file, frame.f_lineno, code.co_qualname)
        if fallback is None and f"{os.sep}nn{os.sep}modules{os.sep}" in file:
            fallback = Line(file, frame.f_lineno, code.co_qualname)
        frame = frame.f_back  # type: ignore[assignment]
    return fallback


def names_in(code: types.CodeType) -> list[str]:
    """Returns the names that a function and those inside of it may read from its module."""
    names = dict.fromkeys(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names.update(dict.fromkeys(names_in(const)))
    return list(names)


def numbers_of(eqn: Any) -> str:
    """Returns strides, paddings, axes and the like of an equation."""
    plain = (bool, int, float, str, tuple)
    return str(sorted((k, str(v)) for k, v in eqn.params.items() if isinstance(v, plain)))
