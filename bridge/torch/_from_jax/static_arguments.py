"""Static arguments of a JAX function: arguments that are passed on and not traced."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from bridge.ops.scalars import told_apart


class StaticArguments:
    """The static arguments of a function, by position and by name."""

    def __init__(
        self, fn: Callable[..., Any], nums: int | Sequence[int], names: str | Sequence[str]
    ) -> None:
        nums = listed("from_jax", "static_argnums", nums, int)
        names = listed("from_jax", "static_argnames", names, str)
        self.any = bool(nums or names)
        if not self.any:
            self.nums: tuple[int, ...] = ()
            self.names: frozenset[str] = frozenset()
            return
        positional, keyword, rest, others = _parameters(fn)
        count = len(positional)
        for num in nums:
            if not rest and not -count <= num < count:
                raise ValueError(
                    f"from_jax: static_argnums holds {num}, but {function_name(fn)} takes {count} "
                    "positional arguments"
                )
        for name in names:
            if not others and name not in positional and name not in keyword:
                raise ValueError(
                    f"from_jax: static_argnames holds {name!r}, but {function_name(fn)} takes "
                    f"{', '.join([*positional, *keyword]) or 'no arguments by name'}"
                )
        at = [num + count if num < 0 else num for num in nums]
        self.nums = tuple(sorted({*at, *(positional.index(n) for n in names if n in positional)}))
        self.names = frozenset([*names, *(positional[i] for i in at if i < count)])

    def take(self, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """Separates static arguments from the others.

        Returns:
          The static arguments as (place, cache key, value), the positional and the keyword
          arguments. A static positional argument is replaced by None. The cache key distinguishes
          equal values such as 1 and True.
        """
        static: list[Any] = []
        args = list(args)
        for num in self.nums:
            if num < len(args):
                static.append((num, told_apart(args[num]), args[num]))
                args[num] = None
        for name in sorted(self.names & kwargs.keys()):
            static.append((name, told_apart(kwargs[name]), kwargs[name]))
        kwargs = {name: value for name, value in kwargs.items() if name not in self.names}
        for place, _, value in static:
            if isinstance(value, Tensor):
                raise TypeError(
                    f"from_jax: static argument {place!r} is a tensor, expected a value that can "
                    "be compared and hashed; leave it out of the static arguments"
                )
        return tuple(static), tuple(args), kwargs

    def restore(self, static: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        args, kwargs = list(args), dict(kwargs)
        for place, _, value in static:
            if isinstance(place, int):
                args[place] = value
            else:
                kwargs[place] = value
        return args, kwargs


def listed(function: str, argument: str, values: Any, kind: type) -> tuple[Any, ...]:
    """Returns one value of a kind, or several, as a tuple.

    Raises:
      TypeError: a value is of another kind.
    """
    if isinstance(values, kind):
        return (values,)
    try:
        values = tuple(values)
    except TypeError:
        raise TypeError(
            f"{function}: {argument} has type {type(values).__name__}, expected {kind.__name__}, "
            "or several of them"
        ) from None
    for value in values:
        if not isinstance(value, kind):
            raise TypeError(
                f"{function}: {argument} holds {value!r} of type {type(value).__name__}, "
                f"expected {kind.__name__}"
            )
    return values


def _parameters(fn: Callable[..., Any]) -> tuple[list[str], list[str], bool, bool]:
    """Returns names of positional and of keyword arguments, and two flags: *args, **kwargs."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return [], [], True, True
    kinds = inspect.Parameter
    return (
        [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)],
        [p.name for p in parameters if p.kind is kinds.KEYWORD_ONLY],
        any(p.kind is kinds.VAR_POSITIONAL for p in parameters),
        any(p.kind is kinds.VAR_KEYWORD for p in parameters),
    )


def function_name(fn: Callable[..., Any]) -> str:
    """Returns the name of a function, also one inside a partial; for an object, its type's name."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", type(fn).__name__)
