"""The lines inside of the rules of custom derivatives."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax

from bridge._private.jax import own_lines
from bridge.compared.recording.sources import is_library

RULES = ("fwd", "bwd", "jvp")


@contextlib.contextmanager
def lines_of_rules() -> Iterator[None]:
    """Equations of rules that are traced meanwhile have the rule's lines, not those of the call.

    Rules of the frameworks keep the line of the call.
    """
    with contextlib.ExitStack() as stack:
        for kind in (jax.custom_vjp, jax.custom_jvp):
            stack.enter_context(mock.patch.object(kind, "__call__", _calling(kind.__call__)))
        yield


def _calling(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def with_own_lines(function: Any, *args: Any, **kwargs: Any) -> Any:
        new = object.__new__(type(function))  # its class takes no copy
        vars(new).update(vars(function))
        for name in RULES:
            rule: Any = getattr(new, name, None)
            code = getattr(rule, "__code__", None)
            if code is not None and not is_library(code.co_filename):
                setattr(new, name, own_lines()(rule))
        return call(new, *args, **kwargs)

    return with_own_lines
