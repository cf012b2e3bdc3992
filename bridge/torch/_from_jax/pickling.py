"""Pickles the JAX values that a torch module holds."""

from __future__ import annotations

import functools
import io
import pickle
import sys
import types
from typing import Any

from bridge.exchange.pickling import is_taken_by_value


class Pickled:
    """A value without mutable state: copies share it, and pickles store its functions by name.

    This includes functions of JAX that pickle itself cannot find by name, such as `jax.nn.relu`. A
    function that cannot be imported by its name is an error that names it.
    """

    def __init__(self, owner: str, value: Any) -> None:
        self.owner = owner
        self.value = value

    def __deepcopy__(self, memo: Any) -> Pickled:
        return self

    def __reduce__(self) -> Any:
        if is_taken_by_value():
            return Pickled, (self.owner, self.value)
        file = io.BytesIO()
        try:
            _Pickler(file).dump(self.value)
        except _Unnamed as unnamed:
            raise pickle.PicklingError(
                f"JaxModule: {self.owner} holds the function {unnamed}, which pickle cannot find "
                "by its name; define it at the top level of a module that can be imported, or save "
                "the state_dict instead"
            ) from None
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise pickle.PicklingError(
                f"JaxModule: {self.owner} holds a value that cannot be pickled ({error}); save the "
                "state_dict instead"
            ) from error
        return _restored, (self.owner, file.getvalue())


def _restored(owner: str, data: bytes) -> Pickled:
    return Pickled(owner, pickle.loads(data))


class _Unnamed(Exception):
    """The error for a function that its module does not have under the function's name."""


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        name = getattr(value, "__qualname__", None)
        if not callable(value) or not isinstance(name, str) or isinstance(value, type):
            return NotImplemented
        module = sys.modules.get(getattr(value, "__module__", None) or "")
        found = functools.reduce(lambda at, part: getattr(at, part, None), name.split("."), module)
        if found is value:
            return name
        if isinstance(value, types.FunctionType):
            code = value.__code__
            raise _Unnamed(f"{name} ({code.co_filename}, line {code.co_firstlineno})")
        return NotImplemented
