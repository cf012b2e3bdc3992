"""The context `invariant`, a mode of torch that hands functions of rows to bridge."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bridge._private.torch import (
    HigherOrderOperator,
    break_graph,
    constant_to_dynamo,
    modes_of_thread,
)
from bridge.interception import CallRecord, Interception, check_report
from bridge.torch._invariant.table import ATEN, FORMS, OPENED, OTHERS, Form, renew

_PLAIN = (Tensor, torch.nn.Parameter)
_CHECKPOINT = getattr(torch.ops.higher_order, "tag_activation_checkpoint", None)
_OPERATORS = (type(torch.ops.aten.mean), type(torch.ops.aten.mean.dim))


class invariant(Interception, TorchFunctionMode):
    """Runs torch's own functions of rows on bridge's kernels, in code that nobody touched.

    The functions are `softmax`, `log_softmax`, `logsumexp`, `mean`, `rms_norm`, `layer_norm`,
    `gelu`, `silu` and `cross_entropy`. Inside the context they, the methods of tensors with these
    names, and the modules and functions of torch that call them have the
    [batch invariance](../invariance.md) of bridge, and its bits in JAX. Results have torch's shape,
    dtype and layout. Derivatives of any order, `torch.func`, autocast and `torch.compile` work as
    for bridge's ops. A call that bridge cannot serve runs as without the context, errors included.

    The context holds for the thread that enters it. It is a decorator too, and contexts may be
    nested. `with invariant() as context` gives the context itself.

    Args:
      report: count the calls; `print(context)` shows them.

    Attributes:
      caught: the number of calls served by bridge, by the function's name.
      passed: the number of other calls of these functions, and of functions that add in an order of
        torch's own (such as `matmul`), by (name, reason).

    Raises:
      TypeError: report is no bool; as a decorator, for a generator or a coroutine.

    Example:
      >>> x = torch.randn(8, 100)
      >>> with invariant(report=True) as context:
      ...     y = torch.softmax(x, -1)
      >>> torch.equal(y, scaled_softmax(x)), dict(context.caught)
      (True, {'softmax': 1})
    """

    def __init__(self, *, report: bool = False) -> None:
        super().__init__()
        check_report(report)
        self.report = report
        self._record = CallRecord()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if (form := FORMS.get(func)) is not None:
            found = _served(form, types, args, kwargs)
            is_caught = not isinstance(found, str)
            if self.report:
                _note(self, form.name, None if is_caught else found)
            if is_caught:
                return found
        elif (opened := OPENED.get(func)) is not None and _are_plain(types):
            renew(func)
            with self:
                return opened(*args, **kwargs)
        elif func is torch.Tensor.unflatten:
            # Dynamo cannot trace this Python method under a mode.
            return torch.unflatten(*args, **kwargs)
        elif func is _CHECKPOINT and torch.compiler.is_dynamo_compiling():
            # Dynamo traces the layer without the mode. Outside a graph the mode sees it.
            break_graph()
        elif self.report and (found := _other(func)) is not None:
            _note(self, *found)
        return func(*args, **kwargs)


def _are_plain(types: Any) -> bool:
    """True if no operand has a `__torch_function__` of its own, which comes after the mode's."""
    return all([each in _PLAIN for each in types])


def _served(form: Form, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Returns the result of a function of rows, or the reason why the call passes by."""
    if not _are_plain(types):
        return "a tensor has a __torch_function__ of its own"
    if (values := form.bound(args, kwargs)) is None:
        return "torch refuses these arguments"
    out = values.get("out")
    found = form.run(**values)
    if out is None or isinstance(found, str):
        return found
    if (
        not isinstance(out, Tensor)
        or out.shape != found.shape
        or (out.dtype, out.device, out.layout) != (found.dtype, found.device, found.layout)
        or found.requires_grad
        or out.requires_grad
    ):
        return "out has another shape, dtype or device, or a gradient"
    return out.copy_(found)


def _note(mode: invariant, name: str, reason: str | None) -> None:
    if torch.compiler.is_dynamo_compiling():
        _note_while_compiling(name, reason)
        return
    mode._record.note(name, reason)
    if reason is None:  # contexts around this one see a function of bridge instead
        for each in modes_of_thread():
            if isinstance(each, invariant) and each.report and each is not mode:
                each._record.note(name, reason)


@constant_to_dynamo
def _note_while_compiling(name: str, reason: str | None) -> None:
    for each in modes_of_thread():
        if isinstance(each, invariant) and each.report:
            each._record.note(name, reason)


def _other(func: Any) -> tuple[str, str] | None:
    """Returns the name and reason of a function that passes by; None for one that adds nothing."""
    if isinstance(func, _OPERATORS):
        name = str(func).replace(".", "::", 1).partition(".")[0]
        return (name, "called as an operator, as in compiled graphs") if name in ATEN else None
    if isinstance(func, HigherOrderOperator):
        return func.__name__, "functions inside such an operator are not seen"
    if func in OTHERS:
        return OTHERS[func], "bridge has no kernel for it"
    return None
