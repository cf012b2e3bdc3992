"""`__torch_function__`: calls that a mode, a subclass or a tracer takes over."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function


def is_overridden(tensors: tuple[Any, ...]) -> bool:
    """Whether `__torch_function__` is to be asked; dynamo has its own ways to trace these."""
    return not torch.compiler.is_dynamo_compiling() and has_torch_function(tensors)


def hand_over(tensors: tuple[Any, ...], depth: int = 1, function: Any = None) -> Any:
    """What `__torch_function__` makes of the call of a public function.

    For where `is_overridden(tensors)`; the function runs `depth` frames above, and is found in its
    module where it is not given. `__torch_function__` is told of it and of its arguments as they
    came: ordinary calls are to pay nothing for those that are overridden, so nobody has kept these,
    but the function's frame has them.

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
        # NestedTensor takes a function for that of torch which has its name.
        if type(values[name]).__module__.startswith("torch.nested."):
            raise TypeError(f"{function.__name__}: {name} is nested, expected a dense tensor")
    return handle_torch_function(function, tensors, *arguments, **keywords)
