"""What a message calls a torch function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

# Where the functions of torch are public: its own names of many are those of a class in C++.
_PUBLIC = {
    "torch": torch,
    "torch.nn.functional": torch.nn.functional,
    "torch.Tensor": torch.Tensor,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    "torch.special": torch.special,
    "torch.sparse": torch.sparse,
}
# A private module has these types: one of all overloads, one of an overload.
_OPERATORS = (type(torch.ops.aten.neg), type(torch.ops.aten.neg.default))
_CLASSES = {"_VariableFunctionsClass": "torch", "TensorBase": "torch.Tensor"}


def public_name(fn: Callable[..., Any]) -> str:
    """The name under which torch has it; of another function its own, of an object its type's."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__qualname__", type(fn).__name__)
    module = getattr(fn, "__module__", None) or "torch"  # methods in C++ have none
    if isinstance(fn, _OPERATORS):
        return f"torch.ops.{fn}"
    if isinstance(getattr(fn, "__self__", None), torch.Tensor):
        return f"torch.Tensor.{name.rpartition('.')[2]}"
    if module.partition(".")[0] != "torch":
        return name
    for place, of_place in _PUBLIC.items():
        for base in getattr(of_place, "__mro__", (of_place,)):
            for public, found in vars(base).items():
                if found is fn:
                    return f"{place}.{public}"
    head, dot, rest = name.partition(".")  # of a function that wraps one
    return f"{_CLASSES[head]}{dot}{rest}" if head in _CLASSES else name
