"""The functions of torch that `invariant` knows, by the object that a mode receives.

Three kinds: functions that bridge computes, Python functions of torch that call such functions
inside, and functions whose sums have no kernel in bridge, for the report.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from bridge._private.torch import constant_to_dynamo
from bridge.torch._invariant.forms import (
    gelu,
    layer_norm,
    log_softmax,
    logsumexp,
    mean,
    rms_norm,
    silu,
    softmax,
)
from bridge.torch._invariant.losses import cross_entropy


class Form(NamedTuple):
    """A function of torch that bridge computes.

    Attributes:
      name: its name in the report.
      run: a function of the same parameters, which ignores `out`; it returns the result, or the
        reason why the call passes by.
      positional: the parameters that may be given by position.
      defaults: all parameters with their defaults; None for those without, which torch misses
        itself.
    """

    name: str
    run: Callable[..., Any]
    positional: tuple[str, ...]
    defaults: dict[str, Any]

    def bound(self, args: Any, kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the value of each parameter, or None for arguments that torch will refuse."""
        if len(args) > len(self.positional):
            return None
        values = dict(self.defaults)
        given = self.positional[: len(args)]
        for name, value in zip(given, args, strict=True):
            values[name] = value
        for keyword, value in kwargs.items():
            name = _OTHER_NAMES.get(keyword, keyword)
            if name not in values or name in given:
                return None
            values[name] = value
        return values


# NumPy's names of parameters, which functions of torch's C++ take too.
_OTHER_NAMES = {"axis": "dim", "keepdims": "keepdim", "x": "input", "a": "input"}


def _form(name: str, run: Callable[..., Any], *functions: Any) -> dict[Any, Form]:
    """Returns the form of functions with the parameters of `run`."""
    parameters = inspect.signature(run).parameters.values()
    positional = tuple(each.name for each in parameters if each.kind is not each.KEYWORD_ONLY)
    defaults = {each.name: each.default for each in parameters}
    return dict.fromkeys(functions, Form(name, run, positional, defaults))


FORMS: dict[Any, Form] = {
    **_form(
        "softmax",
        lambda input=None, dim=None, _stacklevel=3, dtype=None: softmax(input, dim, dtype),
        F.softmax,
    ),
    **_form("softmax", softmax, torch.softmax, torch.Tensor.softmax, torch.special.softmax),
    **_form(
        "log_softmax",
        lambda input=None, dim=None, _stacklevel=3, dtype=None: log_softmax(input, dim, dtype),
        F.log_softmax,
    ),
    **_form(
        "log_softmax",
        log_softmax,
        torch.log_softmax,
        torch.Tensor.log_softmax,
        torch.special.log_softmax,
    ),
    **_form(
        "logsumexp", logsumexp, torch.logsumexp, torch.Tensor.logsumexp, torch.special.logsumexp
    ),
    **_form("mean", mean, torch.mean, torch.Tensor.mean),
    **_form("gelu", gelu, F.gelu),
    **_form("silu", silu, F.silu),
    **_form("layer_norm", layer_norm, F.layer_norm, torch.layer_norm),
    **_form("rms_norm", rms_norm, F.rms_norm, torch.rms_norm),
    **_form("cross_entropy", cross_entropy, F.cross_entropy),
}

_SERVED = {form.name for form in FORMS.values()}
_ASKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def _opened(function: Any) -> Any:
    """Returns a copy of a Python function of torch that does not ask for `__torch_function__`.

    A mode is off while its handler runs. The copy runs under the mode again, so that calls inside
    the function are seen, and it does not hand itself over once more.
    """
    names = {**function.__globals__, **dict.fromkeys(_ASKS, _never)}
    copy = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _never(*_: Any) -> bool:
    return False


def _composites() -> dict[Any, Any]:
    found = {}
    for function in vars(F).values():
        if isinstance(function, types.FunctionType) and function not in FORMS:
            names = set(function.__code__.co_names)
            if names & set(_ASKS) and names & _SERVED:
                found[function] = _opened(function)
    # Backward passes run Python code too: layers that are computed once more, and backward
    # functions of users.
    backward = torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad
    return found | {function: _opened(function) for function in backward}


OPENED = _composites()


@constant_to_dynamo
def renew(function: Any) -> None:
    """Gives the copy of a function the values that the names inside it have now.

    Libraries exchange functions of `torch.nn.functional`, such as that of attention, by their own.
    """
    now, names = function.__globals__, OPENED[function].__globals__
    for name in function.__code__.co_names:
        if name in now and name not in _ASKS:
            names[name] = now[name]


_WITHOUT_KERNEL = {
    torch: "matmul mm bmm addmm addbmm baddbmm mv addmv dot vdot inner einsum tensordot bilinear "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d sum nansum nanmean "
    "cumsum prod var std var_mean std_mean norm cosine_similarity batch_norm group_norm "
    "instance_norm native_layer_norm",
    torch.Tensor: "matmul __matmul__ __rmatmul__ mm bmm addmm addbmm baddbmm mv addmv dot inner "
    "sum nansum nanmean cumsum prod var std norm",
    F: "linear bilinear scaled_dot_product_attention embedding_bag batch_norm group_norm "
    "instance_norm nll_loss kl_div binary_cross_entropy binary_cross_entropy_with_logits mse_loss "
    "l1_loss normalize avg_pool1d avg_pool2d avg_pool3d conv1d conv2d conv3d",
}
# Functions that sum and stay torch's.
OTHERS: dict[Any, str] = {
    getattr(module, name): name.strip("_")
    for module, names in _WITHOUT_KERNEL.items()
    for name in names.split()
    if hasattr(module, name)
}
# The operators of torch.ops.aten, which the functions above consist of.
ATEN = {f"aten::{name}{end}" for name in _SERVED for end in ("", "_")} | {
    "aten::_softmax",
    "aten::_log_softmax",
    "aten::native_layer_norm",
    "aten::_fused_rms_norm",
    "aten::cross_entropy_loss",
}
