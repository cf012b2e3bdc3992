"""What the drop-ins for an original's autograd Function have in common."""

from __future__ import annotations

from typing import Any

from torch.autograd import Function
from torch.autograd.function import FunctionMeta


class DropIn(FunctionMeta):
    """The type of an autograd Function whose `apply` calls a public function.

    `apply` has the speed and all the derivatives of that function. `forward` and `backward` are
    there for code that calls them, or derives from the class: a subclass that brings one of them is
    applied by torch, as any Function is.

    Dynamo puts `forward` and `backward` of a class of the type FunctionMeta into its graph in place
    of `apply`, and refuses those under most transforms of torch.func. Of a class of another type it
    traces `apply`.
    """

    def __init__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> None:
        super().__init__(name, bases, attributes)
        if "apply" not in attributes and not attributes.keys().isdisjoint(("forward", "backward")):
            cls.apply: Any = classmethod(Function.apply.__func__)  # type: ignore[attr-defined]
            cls.__class__ = FunctionMeta  # type: ignore[assignment]
