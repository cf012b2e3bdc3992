"""The base of all drop-ins for an original's autograd Function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionMeta


class DropIn(FunctionMeta):
    """The metaclass of an autograd Function whose `apply` calls a public function.

    `apply` has the speed and all the derivatives of that function. `forward` and `backward` exist
    for code that calls them or derives from the class. If a subclass defines one of them, torch
    applies the subclass as any Function. A class that defines neither gets both from its `apply`.

    For a class of type FunctionMeta, dynamo traces `forward` and `backward` in place of `apply`,
    and refuses them under most transforms of torch.func. For a class of another type it traces
    `apply`.
    """

    def __init__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> None:
        super().__init__(name, bases, attributes)
        has_methods = not attributes.keys().isdisjoint(("forward", "backward"))
        if "apply" in attributes and not has_methods:
            forward, backward = _methods_of(cls.apply)
            cls.forward, cls.backward = staticmethod(forward), staticmethod(backward)
        elif has_methods and "apply" not in attributes:
            cls.apply: Any = vars(Function)["apply"]
            cls.__class__ = FunctionMeta  # type: ignore[assignment]


def _methods_of(apply: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns `forward` and `backward` of a Function that computes the same as `apply`."""

    def forward(ctx: Any, *arguments: Any) -> Any:
        ctx.save_for_backward(*[a if isinstance(a, Tensor) else None for a in arguments])
        ctx.arguments = [None if isinstance(a, Tensor) else a for a in arguments]
        return apply(*arguments)

    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        arguments = [
            argument if tensor is None else tensor
            for argument, tensor in zip(ctx.arguments, ctx.saved_tensors, strict=True)
        ]
        smooth = _smooth(arguments)
        wanted: list[int] = []  # the floating results; others may be None or integers

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            given = dict(zip(smooth, tensors, strict=True))
            found = apply(*[given.get(i, argument) for i, argument in enumerate(arguments)])
            results = found if isinstance(found, tuple) else (found,)
            wanted[:] = _smooth(results)
            return tuple(results[i] for i in wanted)

        pull_back = torch.func.vjp(run, *[arguments[i] for i in smooth])[1]
        found = pull_back(tuple(cotangents[i] for i in wanted))
        gradients = dict(zip(smooth, found, strict=True))
        return tuple(gradients.get(i) for i in range(len(arguments)))

    # Code that uses apex reads the names of the arguments.
    signature = inspect.signature(apply)
    ctx = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [ctx, *signature.parameters.values()]
    forward.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return forward, backward


def _smooth(values: Sequence[Any]) -> list[int]:
    """Returns the indices of floating tensors: only they have derivatives."""
    return [i for i, v in enumerate(values) if isinstance(v, Tensor) and v.is_floating_point()]
