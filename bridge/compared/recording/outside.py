"""Layers and tensors that a torch model uses and does not hold, such as those of global variables.

They are no part of the model's copy. For a run they get copies of their numbers, and the old ones
back behind it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bridge.compared.recording.sources import is_library, names_in

DEEP = 6  # functions and containers that hold one another
_OWN = {"_parameters", "_buffers", "_modules"}
Outside = dict[str, nn.Module | Tensor]


def outside(model: Any, own: list[nn.Module]) -> Outside:
    """Returns the layers and tensors that a model's code reads, by the variable's name.

    Args:
      model: a module, or a function that calls one.
      own: the modules that were found in it without reading code. They are left out.
    """
    search = _Search()
    search.seen.update({id(module): module for module in own})
    for module in own:
        search.code_of(module, 0)
    search.left.append((model, "", 0))
    search.run()
    return search.found


class _Search:
    """Reads functions, and the classes of objects, for the variables that they name.

    Attributes:
      found: layers and tensors, each under the name that is fewest steps away.
      left: things to be read, with their names and the steps to them.
    """

    def __init__(self) -> None:
        self.found: Outside = {}
        self.left: deque[tuple[Any, str, int]] = deque()
        self.seen: dict[int, Any] = {}

    def run(self) -> None:
        while self.left:
            thing, name, depth = self.left.popleft()
            if depth > DEEP or thing is None or isinstance(thing, str | bytes | int | float):
                continue
            if id(thing) in self.seen:
                continue
            self.seen[id(thing)] = thing
            if isinstance(thing, Tensor | nn.Module):
                self.found[name] = thing
                if isinstance(thing, nn.Module):
                    self.code_of(thing, depth)
                continue
            for key, part in self._parts(thing):
                path = f"{name}.{key}" if name and key else name or key
                self.left.append((part, path, depth + 1))

    def code_of(self, module: nn.Module, depth: int) -> None:
        """Adds the variables that calls of a module read, and its attributes."""
        for name, inner in module.named_modules():
            for function in _methods(type(inner), "forward"):
                self.left.append((function, "", depth))
            for key, held in vars(inner).items():
                if key not in _OWN and not isinstance(held, Tensor):
                    self.left.append((held, f"{name}.{key}" if name else key, depth))

    def _parts(self, thing: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(thing, functools.partial):
            yield from (("", part) for part in (thing.func, thing.args, thing.keywords))
        elif isinstance(thing, types.MethodType):
            yield "", thing.__self__
            yield "", thing.__func__
        elif isinstance(thing, types.FunctionType):
            yield from _read_by(thing)
        elif isinstance(thing, Mapping):
            yield from ((str(key), part) for key, part in thing.items())
        elif isinstance(thing, list | tuple | set):
            yield from ((str(k), part) for k, part in enumerate(thing))
        elif isinstance(thing, type):
            if not _is_library_class(thing):
                yield from (("", function) for function in _methods(thing, "__init__", "__call__"))
        elif not isinstance(thing, types.ModuleType) and not _is_library_class(type(thing)):
            yield from (("", function) for function in _methods(type(thing), "__call__"))
            yield from getattr(thing, "__dict__", {}).items()


def _read_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the variables that a function reads; a library's wrapper holds the function."""
    code = function.__code__
    is_wrapper = is_library(code.co_filename)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            yield "" if is_wrapper else name, cell.cell_contents
    if is_wrapper:
        return
    yield "", function.__defaults__
    yield "", function.__kwdefaults__
    names = names_in(code)
    for name in names:
        thing = function.__globals__.get(name)
        if isinstance(thing, types.ModuleType):
            if not is_library(getattr(thing, "__file__", None) or "<built-in>"):
                yield from ((n, vars(thing)[n]) for n in names if n in vars(thing))
        else:
            yield name, thing


def _methods(owner: type, *names: str) -> Iterator[types.FunctionType]:
    """Yields methods of a class, and the methods that they name."""
    left, known = list(names), set(names)
    while left:
        name = left.pop()
        for base in owner.__mro__:
            held = vars(base).get(name)
            for inner in ("__func__", "fget", "func"):  # class methods, properties, cached ones
                held = getattr(held, inner, held)
            if isinstance(held, types.FunctionType) and not is_library(held.__code__.co_filename):
                yield held
                new = [n for n in names_in(held.__code__) if n not in known]
                known.update(new)
                left += new


def _is_library_class(owner: type) -> bool:
    module = sys.modules.get(owner.__module__)
    return is_library(getattr(module, "__file__", None) or "<built-in>")


def tensors_in(found: Outside) -> dict[str, Tensor]:
    """Returns the tensors of layers, and those beside them, by name."""
    tensors: dict[str, Tensor] = {}
    for name, thing in found.items():
        if isinstance(thing, Tensor):
            tensors[name] = thing
            continue
        for path, inner in thing.named_modules():
            own = {"recurse": False, "remove_duplicate": False}
            held = [*inner.named_parameters(**own), *inner.named_buffers(**own)]
            for key, tensor in {**dict(held), **vars(inner)}.items():
                if isinstance(tensor, Tensor):
                    tensors[".".join(part for part in (name, path, key) if part)] = tensor
    return tensors


@contextlib.contextmanager
def exchanged(found: Outside, dtype: torch.dtype | None) -> Iterator[None]:
    """Gives tensors copies of their numbers while it is entered.

    Args:
      found: layers and tensors by name.
      dtype: the dtype of copies of floating-point ones, None for their own.
    """
    before: dict[int, tuple[Tensor, Tensor]] = {}
    try:
        for tensor in tensors_in(found).values():
            is_plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
            if is_plain and id(tensor) not in before:
                before[id(tensor)] = tensor, tensor.data
                is_cast = dtype is not None and tensor.is_floating_point()
                tensor.data = tensor.data.to(dtype if is_cast else tensor.dtype, copy=True)
        yield
    finally:
        for tensor, data in before.values():
            tensor.data = data
