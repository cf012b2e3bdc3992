"""The path from a public function into its op: the first call of a kind is checked, later ones not.

A kind is a static argument together with the dtypes of the operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bridge.ops.definition import Op
from bridge.torch._adapter.autograd import call, native_kernel, plan_of
from bridge.torch._adapter.destination import write_at_once, write_into
from bridge.torch._adapter.kernels import dtypes_of
from bridge.torch._adapter.overrides import hand_over, is_overridden

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
MOST_KINDS = 256


def fixed(value: Any) -> Any:
    """Returns a plain number: dynamo makes a number that changes between calls a symbol.

    No check takes a symbol, so a guard fixes its value.
    """
    if _is_dynamo_compiling() and isinstance(value, (int, float)):
        from torch.fx.experimental.symbolic_shapes import guard_scalar  # costs half a second

        return guard_scalar(value)
    return value


def entry(
    function: str, op: Op[Any], kind: type, check: Callable[..., Any], several: bool = False
) -> Callable[..., Any]:
    """Returns run(static, operands, out), which computes the first result of `op`.

    The result is written into `out` if that is given. The public function must call `run` directly:
    `__torch_function__` reads the caller's frame. Set `run.public` for a function that cannot be
    found in its module by name.

    Args:
      function: the public function's name, for messages and profilers.
      op: the op.
      kind: the type of `static`, the argument that is not a tensor (an int will do for a float).
        Calls with other types are checked every time.
      check: check(static, operands) raises, or returns the parameters of the call.
      several: run returns all results, as a tuple.
    """
    # One kernel for each static argument; it takes all combinations of dtypes that were checked.
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
                except ValueError:  # the checks below raise it in the public function's words
                    pass
            elif isinstance(out, tuple) == several and write_at_once(
                function, kernel, operands, out
            ):
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
            if isinstance(out, tuple) and not several:
                raise TypeError(f"{function}: out has type tuple, expected torch.Tensor")
            return write_into(function, op, operands, params, out)
        results = call(op, operands, params, function)
        return results if several else results[0]

    return run
