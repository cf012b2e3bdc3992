"""The way from a public function into its op: checks at the first call of a kind, then none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bridge.torch._adapter.autograd import call, native_kernel, plan_of
from bridge.torch._adapter.destination import write_at_once, write_into
from bridge.torch._adapter.kernels import dtypes_of
from bridge.torch._adapter.overrides import hand_over, is_overridden

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
MOST_KINDS = 256


def fixed(value: Any) -> Any:
    """A number that changed since an earlier compilation is a symbol, which no check takes."""
    if _is_dynamo_compiling() and isinstance(value, (int, float)):
        from torch.fx.experimental.symbolic_shapes import guard_scalar  # costs half a second

        return guard_scalar(value)
    return value


def entry(
    function: str, op: Any, kind: type, check: Callable[..., Any], several: bool = False
) -> Callable[..., Any]:
    """Returns run(static, operands, out): the first result of `op`, in `out` if that is given.

    A function of a module calls it with nothing between: that is what overrides are told of. One
    that is in no module is `run.public`.

    Args:
      function: the public function's name, for messages and profilers.
      op: the op.
      kind: the type of `static`, the argument that is no tensor (an int will do for a float). Other
        types are always checked.
      check: check(static, operands) raises, or returns the parameters of the call.
      several: run returns all results, as a tuple.
    """
    # Each static argument has a kernel that takes all combinations of dtypes that passed.
    seen: dict[Any, Any] = {}

    def run(static: Any, operands: tuple[Any, ...], out: Tensor | None = None) -> Any:
        if type(static) is int and kind is float and abs(static) < 2**1023:
            static = float(static)
        is_known_kind = type(static) is kind and not _is_dynamo_compiling()
        kernel = seen.get(static) if is_known_kind else None
        if kernel is not None:
            if out is None:
                try:
                    if (results := kernel(*operands)) is not None:
                        return results if several else results[0]
                except ValueError:  # Autograd has no way back: the checks tell it in their words.
                    pass
            elif write_at_once(function, kernel, operands, out):
                return out
        if is_overridden(given := (*operands, out)):
            return hand_over(given, depth=2, function=getattr(run, "public", None))
        params = check(fixed(static), operands)
        if is_known_kind and not torch.compiler.is_compiling():
            if kernel is None:
                if len(seen) == MOST_KINDS:
                    seen.clear()
                kernel = seen[static] = native_kernel(op)
            plan_of(op, params, dtypes_of(operands), function).add_to(kernel)
        if out is not None:
            return write_into(function, op, operands, params, out)
        results = call(op, operands, params, function)
        return results if several else results[0]

    return run
