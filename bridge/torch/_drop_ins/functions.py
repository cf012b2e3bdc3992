"""What the drop-ins for an original's autograd Function have in common."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionMeta


class DropIn(FunctionMeta):
    """The type of an autograd Function whose `apply` calls a public function.

    `apply` has the speed and all the derivatives of that function. `forward` and `backward` are
    there for code that calls them, or derives from the class: a subclass that brings one of them is
    applied by torch, as any Function is. A class that brings neither gets both from its `apply`.

    Dynamo puts `forward` and `backward` of a class of the type FunctionMeta into its graph in place
    of `apply`, and refuses those under most transforms of torch.func. Of a class of another type it
    traces `apply`.
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
    """`forward` and `backward` of a Function that computes what `apply` does."""

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
        wanted: list[int] = []  # of the results, of which some may be None or whole numbers

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

    # Code that uses apex asks for the names of the arguments.
    signature = inspect.signature(apply)
    ctx = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [ctx, *signature.parameters.values()]
    forward.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return forward, backward


def _smooth(values: Sequence[Any]) -> list[int]:
    """Which of them have derivatives."""
    return [i for i, v in enumerate(values) if isinstance(v, Tensor) and v.is_floating_point()]
