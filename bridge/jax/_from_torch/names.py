"""Names of torch functions for messages."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

# Public namespaces of torch: the `__qualname__` of many functions names a C++ class instead.
_PUBLIC = {
    "torch": torch,
    "torch.nn.functional": torch.nn.functional,
    "torch.Tensor": torch.Tensor,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    "torch.special": torch.special,
    "torch.sparse": torch.sparse,
}
# The two types of `torch.ops` functions, all overloads and one overload, live in a private module.
_OPERATORS = (type(torch.ops.aten.neg), type(torch.ops.aten.neg.default))
_CLASSES = {"_VariableFunctionsClass": "torch", "TensorBase": "torch.Tensor"}


def public_name(fn: Callable[..., Any]) -> str:
    """Returns torch's public name; for other functions their own name, for objects their type's."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__qualname__", type(fn).__name__)
    module = getattr(fn, "__module__", None) or "torch"  # C++ methods have no module
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
    head, dot, rest = name.partition(".")  # a wrapped method
    return f"{_CLASSES[head]}{dot}{rest}" if head in _CLASSES else name
