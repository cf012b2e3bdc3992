"""`__torch_function__`: calls that a mode, a subclass or a tracer takes over."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function


def is_overridden(tensors: tuple[Any, ...]) -> bool:
    """True if the call goes to `__torch_function__`; dynamo traces such calls in its own way."""
    return not torch.compiler.is_dynamo_compiling() and has_torch_function(tensors)


def hand_over(tensors: tuple[Any, ...], depth: int = 1, function: Any = None) -> Any:
    """Returns the result of `__torch_function__` for the call of a public function.

    Call it where `is_overridden(tensors)` is true. The public function runs `depth` frames above;
    without `function`, it is looked up by name in its module. `__torch_function__` receives the
    function and its original arguments. They are read from the function's frame, so that ordinary
    calls need not store them.

    Raises:
      TypeError: an argument is a nested tensor.
    """
    frame = sys._getframe(depth)
    code, values = frame.f_code, frame.f_locals
    count = code.co_argcount
    arguments = [values[name] for name in code.co_varnames[:count]]
    names = code.co_varnames[count : count + code.co_kwonlyargcount]
    keywords = {name: values[name] for name in names}
    if function is None:
        function = frame.f_globals[code.co_name]
    for name in code.co_varnames[: count + len(names)]:
        # NestedTensor would take our function for the torch function of the same name.
        if type(values[name]).__module__.startswith("torch.nested."):
            raise TypeError(f"{function.__name__}: {name} is nested, expected a dense tensor")
    return handle_torch_function(function, tensors, *arguments, **keywords)
